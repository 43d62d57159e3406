# SPDX-License-Identifier: Apache-2.0
"""A survey of torch's modules: right, refused by name, or wrong."""
