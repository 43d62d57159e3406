# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained HTML page made from the repository and ``out/*.json``.

The report reads results that other packages wrote, and runs no measurement itself.
"""
