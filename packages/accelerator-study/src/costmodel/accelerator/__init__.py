# SPDX-License-Identifier: Apache-2.0
"""Descriptions of an accelerator: array and memories, dataflows, quantization schemes."""
