# SPDX-License-Identifier: Apache-2.0
"""A finished model for others: folder, manifest, bill of materials, tarball."""
