"""`relight audit`: keeps the audit store in agreement with the workflows' histories, and within its bounds.

Lost rows are inserted and old jobs are deleted only where that is asked for; no row is ever changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from activities.audit.comparing import Discrepancy, Problem
from activities.histories import Histories
from activities.kept_histories import KeptHistories
from activities.pruning import Pruned, Pruner
from activities.verifying import Tally, Verifier
from workers.cli_jobs import opened_store
from workers.connect import TemporalAway, connect
from workers.naming import check_cluster, job_of, login_name, settings_of, span_of
from workers.screen import UNUSABLE, Trouble, moment, print_json, say
from workers.settings import ConfigError, Settings

T = TypeVar("T")

MOST_TOLD = 1000
"""Discrepancies told one by one; all are counted."""

TELL_EVERY_S = 10.0

LEAST_AGE = timedelta(days=30)
"""Younger lives are not pruned: the scorecard and post-mortems look at them."""

_WORDS = {
    Problem.GAP: "missing rows",
    Problem.DIFFERENT: "rows that differ from the history",
    Problem.UNTOLD: "rows that no history tells",
    Problem.LIFE: "missing or foreign lives",
    Problem.ATTEMPT: "missing attempts",
    Problem.NO_HISTORY: "runs without a history that should still be there",
    Problem.UNREADABLE: "histories that cannot be read",
}


def verify(
    config: Path | None,
    *,
    cluster: str | None,
    job: str | None,
    since: str,
    repair: bool,
    rate: float,
    as_json: bool,
) -> None:
    span = span_of(since, "--since")
    settings = settings_of(config)
    if cluster is not None:
        check_cluster(cluster, settings)
    asked = job_of(job, settings) if job is not None else None
    if asked is not None and cluster not in (None, asked[0]):
        raise Trouble(f"--job {job} is not of cluster {cluster}", UNUSABLE)
    names = [asked[0]] if asked is not None else [cluster] if cluster is not None else sorted(settings.clusters)
    begin = datetime.now(UTC) - span
    found: list[Discrepancy] = []

    def tell(one: Discrepancy) -> None:
        if len(found) < MOST_TOLD:
            found.append(one)
            if not as_json:
                say(_line(one))

    async def run(client: Client) -> dict[str, Tally]:
        histories = Histories(client, per_second=rate)
        told = {}
        for name in names:
            kept = KeptHistories(settings.evidence_dir, name)
            verifier = Verifier(store, histories, kept, name, tell, repair=repair)
            telling = asyncio.create_task(_progress(verifier, begin, asked[1] if asked else None))
            try:
                told[name] = await verifier.verify(begin, asked[1] if asked else None)
            finally:
                telling.cancel()
        return told

    try:
        with opened_store(settings) as store:
            tallies = with_temporal(settings, run)
    except Trouble as trouble:  # not to be taken for gaps
        raise Trouble(str(trouble), UNUSABLE) from None
    clean = all(tally.clean for tally in tallies.values())
    if as_json:
        print_json({"clean": clean, "since": begin, "clusters": tallies, "found": found,
                    "left_out": _all(tallies) - len(found)})  # fmt: skip
    else:
        for name, tally in tallies.items():
            for line in _summary(name, tally, since, repair):
                say(line)
    if not clean:
        raise SystemExit(1)


def prune(config: Path | None, *, older_than: str, cluster: str | None, dry_run: bool, by: str, as_json: bool) -> None:
    span = span_of(older_than, "--older-than")
    if span < LEAST_AGE:
        raise Trouble(f"--older-than {older_than} is too short, expected at least {LEAST_AGE.days}d", UNUSABLE)
    settings = settings_of(config)
    if cluster is not None:
        check_cluster(cluster, settings)
    before = datetime.now(UTC) - span
    told: dict[str, Pruned] = {}
    with opened_store(settings) as store:
        for name in [cluster] if cluster is not None else sorted(settings.clusters):
            pruner = Pruner(store, settings.evidence_dir, name, dry=dry_run)
            try:
                told[name] = pruner.prune(before, by or login_name())
            except OSError as error:
                raise Trouble(
                    f"{error.filename} cannot be deleted: {error.strerror}. Run it on the worker's host, as its user; "
                    f"{pruner.done.lives} jobs were deleted so far, and the rest can be done later"
                ) from None
    if as_json:
        print_json({"before": before, "dry_run": dry_run, "clusters": told})
        return
    for name, done in told.items():
        for line in _pruned(name, done, before, dry_run=dry_run):
            say(line)
    if dry_run:
        say("nothing was deleted; the same without --dry-run does it")


def _pruned(cluster: str, done: Pruned, before: datetime, *, dry_run: bool) -> list[str]:
    word = "would be deleted" if dry_run else "were deleted"
    lines = [
        f"{cluster}: {done.lives} jobs that ended before {moment(before)} {word}, with {done.events} rows, "
        f"{done.attempts} attempts, {done.others} other records ({done.row_bytes:,} bytes of text) and "
        f"{done.files} files ({done.file_bytes:,} bytes)"
    ]
    lines += [f"{cluster}: {count} as old are kept: {why}" for why, count in sorted(done.kept.items())]
    return lines


def with_temporal(settings: Settings, work: Any) -> Any:
    """Runs `work` with a client; what is wrong with Temporal ends the command."""

    async def run() -> Any:
        client = await connect(settings.temporal)
        outcome: Coroutine[Any, Any, Any] = work(client)
        return await outcome

    try:
        return asyncio.run(run())
    except ConfigError as error:
        raise Trouble(str(error), UNUSABLE) from None
    except TemporalAway as error:
        raise Trouble(str(error)) from None
    except RPCError as error:
        raise Trouble(f"Temporal stopped answering: {error.message}. Run it again when it is back") from None


async def _progress(verifier: Verifier, since: datetime, job_id: str | None) -> None:
    """A line on stderr now and then, for those who wait."""
    began = time.monotonic()
    await asyncio.sleep(TELL_EVERY_S)
    total = 0
    with contextlib.suppress(RPCError):
        total = await verifier.histories.count(verifier.cluster, since, job_id)
    while True:
        tally = verifier.tally
        took = time.monotonic() - began
        print(f"relight: {verifier.cluster}: {tally.runs} of about {total} histories, {tally.rows} rows, {took:.0f} s",
              file=sys.stderr)  # fmt: skip
        await asyncio.sleep(TELL_EVERY_S)


def _line(one: Discrepancy) -> str:
    what = {
        Problem.GAP: "missing",
        Problem.DIFFERENT: "differs",
        Problem.UNTOLD: "no history tells",
    }.get(one.problem, one.problem.value.replace("_", " "))
    row = f" {moment(one.at)} {one.kind}" if one.key else ""
    mended = " (put back)" if one.repaired else ""
    where = "" if one.key else f", run {one.run_id}"
    return f"{one.cluster}-{one.job_id}: {what}{row}: {one.detail}{where}{mended}".replace("\n", " ")


def _summary(cluster: str, tally: Tally, since: str, repair: bool) -> list[str]:
    lines = [f"{cluster}: {tally.runs} histories of the last {since} compared, which tell {tally.rows} rows"]
    if tally.past_rows:
        lines.append(
            f"{cluster}: {tally.past_rows} rows of {tally.past_jobs} jobs are older than the histories that the "
            "namespace keeps, and were not compared"
        )
    if tally.repaired:
        lines.append(f"{cluster}: {tally.repaired} put back")
    for problem, words in _WORDS.items():
        if count := tally.problems.get(problem.value, 0):
            lines.append(f"{cluster}: {count} {words}")
    if tally.clean:
        lines.append(f"{cluster}: the audit store agrees with the histories")
    elif not repair and set(tally.problems) & {Problem.GAP, Problem.LIFE, Problem.ATTEMPT}:
        lines.append(f"{cluster}: `relight audit verify --repair` puts back what is missing")
    return lines


def _all(tallies: dict[str, Tally]) -> int:
    return sum(sum(tally.problems.values()) + tally.repaired for tally in tallies.values())
