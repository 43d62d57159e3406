# SPDX-License-Identifier: Apache-2.0
"""Language models: shape, parameters, formats, and a reference to compare with."""
