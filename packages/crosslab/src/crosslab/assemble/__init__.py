# SPDX-License-Identifier: Apache-2.0
"""Cross-compilation of kernels, runtime and runner, each step cached by its inputs."""
