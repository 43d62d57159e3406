# SPDX-License-Identifier: Apache-2.0
"""Sources of Python packages for uv: those that pip's configuration names.

uv installs an environment in seconds where pip takes minutes, but does not read pip's settings.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from groundwork.offline import offline

#: Options of uv for packages that are pinned: any source may bring them, with the system's
#: certificates.
OPTIONS = ("--native-tls", "--index-strategy", "unsafe-best-match")
#: Settings of pip and uv's variables for them; they do not show in a log, as an address may hold a
#: password.
_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
_TRUE = ("1", "true", "yes", "on")


@cache
def pip_settings(python: Path) -> dict[str, str]:
    """Return the settings of a Python's pip by name; variables override files."""
    command = [str(python), "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    pairs = [line.partition("=") for line in done.stdout.splitlines()]
    return {
        key.removeprefix(section): ast.literal_eval(text)
        for section in ("global.", "install.", ":env:.")
        for key, _, text in pairs
        if text and key.startswith(section)
    }


def uv_sources(settings: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return ``uv pip install``'s options for pip's settings, and its variables not set yet."""
    # --offline sets pip's variable and uv's own, with which uv takes packages from its cache.
    asked = settings.get("no-index", "").lower() in _TRUE and not offline()
    no_index = ["--no-index"] if asked else []
    variables = {
        name: (",".join(value.split()) if key == "find-links" else value)
        for key, name in _VARIABLES.items()
        if (value := settings.get(key)) and name not in os.environ
    }
    return [*OPTIONS, *no_index], variables
