# SPDX-License-Identifier: Apache-2.0
"""Compilers, sysroot and emulator of this machine, and their installation."""
