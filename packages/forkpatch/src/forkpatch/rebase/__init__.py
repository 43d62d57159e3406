# SPDX-License-Identifier: Apache-2.0
"""Rebases of a series onto another version of its upstream."""
