# SPDX-License-Identifier: Apache-2.0
"""Patch series: exported from commits, adopted, shared between versions, submitted."""
