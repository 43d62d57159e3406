# SPDX-License-Identifier: Apache-2.0
"""The Dask scheduler for the workers of zoo and bench, see :mod:`crosslab.remote`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from distributed import Scheduler

from crosslab.address import Address
from crosslab.errors import UserError
from crosslab.remote import ATTEMPTS


def serve_scheduler(address: Address, say: Callable[[str], None]) -> None:
    """Run a Dask scheduler until stopped.

    Raises:
        UserError: the address is in use.
    """
    logging.disable(logging.INFO)  # Dask logs every connection

    async def run() -> None:
        try:
            async with Scheduler(
                host=address.host,
                port=address.port,
                dashboard_address="127.0.0.1:0",
                allowed_failures=ATTEMPTS - 1,
            ) as scheduler:
                say(f"scheduler at {scheduler.address.removeprefix('tcp://')}")
                await scheduler.finished()
        except OSError as error:
            why = f"{address}: {error.strerror or error}"
            raise UserError(why, remedy="give another --port") from error

    asyncio.run(run())
