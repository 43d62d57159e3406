# SPDX-License-Identifier: Apache-2.0
"""Carry a fork as a small series of patches and overlays on top of pinned upstreams."""
