"""What is told of a job when a test about it fails: its audit log and Slurm's own records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.cluster import ClusterError
from tests.stage import Stage


def story(stage: Stage, job: int | str) -> str:
    lines = [f"audit log of job {job}:"]
    for event in stage.events(job):
        done = event.body.get("done", "")
        lines.append(f"  {event.at:%H:%M:%S.%f} [{event.attempt}] {event.kind} {done} {event.summary[:300]}")
    lines.append("accounting:")
    lines += [f"  {row}" for row in stage.slurm.attempts(job)]
    try:
        shown = stage.slurm.show(job)
    except ClusterError as gone:
        lines.append(f"scheduler: {gone}")
    else:
        kept = ("JobState", "Reason", "Restarts", "ExcNodeList", "NodeList", "StartTime", "EligibleTime", "Priority")
        lines.append("scheduler: " + " ".join(f"{key}={shown.get(key)}" for key in kept))
    return "\n".join(lines)


@contextlib.contextmanager
def told_on_failure(stage: Stage, *jobs: int | str) -> Iterator[None]:
    """Adds the jobs' stories to an assertion that fails inside."""
    try:
        yield
    except AssertionError as failure:
        for job in jobs:
            failure.add_note(story(stage, job))
        raise
