# SPDX-License-Identifier: Apache-2.0
"""Latency, data volumes and energy of a model on a spatial accelerator.

The notation is TENET's (Lu et al., ISCA 2021): a tensor operation is a set of instances
``S[i,j,k]``, a dataflow maps each instance to a processing element ``PE[...]`` and a time
stamp ``T[...]``, and the interconnect lists the neighbours from which a PE may take an element.
The counts of elements are exact, see :mod:`costmodel.counting.closed_form`.
"""
