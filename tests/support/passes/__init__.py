# SPDX-License-Identifier: Apache-2.0
"""Functions, batches and references that the tests of passes and attention kernels share."""
