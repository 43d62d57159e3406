# SPDX-License-Identifier: Apache-2.0
"""Sources of a model: a pinned asset, a model folder, a GGUF file, or a hub."""
