# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, of commonly exported architectures."""
