# SPDX-License-Identifier: Apache-2.0
"""``crosslab bench``: guest instructions of each step from upstream to the project's code.

A variant is a TVM tree, optionally an MLC-LLM tree, and the switches for compiling a model on them.
A run compiles all variants, runs them under the counter and compares them. With one thread,
instruction counts are reproducible; with several, threads wait for each other in loops.
"""
