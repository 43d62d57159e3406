# SPDX-License-Identifier: Apache-2.0
"""Quasi-affine maps, and the exact number of stamps and elements that they give."""
