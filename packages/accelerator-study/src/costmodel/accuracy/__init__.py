# SPDX-License-Identifier: Apache-2.0
"""The quality that a quantization scheme costs, measured on a real model's weights."""
