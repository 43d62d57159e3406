# SPDX-License-Identifier: Apache-2.0
"""Modules on the host: exported, imported, compiled for LLVM, and compared with torch.

The importer is what is measured, so that the code is TVM's own for the host. Each case has a
process of its own, in which it may fail.
"""

from __future__ import annotations

import multiprocessing
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.target import codegen

from crosslab.errors import LabError, UserError
from crosslab.host.objects import shared_linker
from crosslab.host.toolchain import find_native
from torchroad.example import Example, make_example
from torchroad.importer import function_of

MODULES = Path(__file__).with_name("modules.toml")
TOLERANCE = 1e-5  # of the largest value of an output
TIMEOUT = 180.0  # seconds for a case
Factory = Callable[[], tuple[Any, tuple[Any, ...]]]


class Verdict(StrEnum):
    """Result of a case; FAILED is a refusal without a name: ours or TVM's fault."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """A case and its result.

    Attributes:
        error: largest difference in relation to an output's largest value.
        told: the refusal, or the fault.
    """

    name: str
    verdict: Verdict
    error: float = 0.0
    told: str = ""
    seconds: float = 0.0


def error_of(example: Example) -> float:
    """Largest difference from torch of a module compiled for this machine.

    Raises:
        UserError: the module is refused.
        LabError: TVM's importer fails.
    """
    _, module, params = function_of(example, {})
    linker = shared_linker(find_native().cc, codegen.llvm_get_system_triple())
    built = tvm.compile(relax.get_pipeline("zero")(module), target="llvm")
    machine = relax.VirtualMachine(built.jit(fcompile=linker), tvm.cpu())
    inputs = [tvm.runtime.tensor(t.detach().contiguous().numpy()) for t in example.tensors()]
    made = machine["main"](*inputs, *([list(params.values())] if params else []))
    made = [made] if isinstance(made, tvm.runtime.Tensor) else list(made)
    wanted = [value.detach().numpy() for value in example.outputs()]
    if len(made) != len(wanted):
        return float("inf")
    return max(_difference(one.numpy(), other) for one, other in zip(made, wanted, strict=True))


def _difference(made: Any, wanted: Any) -> float:
    if made.shape != wanted.shape:
        return float("inf")
    if not wanted.size:
        return 0.0
    made, wanted = made.astype(np.float64), wanted.astype(np.float64)
    same = (made == wanted) | (np.isnan(made) & np.isnan(wanted))
    if same.all():
        return 0.0
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30)
    found = np.where(same, 0.0, np.abs(made - wanted)) / largest
    return float(np.nan_to_num(found, nan=np.inf).max())


def judge(name: str, factory: Factory) -> Outcome:
    """The verdict on one case, in this process."""
    begin = time.perf_counter()
    torch.manual_seed(0)
    try:
        error = error_of(make_example(factory, Path(name)))
        found = Outcome(name, Verdict.RIGHT if error <= TOLERANCE else Verdict.WRONG, error)
    except UserError as refused:
        found = Outcome(name, Verdict.REFUSED, told=refused.what)
    except LabError as fault:
        found = Outcome(name, Verdict.FAILED, told=fault.what)
    except Exception as fault:
        found = Outcome(name, Verdict.FAILED, told=f"{type(fault).__name__}: {fault}")
    return replace(found, seconds=time.perf_counter() - begin)


def _judge_into(pipe: Any, name: str, factory: Factory) -> None:
    torch.set_num_threads(1)
    pipe.send(judge(name, factory))


def judged(name: str, factory: Factory) -> Outcome:
    """The verdict on one case, in a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_judge_into, args=(theirs, name, factory))
    process.start()
    theirs.close()
    try:
        if ours.poll(TIMEOUT):
            return ours.recv()  # type: ignore[no-any-return]
        told = f"no result in {TIMEOUT:.0f} s"
    except EOFError:
        told = "the process ended"
    finally:
        process.kill()
        process.join()
    return Outcome(name, Verdict.FAILED, told=told)


def module_cases() -> Iterator[tuple[str, Factory]]:
    """Modules of torch.nn in each setting of the table."""
    for name, settings in tomllib.loads(MODULES.read_text(encoding="utf-8")).items():
        for number, setting in enumerate(settings, 1):
            yield f"{name} {number}", partial(_module, name, setting)


def _module(name: str, setting: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    given = dict(setting)
    shapes, integers = given.pop("shapes", [[2, 6]]), given.pop("integers", 0)
    module = getattr(torch.nn, name)(*given.pop("args", []), **given).eval()
    if integers:
        return module, tuple(torch.randint(integers, shape) for shape in shapes)
    return module, tuple(torch.randn(shape) for shape in shapes)
