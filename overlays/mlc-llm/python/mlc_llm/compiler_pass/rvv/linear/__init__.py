# SPDX-License-Identifier: Apache-2.0
"""Kernels for linear layers and for the experts of a mixture."""
