# SPDX-License-Identifier: Apache-2.0
"""Extraction of a module's work for a cost estimate; needs nothing of the other rooms."""
