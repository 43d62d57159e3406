# SPDX-License-Identifier: Apache-2.0
"""A small model of every family that MLC-LLM supports, compiled for RVV and checked.

A family is a ``config.json`` in the shape of a real model (models/families.toml). It gets random
weights. Its implementation in transformers answers a prompt, MLC-LLM compiles it with the project's
passes, the runner answers under QEMU, and the two answers are compared.
"""
