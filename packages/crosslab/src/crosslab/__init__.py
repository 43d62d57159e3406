# SPDX-License-Identifier: Apache-2.0
"""Cross-build a language model for RISC-V, run it under an emulator, and measure it."""
