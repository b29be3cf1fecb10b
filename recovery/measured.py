"""What metrics tell about one job: the witness that hang and straggler judges ask next to the log. Pure records.

"Not measured" is None and never "idle": a missing series proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from pydantic import Field

from recovery.records import Certainty, Finding, Nodes, Record, Role, Time

WENT_ON = timedelta(seconds=30)
"""A step completed this long after a change was seen shows that the training survived it: it is seen late, never early,
but the clocks of scheduler, log and metrics may differ."""


class MeasuredJob(Record):
    """A running or just ended job, as far as metrics are joined to it: by host and time."""

    job_id: str
    nodes: Nodes
    start_time: Time | None = Field(default=None, description="of this attempt; what changed before is not its fault")
    end_time: Time | None = Field(default=None, description="of this attempt; None: it still runs")
    attempt: int = 0
    raw_id: int | None = Field(default=None, description="Slurm's own number; None: the same as job_id")


class JobMetrics(Record):
    """What is known of one job from metrics alone."""

    tensor_idle: bool | None = Field(
        default=None, description="no tensor core of any of its hosts worked for the whole window; None: not measured"
    )
    fabric_idle: bool | None = Field(
        default=None, description="no traffic on the fabric of any of its hosts; None: not measured, or one host only"
    )
    idle_since: Time | None = Field(default=None, description="idle at least since then; None: not idle")
    absent_nodes: Nodes = Field(
        default=(), description="while all are idle: the host whose GPUs stand still, as all others' wait at full use"
    )
    findings: tuple[Finding, ...] = Field(default=(), description="detector 'metrics', trusted, earliest first")
    slow_nodes: Nodes = Field(default=(), description="hosts that fall out of what the job's others do")
    slow_how: str = Field(default="", description="by which measure, for people")
    blind: tuple[str, ...] = Field(default=(), description="what could not be seen, in words")


def with_survivals(findings: Iterable[Finding], step_at: datetime | None) -> tuple[Finding, ...]:
    """The findings of metrics, with those that training survived made benign. `step_at`: when the last step was
    completed."""
    return tuple(
        one.model_copy(
            update={
                "role": Role.BENIGN,
                "certainty": Certainty.SUSPECTED,
                "how": "the training went on afterwards",
            }
        )
        if one.at is not None and step_at is not None and step_at > one.at + WENT_ON
        else one
        for one in findings
    )
