# SPDX-License-Identifier: Apache-2.0
"""``crosslab bench``: the cost of each step from upstream to ours, in guest instructions.

A variant is a TVM tree, perhaps an MLC-LLM tree, and the switches that are set when a model is
compiled on them. One run compiles all variants, runs them under the counter and compares them. With
one thread, instruction counts repeat exactly; with several, threads wait for each other in loops.
"""
