"""Heartbeats while an activity works, so that another worker takes over within seconds of this one's death."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from temporalio import activity

BEAT_S = 1.0


@contextlib.asynccontextmanager
async def heartbeating(*details: object) -> AsyncIterator[None]:
    """Heartbeats every second until the block ends. Details stay tiny: over 2 MB would kill the activity."""

    async def beat() -> None:
        while True:
            activity.heartbeat(*details)
            await asyncio.sleep(BEAT_S)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating
