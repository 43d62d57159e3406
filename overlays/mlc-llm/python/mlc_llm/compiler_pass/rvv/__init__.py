# SPDX-License-Identifier: Apache-2.0
"""The project's passes, which MLC-LLM's pipeline calls through :mod:`hooks`.

Passes import TVM alone, so that they also run where there is no MLC-LLM.
"""
