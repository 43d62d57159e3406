# SPDX-License-Identifier: Apache-2.0
"""The one exception type of the engine, and its kinds."""

from __future__ import annotations

from common.errors import USER_MISTAKE, CommandError


class ForkError(CommandError):
    """Something the engine cannot go on with.

    Who has to do something about it decides the exit code. What the user gave is the user's,
    whoever wrote it: options, and the fork's own files, which are lock, settings, series,
    patches and overlays. What is wrong there is 2. What upstreams, this machine and we do
    wrong is 1; so is what a verb was asked to look for, and found.
    """


class UserError(ForkError):
    """A mistake in what was given: an unknown name, a bad option, a file that cannot be used."""

    exit_code = USER_MISTAKE


class UnsafePathError(UserError):
    """A path that would leave the tree, or reach into ``.git`` or through a symbolic link."""


class PatchError(UserError):
    """A patch or series that cannot be read, or does not apply exactly."""


class SourceError(ForkError):
    """A source cannot give the upstream; the next source is tried."""


class IntegrityError(ForkError):
    """Content that does not have the hash it was pinned by. Nothing goes on after this."""
