# SPDX-License-Identifier: Apache-2.0
"""Exceptions of forkpatch."""

from __future__ import annotations

from groundwork.errors import USER_MISTAKE, CommandError


class ForkError(CommandError):
    """A failure that ends a verb.

    The exit code is 2 for a mistake in the user's input: options, and the fork's own files (lock,
    settings, series, patches, overlays). It is 1 for a failure of an upstream, of this machine or
    of forkpatch, and for findings of a check.
    """


class UserError(ForkError):
    """A mistake in the input: an unknown name, a bad option, an unusable file."""

    exit_code = USER_MISTAKE


class UnsafePathError(UserError):
    """A path that would leave the tree, or reach into ``.git`` or through a symbolic link."""


class PatchError(UserError):
    """A patch or series that cannot be read, or does not apply exactly."""


class SourceError(ForkError):
    """A source cannot give the upstream; the next source is tried."""


class IntegrityError(ForkError):
    """Content with another hash than pinned, after which the verb stops."""
