# SPDX-License-Identifier: Apache-2.0
"""Running guests under the emulator, and counting their instructions."""
