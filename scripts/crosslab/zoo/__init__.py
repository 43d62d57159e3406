# SPDX-License-Identifier: Apache-2.0
"""Every model family that MLC-LLM knows, small, compiled for RVV and checked.

A family is a ``config.json`` in the shape of a real model (families.toml). Random weights are
made for it, its implementation in transformers answers a prompt, MLC-LLM compiles it with the
project's passes, the runner answers under QEMU, and the two answers are compared.
"""
