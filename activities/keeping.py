"""Keeps the histories of closed runs as files, before Temporal's namespace deletes them.

It goes on where the last round stopped, in slices of time; a history that is there already is not fetched again.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowHistory

from activities import contracts as c
from activities.heartbeat import heartbeating
from activities.histories import Histories, HistoryGone, closed_between, job_of
from activities.kept_histories import KeptHistories
from activities.site import Site

SLICE = timedelta(hours=6)
SETTLED = timedelta(minutes=5)
"""Temporal lists a run some time after it has closed; younger ones wait for the next round."""

LONGEST = timedelta(days=90)
"""Looked back at first, where the namespace keeps histories for ever."""


class KeepingActivities:
    """The one activity of HistoryKeeper."""

    def __init__(self, site: Site, temporal: Client, *, settled: timedelta = SETTLED) -> None:
        self.site, self.temporal, self._settled = site, temporal, settled

    @activity.defn(name=c.KEEP_HISTORIES)
    async def keep_histories(self, request: c.KeepHistories) -> c.KeptReport:
        """One round, bounded in number and time. Raises RPCError, OSError."""
        histories = Histories(self.temporal)
        kept = KeptHistories(self.site.evidence_dir, request.cluster)
        async with heartbeating():
            retention_s = await histories.retention_s()
            now = datetime.now(UTC)
            oldest = now - (timedelta(seconds=retention_s) if retention_s else LONGEST)
            since = await asyncio.to_thread(lambda: kept.kept_until)
            late = ""
            if since is not None and since < oldest:
                late = f"runs that closed between {since:%Y-%m-%d %H:%M}Z and {oldest:%Y-%m-%d %H:%M}Z"
            one_round = _Round(histories, kept, request, max(since, oldest) if since is not None else oldest)
            report = await one_round.go(now - self._settled)
        return report.model_copy(update={"late": late})


class _Round:
    def __init__(self, histories: Histories, kept: KeptHistories, request: c.KeepHistories, since: datetime) -> None:
        self.histories, self.kept, self.request = histories, kept, request
        self.report = c.KeptReport(until=since)
        self._deadline = time.monotonic() + request.within_s

    async def go(self, until: datetime) -> c.KeptReport:
        begin = self.report.until
        assert begin is not None
        while begin < until:
            end = min(begin + SLICE, until)
            if not await self._slice(begin, end):
                return self.report
            await asyncio.to_thread(self.kept.mark, end)
            self.report = self.report.model_copy(update={"until": end})
            begin = end
        self.report = self.report.model_copy(update={"finished": True})
        return self.report

    async def _slice(self, begin: datetime, end: datetime) -> bool:
        """False: the round is over before the slice is."""
        cluster = self.request.cluster
        async for run in self.histories.found(closed_between(cluster, begin, end), cluster):
            job_id = job_of(cluster, run.workflow_id) or ""
            if await asyncio.to_thread(self.kept.has, job_id, run.run_id):
                self.report = self.report.model_copy(update={"known": self.report.known + 1})
                continue
            if self.report.kept >= self.request.most or time.monotonic() > self._deadline:
                return False
            try:
                pages = self.histories.pages(run.workflow_id, run.run_id)
                events = [event async for page in pages for event in page]
            except HistoryGone:
                continue
            history = WorkflowHistory(run.workflow_id, events)
            size = await asyncio.to_thread(self.kept.keep, job_id, run.run_id, history)
            more = {"kept": self.report.kept + 1, "bytes": self.report.bytes + size}
            self.report = self.report.model_copy(update=more)
        return True
