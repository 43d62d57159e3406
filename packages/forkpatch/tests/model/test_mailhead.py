# SPDX-License-Identifier: Apache-2.0
"""Dates in the heads of mails."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from forkpatch.model.mailhead import git_date


def test_git_has_dates_from_1970_on() -> None:
    assert git_date(datetime.fromtimestamp(0, UTC), "1 Jan 1970 00:00:00 +0200") == "0 +0200"
    with pytest.raises(ValueError, match="no dates before 1970"):
        git_date(datetime.fromtimestamp(-1, UTC), "31 Dec 1969 23:59:59 +0000")
