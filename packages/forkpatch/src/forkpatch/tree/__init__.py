# SPDX-License-Identifier: Apache-2.0
"""Patched trees: built, swapped in, inspected, and variants of them."""
