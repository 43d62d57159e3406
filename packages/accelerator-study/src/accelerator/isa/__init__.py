# SPDX-License-Identifier: Apache-2.0
"""VTA's instruction set: the instructions, their bytes, and their text."""
