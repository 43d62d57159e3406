# SPDX-License-Identifier: Apache-2.0
"""A case of the survey in the emulator, by the road of ``crosslab torch``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from crosslab.build.recipe_options import read_recipe
from crosslab.build.runner import build_runner
from crosslab.errors import LabError
from crosslab.run.emulator import GuestMachine
from torchroad.job import judge, recipe_of
from torchroad.program import TorchModel, import_model
from torchroad.survey.outcome import Verdict

FACTORY = """\
from torchroad.survey.cases import all_cases

def make():
    return all_cases({kinds!r})[{name!r}][1]()
"""


def judge_on_board(name: str, args: argparse.Namespace, scratch: Path) -> str:
    """The verdict on a case in the emulator, or what fails.

    Args:
        name: of the case.
        args: the survey's options.
        scratch: folder for files.
    """
    shared = read_recipe(args, "q0f32")
    with tempfile.TemporaryDirectory(dir=scratch) as temporary:
        folder = Path(temporary)
        file = folder / "case.py"
        file.write_text(FACTORY.format(kinds=args.kinds, name=name), encoding="utf-8")
        (folder / "program").mkdir()
        try:
            model = TorchModel(file, "make", {})
            program = import_model(model, args.tvm_tree, folder / "program")
            runner = build_runner(recipe_of(shared, program), args.cache)
            machine = GuestMachine(vlen=shared.vlens[0])
            result = judge(program, runner, machine, None, args.cache, folder)
        except LabError as error:
            return f"failed: {error.what}"
    return Verdict.RIGHT if result.right else Verdict.WRONG
