# SPDX-License-Identifier: Apache-2.0
"""Objects of a runner, so that its users can link it with another C library.

The LGPL 2.1 (section 6) requires it for a static program that contains the GNU C library. They
have a tarball of their own, several times the size of a small model: a board does not need them.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from crosslab.artifact.tarball import write_tar
from crosslab.build.link import LinkRequest, link_options, objects_of, read_objects
from crosslab.cached_build import cached_build
from crosslab.errors import LabError
from crosslab.host.toolchain import CompilerKind
from groundwork.hashing import digest

SCRIPT = Path(__file__).with_name("relink.sh")
README = Path(__file__).with_name("objects_readme.md")
ARCHIVE = "objects.tar"
_LIST = "link.txt"


def relinking(request: LinkRequest, runner: Path, cache: Path) -> dict[str, Path]:
    """Objects, list and script that make ``runner`` again from ``model.tar`` beside them.

    Args:
        request: what it was linked from.
        runner: the program, as :func:`crosslab.build.link.link_runner` keeps it.
        cache: folder of builds.

    Returns:
        path in the artefact to file; nothing where the C library's licence asks for nothing
        (ziglang's musl).

    Raises:
        LabError: the model library has two objects of one name.
    """
    if request.toolchain.kind is not CompilerKind.CLANG or request.library is None:
        return {}
    key = digest(runner.parent.name, request.library, shlex.join(_words(request)))
    made = cached_build(cache, "relink", key, lambda out: _pack(request, cache, out))
    return {ARCHIVE: made / ARCHIVE, SCRIPT.name: SCRIPT}


def _words(request: LinkRequest) -> list[str]:
    """The compiler's options, without the linker's folder on this machine."""
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
    """Names that the model's objects have when ``model.tar`` is unpacked."""
    assert request.library is not None  # looked at before
    return list(dict.fromkeys(f"model/{name}" for name, _ in read_objects(request.library)))
