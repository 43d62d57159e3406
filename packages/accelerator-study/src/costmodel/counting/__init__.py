# SPDX-License-Identifier: Apache-2.0
"""Quasi-affine maps, and the exact numbers of their time stamps and elements."""
