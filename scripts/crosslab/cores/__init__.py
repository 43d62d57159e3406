# SPDX-License-Identifier: Apache-2.0
"""Cycles on real cores: their tables (``cores/*.toml``) and the sums that they give."""
