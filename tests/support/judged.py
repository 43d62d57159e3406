# SPDX-License-Identifier: Apache-2.0
"""As much of a job as the judge of an answer asks for."""

from __future__ import annotations

from dataclasses import dataclass

from crosslab.assemble.offload import Offload


@dataclass(frozen=True)
class JudgedJob:
    """See :class:`crosslab.job.job_options.Job`."""

    offload: Offload | None
    max_new: int
    chunk: int
    tolerance: float
    int8: bool = False
    int8_cache: bool = False
    rounds: bool = True
    halves: bool = False


def judged_job(device: Offload, max_new: int, chunk: int) -> JudgedJob:
    """The job of a model whose products a device computes."""
    return JudgedJob(device, max_new, chunk, device.tolerance)
