# SPDX-License-Identifier: Apache-2.0
"""Results as tables, JSON, CSV and figures."""
