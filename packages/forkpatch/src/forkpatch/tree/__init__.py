# SPDX-License-Identifier: Apache-2.0
"""Patched trees: planned, recorded, built, swapped in; and their variants with some patches."""
