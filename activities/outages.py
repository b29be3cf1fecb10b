"""Outages of Slurm, accounting or the database as Temporal sees them: expected, retried, not worth a stack trace."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.audit.trouble import AuditUnavailable, KeyTaken, UnknownLife
from activities.slurm.errors import GateBroken, SlurmctldAway, SlurmdbdAway


@contextlib.contextmanager
def outages_are_retried() -> Iterator[None]:
    """Turns an outage into a retryable error that says in one line what is away."""
    try:
        yield
    except (KeyTaken, UnknownLife) as wrong:
        raise ApplicationError(str(wrong), type=type(wrong).__name__, non_retryable=True) from None
    except (SlurmctldAway, SlurmdbdAway, GateBroken, AuditUnavailable) as away:
        raise ApplicationError(str(away), type=type(away).__name__, category=ApplicationErrorCategory.BENIGN) from None


@contextlib.asynccontextmanager
async def outages_retried() -> AsyncIterator[None]:
    """The same, to stand beside `heartbeating` in one `async with`."""
    with outages_are_retried():
        yield
