# SPDX-License-Identifier: Apache-2.0
"""Inner loops of kernels: descriptions say what they compute, a core's costs give the order."""
