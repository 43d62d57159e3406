# SPDX-License-Identifier: Apache-2.0
"""The files of a GGUF model that is split: NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from pathlib import Path

from crosslab.errors import UserError

PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")


def part_files(source: Path) -> list[Path]:
    """Return the files of a model by the name of its first: all parts, or the file alone.

    Raises:
        UserError: the name is that of another part, or a part is missing.
    """
    if not (match := PART.search(source.name)):
        return [source]
    count = int(match[2])
    files = [
        source.with_name(PART.sub(f"-{number:05}-of-{match[2]}", source.name))
        for number in range(1, count + 1)
    ]
    if int(match[1]) != 1:
        raise UserError(
            f"{source.name} is not the first part of its model", remedy=f"give {files[0]}"
        )
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(
            f"{source.name}: {len(missing)} of {count} parts are not beside it: "
            f"{', '.join(missing[:3])}",
            remedy="download all parts into one folder",
        )
    return files
