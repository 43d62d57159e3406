# SPDX-License-Identifier: Apache-2.0
"""The matrix products of a model or of a run, written as a work file for the cost model."""
