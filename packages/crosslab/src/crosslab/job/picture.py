# SPDX-License-Identifier: Apache-2.0
"""Pictures of a terminal as SVG: the main job's answer, and a chat."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import require_qemu
from crosslab.job.summary import summary
from crosslab.run.emulator import GuestMachine
from groundwork.command_line import Parser, output_file
from groundwork.files import atomic_write

WIDTH = 84
ABOUT = "Draw the report of a finished main job, or a chat with a finished model."
#: Options of the chat, which make it the same one each time.
CHAT = ("chat", "--temperature", "0")


def main(argv: Sequence[str]) -> int:
    """Draw as :data:`ABOUT` says.

    Raises:
        UserError: the report or the model is missing, or another version wrote the report.
        LabError: the chat ends in an error.
    """
    parser = Parser(prog="crosslab picture", description=ABOUT)
    parser.add_argument("--report", type=Path, default=Path("out/build_and_test.json"))
    parser.add_argument("--output", type=output_file, required=True, metavar="FILE.svg")
    parser.add_argument(
        "--chat",
        type=Path,
        metavar="FOLDER",
        help="folder of a finished model, which answers --say in the emulator",
    )
    parser.add_argument("--say", nargs="+", default=[], metavar="TEXT", help="a message each")
    args = parser.parse_args(argv)
    if bool(args.chat) != bool(args.say):
        parser.error("--chat needs --say, and --say needs --chat")
    console = Console(record=True, file=io.StringIO(), width=WIDTH, highlight=False)
    if args.chat:
        name = _draw_chat(console, args.chat, args.say)
    else:
        name = _draw_answer(console, args.report)
    atomic_write(args.output, console.export_svg(title=f"{name} on an emulated RVV CPU"))
    return 0


def _draw_answer(console: Console, path: Path) -> str:
    """Draw the main job's report; return the model's name."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        console.print("[green]$[/] nox -s build_and_test")
        console.print(f"[dim]  the question:[/] {escape(report['prompt'])}")
        console.print(f"[bold]{escape(report['text'])}[/]\n")
        console.print(summary(report))
        return str(report["model"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"no report of this version in {path}: {error!r}",
            remedy="make it with: nox -s build_and_test",
        ) from error


def _draw_chat(console: Console, folder: Path, said: Sequence[str]) -> str:
    """Draw a chat of these messages; return the model's name."""
    run = folder / "run.sh"
    if not run.is_file():
        raise UserError(
            f"{folder} is not a finished model: it has no run.sh",
            remedy="name a folder of dist/, which nox -s build_and_test makes",
        )
    run = run.resolve()
    emulator = shlex.join([str(require_qemu().path), "-cpu", GuestMachine().cpu])
    with tempfile.TemporaryDirectory() as at:
        saved = Path(at) / "chat.json"
        done = subprocess.run(
            [str(run), *CHAT],
            input="".join(f"{line}\n" for line in (*said, f"/save {saved}")),
            env={**os.environ, "MLC_RVV_EMULATOR": emulator},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not saved.is_file():
            raise LabError(f"{run} ended with exit code {done.returncode}:\n{done.stderr.strip()}")
        messages = json.loads(saved.read_text(encoding="utf-8"))
    console.print(f"[green]$[/] ./run.sh {' '.join(CHAT)}")
    for message in messages:
        text = escape(message["content"])
        console.print(f"[green]>[/] {text}" if message["role"] == "user" else f"[bold]{text}[/]")
    return folder.name
