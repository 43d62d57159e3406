# SPDX-License-Identifier: Apache-2.0
"""Objects of a runner, so that users can link it with another C library.

The LGPL 2.1 (section 6) requires this for a static program with the GNU C library. The objects have
a separate tarball, several times the size of a small model: a board does not need it.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from crosslab.artifact.tarball import write_tar
from crosslab.assemble.link import LinkRequest, link_options, objects_of, read_objects
from crosslab.cached_build import cached_build
from crosslab.errors import LabError
from crosslab.host.toolchain import CompilerKind
from groundwork.hashing import digest

SCRIPT = Path(__file__).with_name("relink.sh")
README = Path(__file__).with_name("objects_readme.md")
ARCHIVE = "objects.tar"
_LIST = "link.txt"


def relinking(request: LinkRequest, runner: Path, cache: Path) -> dict[str, Path]:
    """Return the files that link ``runner`` again with ``model.tar``: objects, list and script.

    Args:
        request: inputs of the link.
        runner: the program from :func:`crosslab.assemble.link.link_runner`.
        cache: folder of builds.

    Returns:
        file by path in the artefact; empty if the C library's licence does not require it
        (ziglang's musl).

    Raises:
        LabError: two objects have the same name.
    """
    if request.toolchain.kind is not CompilerKind.CLANG or request.library is None:
        return {}
    key = digest(runner.parent.name, request.library, shlex.join(_words(request)))
    packed = cached_build(cache, "relink", key, lambda out: _pack(request, cache, out))
    return {ARCHIVE: packed / ARCHIVE, SCRIPT.name: SCRIPT}


def _words(request: LinkRequest) -> list[str]:
    """Return the options of the link, without the linker's folder on this machine."""
    words = [*request.toolchain.cxx[1:], *link_options(request)]
    linker = "--ld-path=/"
    return [
        f"-fuse-ld={Path(word).name.removeprefix('ld.')}" if word.startswith(linker) else word
        for word in words
    ]


def _pack(request: LinkRequest, cache: Path, out: Path) -> None:
    with tempfile.TemporaryDirectory(dir=out) as at:
        parts = objects_of(request, cache, Path(at))
        first = {f"runner/{path.name}": path for path in parts.first}
        last = {f"runtime/{path.name}": path for path in parts.last}
        names = [*first, *_model(request), *last]
        if len(names) != len(parts.all):
            raise LabError(f"two objects of {request.library} or of the runtime have one name")
        text = "\n".join(shlex.quote(word) for word in [*_words(request), *names])
        listed = Path(at) / _LIST
        listed.write_text(text + "\n", encoding="utf-8")
        write_tar(out / ARCHIVE, {**first, **last, _LIST: listed})


def _model(request: LinkRequest) -> list[str]:
    """Return the names of the model's objects in the unpacked ``model.tar``."""
    assert request.library is not None  # relinking() checks it
    return list(dict.fromkeys(f"model/{name}" for name, _ in read_objects(request.library)))
