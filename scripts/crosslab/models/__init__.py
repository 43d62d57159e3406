# SPDX-License-Identifier: Apache-2.0
"""Language models: import, tokenizer, parameters, and a reference to compare with."""
