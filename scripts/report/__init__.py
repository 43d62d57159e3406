# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained HTML page made from the repository and ``out/*.json``.

It belongs to the face, not to a wing: it reads what the wings wrote and runs nothing itself.
"""
