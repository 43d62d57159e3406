# SPDX-License-Identifier: Apache-2.0
"""Programs for a CPU's matrix unit: instructions on vector registers, as SpacemiT's ``vmadot``."""
