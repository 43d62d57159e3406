# SPDX-License-Identifier: Apache-2.0
"""A fork's own files: settings, lock, series, patches, overlays, and the plan of a patched tree."""
