# SPDX-License-Identifier: Apache-2.0
"""``crosslab model MODEL``: the main job on a model of the user's, and a tarball of it.

MODEL is a Hugging Face folder, a GGUF file, ``hf:OWNER/NAME[@REVISION]`` or a pinned model.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from crosslab.artifact.manifest import file_entry
from crosslab.artifact.package import package
from crosslab.errors import UserError
from crosslab.job.job_options import MODEL, parse_job
from crosslab.job.main_job import run

_console = Console(stderr=True, highlight=False, soft_wrap=True)


def main(argv: Sequence[str]) -> int:
    """Make the model, check it, and put it into a tarball; return 1 if its answer is wrong.

    Raises:
        UserError: the model, an option, a tree or a tool is missing or does not fit.
        LabError: a step fails.
    """
    job = parse_job(argv, MODEL)
    if job.applied is None:
        raise UserError(
            "a tarball lists the patches in its trees, and --applied FILE is missing",
            remedy="use nox -s model -- MODEL, which adds --applied",
        )
    code = run(job)
    if code == 0:
        for tarball in package([job.dist], job.project / "dist"):
            _console.print("[bold]tarball[/]", tarball)
            _console.print(f"  sha256 {file_entry('', tarball).sha256}")
    return code
