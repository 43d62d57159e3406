# SPDX-License-Identifier: Apache-2.0
"""Command line: one module of verbs for each group, and output for people and programs."""
