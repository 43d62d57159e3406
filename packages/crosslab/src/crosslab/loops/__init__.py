# SPDX-License-Identifier: Apache-2.0
"""Generator of kernels' inner loops: a description gives the work, a core's costs the order."""
