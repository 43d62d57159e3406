# SPDX-License-Identifier: Apache-2.0
"""A model of boards: seconds of a model's phases on all threads of a board."""
