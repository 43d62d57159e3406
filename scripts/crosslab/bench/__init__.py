# SPDX-License-Identifier: Apache-2.0
"""``crosslab bench``: what each step from upstream to ours costs, in guest instructions.

Every variant is a TVM tree, perhaps an MLC-LLM tree, and what is switched on when a model is
compiled on them. All of them are compiled, run under the counter and compared in one run. With one
thread, instruction counts repeat exactly; with several, threads wait for each other in loops.
"""
