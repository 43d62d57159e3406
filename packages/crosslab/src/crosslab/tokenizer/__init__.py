# SPDX-License-Identifier: Apache-2.0
"""Chat templates and tokenizers, for this machine and for the runner."""
