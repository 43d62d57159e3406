# SPDX-License-Identifier: Apache-2.0
"""The loss of quality by a quantization scheme, measured on a real model's weights."""
