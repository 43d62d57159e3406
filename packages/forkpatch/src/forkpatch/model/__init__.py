# SPDX-License-Identifier: Apache-2.0
"""A fork's own files, read and written: settings, lock, series, patches, overlays, records."""
