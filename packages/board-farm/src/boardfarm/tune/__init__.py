# SPDX-License-Identifier: Apache-2.0
"""Tuning of TIR functions on a farm: MetaSchedule's search, with checks of its results."""
