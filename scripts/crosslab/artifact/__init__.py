# SPDX-License-Identifier: Apache-2.0
"""A finished model as something to hand on: folder, manifest, bill of materials, tarball."""
