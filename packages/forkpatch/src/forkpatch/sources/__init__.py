# SPDX-License-Identifier: Apache-2.0
"""Sources of an upstream's files: the cache, git repositories and wheels."""
