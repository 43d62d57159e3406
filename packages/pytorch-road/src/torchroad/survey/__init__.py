# SPDX-License-Identifier: Apache-2.0
"""The survey of many models: right, refused by name, or wrong."""
