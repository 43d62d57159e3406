# SPDX-License-Identifier: Apache-2.0
"""Distribution of a finished model: folder, manifest, bill of materials, tarball."""
