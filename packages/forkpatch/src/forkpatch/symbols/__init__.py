# SPDX-License-Identifier: Apache-2.0
"""Symbols of a source file, and the place of a change among them."""
