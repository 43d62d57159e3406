# SPDX-License-Identifier: Apache-2.0
"""Checks and reports on a series: mistakes, signatures, dependencies, applicability."""
