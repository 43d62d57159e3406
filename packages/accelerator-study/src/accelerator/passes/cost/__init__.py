# SPDX-License-Identifier: Apache-2.0
"""Extraction of a module's work for a cost estimate, independent of the package's other folders."""
