# SPDX-License-Identifier: Apache-2.0
"""Exceptions of forkpatch."""

from __future__ import annotations

from groundwork.errors import USER_MISTAKE, CommandError


class ForkError(CommandError):
    """A failure that ends a verb.

    The exit code is 2 for a mistake in what the user gave: options, and the fork's own files,
    which are lock, settings, series, patches and overlays. It is 1 for a failure of an upstream,
    of this machine or of forkpatch, and for findings that a verb was asked to look for.
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
