# SPDX-License-Identifier: Apache-2.0
"""Many models through the road: right, refused by name, or wrong."""
