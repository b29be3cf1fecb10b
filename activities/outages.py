"""Outages of Slurm, accounting or the database as Temporal sees them: expected, retried, not worth a stack trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.audit.trouble import AuditUnavailable
from activities.slurm.errors import GateBroken, SlurmctldAway, SlurmdbdAway


@contextlib.contextmanager
def outages_are_retried() -> Iterator[None]:
    """Turns an outage into a retryable error that says in one line what is away."""
    try:
        yield
    except (SlurmctldAway, SlurmdbdAway, GateBroken, AuditUnavailable) as away:
        raise ApplicationError(str(away), type=type(away).__name__, category=ApplicationErrorCategory.BENIGN) from None
