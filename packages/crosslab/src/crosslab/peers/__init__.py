# SPDX-License-Identifier: Apache-2.0
"""Other programs for language models on RVV, built from pinned sources and counted alike."""
