"""Named timeouts and retry policies: everything that waits has a deadline, everything that retries has a limit."""

from __future__ import annotations

from datetime import timedelta

from temporalio.common import RetryPolicy

BACKSTOP = timedelta(hours=6)
"""A quiet job is looked at this often, should every signal be lost."""

HEARTBEAT = timedelta(seconds=6)
"""An activity whose worker died is run again after this long."""

LOOK_TIMEOUT = timedelta(seconds=150)
"""Longer than the gate's own limit of one call (100 s)."""

CHANGE_TIMEOUT = timedelta(seconds=150)
RECORD_TIMEOUT = timedelta(seconds=60)
EVIDENCE_TIMEOUT = timedelta(seconds=20)
SETTLE_GRACE = timedelta(minutes=5)

PATIENT = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=5)
)
"""For looks and records: slurmctld or the database may be away for long; nothing is decided meanwhile.
Bounded by PATIENCE."""

PATIENCE = timedelta(hours=6)
"""Schedule-to-close of patient activities; after it the workflow looks again from the start."""

AFTER_PATIENCE = timedelta(minutes=1)

CHANGE_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=5)
)
"""For Slurm changes: each try looks before it acts and the gate refuses it after the step's own deadline,
so a late try changes nothing."""

ATTRIBUTION_GRACE = timedelta(seconds=30)
"""A slow answer may wait this long for a free worker."""
DRAIN_LIMIT = timedelta(minutes=3)
"""Schedule-to-close of draining: a node that cannot be drained by then stays in service."""

ONCE = RetryPolicy(maximum_attempts=1)
SWEEP_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=1.0, maximum_interval=timedelta(seconds=5)
)
SWEEP_HEARTBEAT = timedelta(seconds=10)

KEEPING_LIMIT = timedelta(hours=1)
"""Schedule-to-close of a round that keeps histories."""

KEEPING_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=10), maximum_interval=timedelta(minutes=5), maximum_attempts=5
)
