# SPDX-License-Identifier: Apache-2.0
"""Language models: assets, import, parameters, and a reference to compare with."""
