# SPDX-License-Identifier: Apache-2.0
"""Patch series: exported from commits, and imported from quilt."""
