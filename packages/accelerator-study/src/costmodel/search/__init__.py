# SPDX-License-Identifier: Apache-2.0
"""The search for an accelerator and its mappings by bounds, exact times and Pareto fronts."""
