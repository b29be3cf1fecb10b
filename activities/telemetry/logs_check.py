"""Tries a log store for `relight doctor telemetry`: whether it answers, and whether its lines say whose they are.

It asks one question about the last quarter of an hour and changes nothing.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from pydantic import Field

from activities.telemetry.http_logs import LogTrouble
from activities.telemetry.logsource import JOB_NAME, NS, Line
from activities.telemetry.store_reader import Store
from recovery.records import Nodes, Record

BACK_S = 900
LINES = 500
AHEAD_S = 60
"""More than this ahead of our clock and hangs are seen late: the store's times are the nodes'."""


class LogsReport(Record):
    """What was found. `problems` are what an operator should mend."""

    ok: bool
    store: str
    trouble: str = Field(default="", description="why nothing could be asked")
    answered_in_s: float | None = None
    lines: int = Field(default=0, description="lines looked at, at most 500, the newest of the last 15 minutes")
    jobs: int = Field(default=0, description="jobs they are of")
    nodes: Nodes = Field(default=(), description="nodes they say they were printed on")
    example: str = Field(default="", description="how one of them is read: job, node and stream")
    newest_age_s: float | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


async def check_logs(store: Store) -> LogsReport:
    """Asks the store as relight would. Never raises for what the store does."""
    begun, now = time.monotonic(), time.time_ns()
    try:
        page = await store.sample(now - BACK_S * NS, now + BACK_S * NS, LINES, ends=begun + store.deadline_s)
    except LogTrouble as trouble:
        return LogsReport(ok=False, store=store.name, trouble=str(trouble), problems=(f"{store.name} {trouble}",))
    finally:
        took_s = round(time.monotonic() - begun, 3)
        await store.close()
    problems, notes = _wrong(store.shape.job_field, page.lines), [page.note] if page.note else []
    nodes = tuple(line.node for line in page.lines if line.node)
    if page.lines and not nodes:
        notes.append("no line says on which node it was printed (telemetry.logs.node_fields); relight does without")
    newest = max((line.at for line in page.lines), default=None)
    age_s = None if newest is None else round((now - newest) / NS, 1)
    if age_s is not None and age_s < -AHEAD_S:
        when = datetime.fromtimestamp((newest or 0) / NS, UTC)
        notes.append(f"its newest line is of {when:%H:%M:%S} UTC, {-age_s:.0f} s ahead of this host: check the clocks")
    return LogsReport(
        ok=not problems,
        store=store.name,
        answered_in_s=took_s,
        lines=len(page.lines),
        jobs=len({line.job for line in page.lines}),
        nodes=nodes,
        example=_example(page.lines),
        newest_age_s=age_s,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _wrong(field: str, lines: tuple[Line, ...]) -> list[str]:
    if not lines:
        return [
            f"no line of the last {BACK_S // 60} minutes has {field} (telemetry.logs.job_field): either no job has "
            "printed, or the shipper does not set it, or telemetry.logs.selector leaves them out"
        ]
    strange = sorted({line.job for line in lines if not JOB_NAME.fullmatch(line.job)})
    if strange:
        return [f"{field} is {strange[0]!r:.60} in some lines, expected a job's number: their jobs are not seen"]
    return []


def _example(lines: tuple[Line, ...]) -> str:
    if not lines:
        return ""
    line = lines[-1]
    return f"job {line.job}, node {line.node or 'not told'}, stream {line.stream}"
