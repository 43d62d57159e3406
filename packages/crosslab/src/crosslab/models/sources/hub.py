# SPDX-License-Identifier: Apache-2.0
"""Download of models from a Hugging Face hub, pinned to a commit."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from crosslab.errors import LabError, UserError
from groundwork import offline
from groundwork.errors import remedy_for

HUB = "hf:"
FILES = ("*.safetensors", "*.json", "*.jinja", "README.md", "LICENSE*")
_REFERENCE = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_console = Console(stderr=True, highlight=False)


def parse_reference(source: str) -> tuple[str, str]:
    """Return repository and revision (default "main") of ``hf:OWNER/NAME[@REVISION]``.

    Raises:
        UserError: the source does not have this form.
    """
    match = _REFERENCE.fullmatch(source.removeprefix(HUB))
    if not match:
        raise UserError(
            f"{source!r} is not a model on the hub", remedy=f"use {HUB}OWNER/NAME[@REVISION]"
        )
    return match[1], match[2] or "main"


def download(source: str, cache: Path) -> tuple[Path, str, str]:
    """Download a model from the hub; continue an interrupted download.

    The hub's library reads HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE.

    Args:
        source: ``hf:OWNER/NAME[@REVISION]``.
        cache: folder of finished builds; the library's own cache lies in it.

    Returns:
        folder of the files, their commit, and the licence that the hub names.

    Raises:
        UserError: the repository or revision does not exist, or the hub cannot be reached.
        LabError: the download fails for another reason, such as a full disk.
    """
    # Imported here: the import takes a second, which other sources do not need.
    hub = importlib.import_module("huggingface_hub")
    repository, revision = parse_reference(source)
    commit, licence = revision, ""
    try:
        if not _COMMIT.fullmatch(revision):
            commit, licence = _look_up(hub.HfApi(), repository, revision)
            _console.print(f"{HUB}{repository}@{commit}", markup=False, soft_wrap=True)
        folder = hub.snapshot_download(
            repository, revision=commit, allow_patterns=list(FILES), cache_dir=cache / "hub"
        )
    except LabError:
        raise
    except Exception as error:  # of the hub's library, the system and the HTTP library
        if isinstance(error, OSError) and remedy_for(error.errno):
            raise LabError.from_os_error(error) from error
        if offline.offline():
            what = f"{source} was not downloaded before, and --offline downloads nothing"
            raise UserError(what, remedy=f"{offline.REMEDY}, or give a folder") from error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        status = getattr(getattr(error, "response", None), "status_code", None)
        kind = UserError if status in (None, 401, 403, 404) else LabError
        raise kind(
            f"{source} cannot be downloaded: {reason}",
            remedy="check name, revision and network; a model that asks for consent needs "
            "HF_TOKEN; what is on this machine needs no network: give its folder",
        ) from error
    return Path(folder), commit, licence


def _look_up(api: Any, repository: str, revision: str) -> tuple[str, str]:
    """Return the commit of a branch or tag, and the licence in the model's card."""
    about = api.model_info(repository, revision=revision)
    if about.sha is None:
        raise LabError(f"the hub gives no commit of {repository}@{revision}")
    licence = about.card_data.get("license") if about.card_data else None
    return str(about.sha), licence if isinstance(licence, str) else ""
