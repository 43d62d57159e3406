# SPDX-License-Identifier: Apache-2.0
"""The session of the cost model: work files from the lab, then the estimate or a simulation."""

from __future__ import annotations

import argparse
from pathlib import Path

import nox

from sessions.environments import install, run_module
from sessions.trees import WORK, apply, check_device, split_options

WORK_SUFFIX = ".work.json"
STUDIED = ("gpt2", "smollm2")  # models of the studies that docs/cost shows


def estimate(session: nox.Session) -> None:
    """Run the cost model; a model that is no work file is first made one by the lab.

    With ``--accelerator`` the layers are lowered to a device's instructions and simulated.
    """
    of_trees, of_cost = split_options(session, "costmodel")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--accelerator")
    parser.add_argument("--model")
    parser.add_argument("--study")
    parser.add_argument("--of", nargs="+")
    known, rest = parser.parse_known_args(of_cost)
    if known.accelerator:
        check_device(session, known.accelerator)
    models = [known.model] if known.model else list(STUDIED) if known.study else []
    work = known.of or [m for m in models if m.endswith(WORK_SUFFIX)]
    if models and not work:
        install(session, "forkpatch")
        trees = apply(session, of_trees)
        install(session, "accelerator-study", "crosslab", "tvm", release=trees.release)
        work = [str(WORK / "workloads" / f"{Path(m).stem}{WORK_SUFFIX}") for m in models]
        for model, path in zip(models, work, strict=True):
            words = ("workload", model, "--output", path)
            run_module(session, "crosslab", *words, FORKPATCH_TREES=str(trees.root))
    else:
        install(session, "accelerator-study", "crosslab")
    if known.study:
        rest += ["--study", known.study, "--of", *work]
    elif known.model:
        rest += ["--model", *work]
    if known.accelerator:
        run_module(session, "accelerator", "layers", known.accelerator, *rest)
    else:
        run_module(session, "costmodel", *rest)
