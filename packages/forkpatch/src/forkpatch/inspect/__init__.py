# SPDX-License-Identifier: Apache-2.0
"""Checks and reports on a series: lint, symbols, dependencies, necessity, applicability."""
