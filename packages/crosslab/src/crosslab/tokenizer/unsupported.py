# SPDX-License-Identifier: Apache-2.0
"""The error for a tokenizer that the runner cannot run."""

from __future__ import annotations

from crosslab.errors import LabError


class UnsupportedTokenizerError(LabError):
    """The tokenizer needs a feature that the runner does not have."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the runner does not support the model's tokenizer: {what}",
            remedy="give the runner token ids instead of text: --tokens ID,ID,...",
            exit_code=2,
        )
