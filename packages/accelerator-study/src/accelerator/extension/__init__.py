# SPDX-License-Identifier: Apache-2.0
"""A matrix unit of a CPU: instructions on its vector registers, such as SpacemiT's ``vmadot``."""
