# SPDX-License-Identifier: Apache-2.0
"""The installed command ``accelerator``."""

import importlib
import shlex
import sys

from groundwork.errors import USER_MISTAKE, CommandError, exit_code_of


def main() -> int:
    """Run the command and return its exit code; Ctrl-C also ends it while modules are imported."""
    return exit_code_of(_run, CommandError)


def _run() -> int:
    try:
        command = importlib.import_module("accelerator.cli")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "crosslab":
            raise
        raise CommandError(
            "accelerator needs the package mlc-rvv; in a clone of its repository type: "
            f"nox -s cost -- {shlex.join(sys.argv[1:])}; costmodel runs without it",
            exit_code=USER_MISTAKE,
        ) from None
    return int(command.main())


if __name__ == "__main__":
    sys.exit(main())
