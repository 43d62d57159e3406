# SPDX-License-Identifier: Apache-2.0
"""A small model's folder, as tests of crosslab take it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models.model_folder import write_folder, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer as a folder has it."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def plain(tokenizer: Path, tmp_path: Path) -> Path:
    """Folder of a plain Llama."""
    return write_folder(tmp_path / "My Llama", "plain", tokenizer)
