# SPDX-License-Identifier: Apache-2.0
"""Cycle estimates for real cores, from the cores' tables (``cores/*.toml``)."""
