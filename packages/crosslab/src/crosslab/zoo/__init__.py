# SPDX-License-Identifier: Apache-2.0
"""Check of a small model of every family that MLC-LLM supports, compiled for RVV.

A family is a ``config.json`` with the structure of a real model (models/families.toml), with random
weights. Its implementation in transformers answers a prompt. MLC-LLM compiles the model with the
project's passes, and the runner answers under QEMU. The two answers are compared.
"""
