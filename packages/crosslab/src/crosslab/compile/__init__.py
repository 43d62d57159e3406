# SPDX-License-Identifier: Apache-2.0
"""Compile the project's own Llama with TVM, in a subprocess on a patched tree.

``driver`` and ``targets`` run in this process and import no TVM; ``worker``, ``llama``,
``pipeline`` and ``native`` run in the subprocess, with the patched TVM.
"""
