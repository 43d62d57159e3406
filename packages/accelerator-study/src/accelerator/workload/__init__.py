# SPDX-License-Identifier: Apache-2.0
"""The matrix products of a model or of a run as a work file for the cost model."""
