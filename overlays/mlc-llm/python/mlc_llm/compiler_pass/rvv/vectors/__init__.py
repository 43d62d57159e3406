# SPDX-License-Identifier: Apache-2.0
"""Vector loops: element-wise functions, sums, rotary embeddings, elementary functions."""
