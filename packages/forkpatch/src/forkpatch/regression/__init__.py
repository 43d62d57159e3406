# SPDX-License-Identifier: Apache-2.0
"""Tests and commands run with and without patches."""
