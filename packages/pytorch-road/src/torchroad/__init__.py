# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch: exported, imported, compiled for RVV, run under QEMU, compared with torch.

``cli`` and ``job`` run in the command's process and import neither torch nor TVM; ``importer``,
``converters``, ``formulas`` and ``operators`` run in a separate process, on a patched tree.
"""
