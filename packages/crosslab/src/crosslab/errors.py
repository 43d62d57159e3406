# SPDX-License-Identifier: Apache-2.0
"""Exception types of crosslab."""

from __future__ import annotations

from groundwork.errors import USER_MISTAKE, CommandError


class LabError(CommandError):
    """A failure of a build, a run or a check (exit code 1, or the given code)."""


class UserError(LabError):
    """A mistake of the user: bad input, a missing option or tool (exit code 2)."""

    exit_code = USER_MISTAKE


def supply_mlc(session: str) -> str:
    """Return the remedy for a missing MLC-LLM, with the name of a nox session."""
    return (
        f"give a git clone of https://github.com/mlc-ai/mlc-llm: nox -s {session} -- "
        "--mirror mlc-llm=PATH_OR_URL"
    )
