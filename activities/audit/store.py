"""The audit store: lives, attempts and the log of every job, what the sweep watches, and permits.

Synchronous and safe to use from many threads. Every call is one transaction that may be repeated without harm; when
the database cannot serve, it raises AuditUnavailable within seconds, and then nothing may be done to any job.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import select, update

from activities.audit import (
    drains,
    exclusions,
    hindsight,
    incidents,
    listing,
    lives,
    permits,
    suspicions,
    timeline,
    watching,
)
from activities.audit.database import Database
from activities.audit.engine import sqlite_file
from activities.audit.records import (
    Cleared,
    Drain,
    DrainGrant,
    Event,
    Excluded,
    Fault,
    JobCount,
    JobFilter,
    JobRow,
    Life,
    Moved,
    NodeCount,
    PermitRequest,
    ToldFailure,
    Watched,
)
from activities.audit.tables import clusters
from activities.audit.trouble import AuditUnavailable, KeyTaken, SchemaTooNew, UnfitDatabase, UnknownLife
from activities.audit.upkeep import Upkeep
from activities.contracts import NewEvent, PermitAnswer
from recovery.hindsight_records import Story
from recovery.incident_records import ClusterLook, Failure, Incident
from recovery.policy_numbers import Policy
from recovery.records import Attempt, AttemptRow, ClusterFacts, JobView, Nodes, Verdict
from recovery.recurrence import Suspicion

__all__ = ["AuditStore", "AuditUnavailable", "KeyTaken", "SchemaTooNew", "UnfitDatabase", "UnknownLife"]

_CURSOR_BATCH = 1000


class AuditStore:
    """One audit database. Make one per process and share it between threads."""

    def __init__(self, url: str, *, timeout_s: float = 5, existing: bool = False) -> None:
        """`url`: sqlite:///PATH, postgresql://… or mysql://…; nothing is connected yet. ValueError: a wrong URL.
        `existing`: an SQLite file is opened where it is there, and not made."""
        self._database = Database(url, timeout_s=timeout_s, existing=existing)

    @property
    def missing_file(self) -> Path | None:
        """The file of an SQLite database that is not there."""
        file = sqlite_file(self._database.url)
        return file if file is not None and not file.exists() else None

    @property
    def name(self) -> str:
        """The URL without password, for messages."""
        return self._database.name

    def migrate(self) -> None:
        """Creates or upgrades the tables; safe when several workers start at once.

        Raises SchemaTooNew when a newer relight was here, UnfitDatabase when the server is set up wrongly.
        """
        from activities.audit import schema  # brings Alembic, whose import costs commands that never migrate a second

        schema.migrate(self._database)

    def ping(self) -> None:
        """Returns when the tables can be read, raises AuditUnavailable otherwise."""
        self._database.read(lambda c: c.execute(select(clusters.c.cluster).limit(1)).all())

    @property
    def upkeep(self) -> Upkeep:
        """What is done to the store as a whole."""
        return Upkeep(self._database)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> AuditStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -------------------------------------------------------------------------------------------- lives

    def open_life(
        self,
        view: JobView,
        *,
        accounting: Sequence[AttemptRow] = (),
        workflow_id: str,
        run_id: str,
        now: datetime | None = None,
    ) -> Life:
        """Finds the life of the job that `view` shows, or creates it when the job is new or its id was used before.

        `reopened` tells that another workflow run had opened it; it stays the same when this run asks again.
        """
        at = now or datetime.now(UTC)
        return self._database.write(lambda c: lives.open_life(c, view, accounting, workflow_id, run_id, at))

    def life(self, life_id: int) -> Life:
        """Raises UnknownLife."""
        return self._database.read(lambda c: lives.get(c, life_id))

    def latest_life(self, cluster: str, job_id: str) -> Life | None:
        return self._database.read(lambda c: lives.latest(c, cluster, job_id))

    def close_life(self, life_id: int, reason: str, now: datetime | None = None) -> None:
        """Closes the life, removes its row from the watched and ends its exclusions. UnknownLife when there is none."""
        at = now or datetime.now(UTC)
        self._database.write(lambda c: lives.close_life(c, life_id, reason, at))

    def jobs(
        self,
        cluster: str | None = None,
        *,
        user: str | None = None,
        phase: str | None = None,
        include_closed: bool = False,
        limit: int = 200,
        offset: int = 0,
    ) -> list[JobRow]:
        """Jobs for a list, the newest life first."""

        def read(connection: Any) -> list[JobRow]:
            rows = lives.jobs(connection, cluster, user, phase, include_closed, limit, offset)
            return timeline.with_waits(connection, rows)

        return self._database.read(read)

    def listed(self, wanted: JobFilter, *, before: int | None = None, limit: int = 50) -> list[JobRow]:
        """One page of the jobs that are wanted, the newest life first, those older than the life `before`."""

        def read(connection: Any) -> list[JobRow]:
            return timeline.with_waits(connection, listing.page(connection, wanted, before, limit))

        return self._database.read(read)

    def count(self, wanted: JobFilter) -> int:
        return self._database.read(lambda c: listing.count(c, wanted))

    def counts(self) -> list[JobCount]:
        """How many open jobs there are, by cluster, state, phase, mode and pause."""
        return self._database.read(listing.counts)

    def faults(self, clusters: Sequence[str], since: datetime, *, limit: int = 20_000) -> list[Fault]:
        """Attempts that ended by a fault since then, the newest first."""
        return self._database.read(lambda c: listing.faults(c, clusters, since, limit))

    def suspected_nodes(self, clusters: Sequence[str], since: datetime, *, limit: int = 20) -> list[NodeCount]:
        """Nodes that were suspected most since then, also where it counts no more."""
        return self._database.read(lambda c: listing.suspected_nodes(c, clusters, since, limit))

    # -------------------------------------------------------------------------------------------- the log

    def newest_event(self) -> int:
        """Id of the newest row of the log; 0 without any."""
        return self._database.read(listing.newest_event)

    def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]:
        """Rows of the whole log by id. Of several writers one may appear late, under a lower id."""
        return self._database.read(lambda c: listing.events_after(c, after_id, limit))

    def recent(
        self, clusters: Sequence[str], kinds: Sequence[str], since: datetime, *, limit: int = 200
    ) -> list[Event]:
        """Rows of these kinds since then, of all jobs of the clusters, the newest first."""
        return self._database.read(lambda c: listing.recent(c, clusters, kinds, since, limit))

    def moved(self, since: datetime | None, *, limit: int = 5000) -> list[Moved]:
        """Jobs whose last step is younger than that, the latest first."""
        return self._database.read(lambda c: listing.moved(c, since, limit))

    def append(
        self,
        cluster: str,
        job_id: str,
        life_id: int | None,
        events: Sequence[NewEvent],
        *,
        workflow_id: str = "",
        run_id: str = "",
        phase: str | None = None,
        mode: str | None = None,
        paused: bool | None = None,
        paused_by: str | None = None,
        stopped: bool | None = None,
        state: str | None = None,
        attempts: Sequence[Attempt] = (),
    ) -> int:
        """Writes events, attempts and the life's new state in one transaction; returns how many events were new.

        An event whose key stands in the log of this life already is left as it was. Keys are unique in the whole
        database (KeyTaken otherwise): begin them with the life's id. `life_id` None is for events of the cluster.
        """
        given: dict[str, Any] = {
            "phase": phase,
            "mode": mode,
            "paused": paused,
            "paused_by": paused_by,
            "stopped": stopped,
            "state": state,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        return self._database.write(
            lambda c: timeline.append(c, cluster, job_id, life_id, events, workflow_id, run_id, changes, attempts)
        )

    def events(
        self, cluster: str, job_id: str, *, life_id: int | None = None, after_id: int = 0, limit: int = 500
    ) -> list[Event]:
        """The log of a job, oldest first; of all its lives unless one is named."""
        return self._database.read(lambda c: timeline.read(c, cluster, job_id, life_id, after_id, limit))

    def has(self, key: str) -> bool:
        return self.event(key) is not None

    def event(self, key: str) -> Event | None:
        return self._database.read(lambda c: timeline.by_key(c, key))

    def last_event(self, cluster: str, kind: str) -> Event | None:
        """The newest row of that kind in the cluster's own log, which belongs to no job."""
        return self._database.read(lambda c: timeline.last_of_kind(c, cluster, kind))

    def attempts(self, life_id: int) -> tuple[Attempt, ...]:
        """Oldest first."""
        return self._database.read(lambda c: timeline.attempts_of(c, life_id))

    def stories(self, cluster: str, since: datetime, *, most: int = hindsight.MOST_ADVICE) -> tuple[list[Story], bool]:
        """Jobs that were advised upon since then, with what became of them; and whether only the newest are told."""
        return hindsight.stories(self._database, cluster, since, most)

    # -------------------------------------------------------------------------------------------- the sweep

    def watched(self, cluster: str) -> list[Watched]:
        return self._database.read(lambda c: watching.rows(c, cluster))

    def watched_job(self, cluster: str, job_id: str) -> Watched | None:
        return self._database.read(lambda c: watching.one(c, cluster, job_id))

    def watch(self, row: Watched) -> None:
        """Adds the job or changes its row; the sweep's part of the same life stays where `row` leaves it empty."""
        self._database.write(lambda c: watching.watch(c, row))

    def unwatch(self, cluster: str, job_id: str, *, life_id: int | None = None) -> None:
        """Removes the job's row; with `life_id`, only when it is of that life."""
        self._database.write(lambda c: watching.unwatch(c, cluster, job_id, life_id))

    def save_cursors(self, cluster: str, rows: Sequence[Watched]) -> None:
        """Writes seen, cursor and progress of many rows. A row that was removed or is of another life stays as it is.

        Done in pieces of a thousand rows, each its own transaction, so that nobody waits long for a lock.
        """
        for start in range(0, len(rows), _CURSOR_BATCH):
            piece = rows[start : start + _CURSOR_BATCH]
            self._database.write(lambda c, piece=piece: watching.save_cursors(c, cluster, piece))  # type: ignore[misc]

    # -------------------------------------------------------------------------------------------- incidents

    def tell_failures(self, cluster: str, failures: Sequence[Failure]) -> None:
        """Writes failures down for the next sweep to compare; telling one again adds what is new of it."""
        self._database.write(lambda c: incidents.tell(c, cluster, failures))

    def failure(self, cluster: str, job_id: str, life_id: int, attempt: int) -> ToldFailure | None:
        return self._database.read(lambda c: incidents.told(c, cluster, job_id, life_id, attempt))

    def failures_wait(self, cluster: str) -> bool:
        """Whether a failure waits to be compared with those of other jobs."""
        return self._database.read(lambda c: incidents.waits(c, cluster))

    def restarted_nodes(self, cluster: str, since: datetime) -> set[str]:
        """Nodes of running attempts that relight ended by its own restart since then."""
        return self._database.read(lambda c: incidents.restarted_nodes(c, cluster, since))

    def correlate(
        self,
        cluster: str,
        look: ClusterLook,
        numbers: Policy,
        *,
        began: datetime,
        failures: Sequence[Failure] = (),
        now: datetime | None = None,
    ) -> tuple[Incident, ...]:
        """Writes the failures down, compares those of the last hour, and gives the incidents that changed."""
        at = now or datetime.now(UTC)

        def work(connection: Any) -> tuple[Incident, ...]:
            permits.lock_cluster(connection, cluster, at)
            incidents.tell(connection, cluster, failures)
            return incidents.compare(connection, cluster, began, look, at, numbers)

        return self._database.write(work)

    def open_incidents(self, cluster: str) -> tuple[Incident, ...]:
        return self._database.read(lambda c: incidents.open_ones(c, cluster))

    def incidents(self, cluster: str, *, include_closed: bool = False, limit: int = 200) -> list[Incident]:
        """The newest first."""
        return self._database.read(lambda c: incidents.listed(c, cluster, include_closed, limit))

    def close_incident(
        self, cluster: str, incident_id: str, *, by: str, reason: str, now: datetime | None = None
    ) -> Incident | None:
        """Closes it by a person's word; None: there is none of that id."""
        at = now or datetime.now(UTC)

        def work(connection: Any) -> Incident | None:
            permits.lock_cluster(connection, cluster, at)
            return incidents.close(connection, cluster, incident_id, by, reason, at)

        return self._database.write(work)

    # -------------------------------------------------------------------------------------------- the cluster

    def permit(self, request: PermitRequest) -> PermitAnswer:
        """Grants the step, says until when to wait, or denies it. A step that was granted once stays granted."""
        return self._database.write(lambda c: permits.permit(c, request))

    def release_permit(self, step_key: str, now: datetime | None = None) -> None:
        """Frees the permit's place among the restarts at once; its exclusions go on. Unknown keys are ignored."""
        at = now or datetime.now(UTC)
        self._database.write(lambda c: permits.release(c, step_key, at))

    def void_permit(self, step_key: str, now: datetime | None = None) -> None:
        """The step changed nothing: neither its place nor its nodes count any more. Unknown keys are ignored."""
        at = now or datetime.now(UTC)
        self._database.write(lambda c: permits.void(c, step_key, at))

    def give_up_exclusions(self, cluster: str, job_id: str, nodes: Sequence[str]) -> None:
        """Takes nodes out of the job's exclusions that count: they were relaxed."""
        self._database.write(lambda c: exclusions.give_up(c, cluster, job_id, nodes))

    def exclusions(self, cluster: str | None = None, now: datetime | None = None) -> list[Excluded]:
        """Nodes that jobs are kept away from now, by node and job."""
        at = now or datetime.now(UTC)
        return self._database.read(lambda c: exclusions.excluded(c, cluster, at))

    # -------------------------------------------------------------------------------------------- nodes

    def suspect(self, life_id: int, attempt: int, verdict: Verdict, now: datetime, until: datetime) -> Nodes:
        """Enters the verdict's suspects in the ledger; gives those that are nodes of that attempt. Harmless again."""
        if not verdict.suspects:
            return ()
        return self._database.write(lambda c: suspicions.enter(c, life_id, attempt, verdict, now, until))

    def suspicions(
        self, cluster: str, nodes: Sequence[str] | None = None, *, now: datetime | None = None, limit: int = 100
    ) -> tuple[Suspicion, ...]:
        """Entries of the ledger that count now, newest first, of these nodes or of all."""
        at = now or datetime.now(UTC)
        return self._database.read(lambda c: suspicions.standing(c, cluster, nodes, at, limit))

    def clear_node(self, cluster: str, node: str, by: str, reason: str, now: datetime | None = None) -> None:
        """The node is well: what was suspected before counts no more, and a drain of ours is to end."""
        at = now or datetime.now(UTC)
        self._database.write(lambda c: suspicions.clear(c, cluster, node, by, reason, at))

    def cleared(self, cluster: str, nodes: Sequence[str] | None = None) -> dict[str, Cleared]:
        return self._database.read(lambda c: suspicions.cleared(c, cluster, nodes))

    def grant_drain(self, request: DrainGrant) -> tuple[Drain | None, str]:
        """The drain to carry out, or None and why not. Asked again by the same step it answers the same."""
        return self._database.write(lambda c: drains.grant(c, request))

    def drain_carried_out(self, drain_id: int, now: datetime | None = None) -> None:
        at = now or datetime.now(UTC)
        self._database.write(lambda c: drains.carried_out(c, drain_id, at))

    def end_drain(self, drain_id: int, by: str, reason: str, now: datetime | None = None) -> bool:
        """The node is not drained by relight any more; False when that was known."""
        at = now or datetime.now(UTC)
        return self._database.write(lambda c: drains.end(c, drain_id, by, reason, at))

    def drains(self, cluster: str | None = None) -> list[Drain]:
        """Drains that have not ended, oldest first."""
        return self._database.read(lambda c: drains.standing(c, cluster))

    def drains_of(self, cluster: str, node: str) -> list[Drain]:
        """Drains of one node, newest first, also those that have ended."""
        return self._database.read(lambda c: drains.of_node(c, cluster, node))

    def save_facts(self, cluster: str, facts: ClusterFacts, now: datetime | None = None) -> None:
        at = now or datetime.now(UTC)

        def save(connection: Any) -> None:
            known = permits.lock_cluster(connection, cluster, at)["facts"]
            nodes = list(facts.nodes) or known.get("nodes", [])  # read apart from the rest
            values = {"facts": {**facts.model_dump(mode="json"), "nodes": nodes}}
            connection.execute(update(clusters).where(clusters.c.cluster == cluster).values(**values))

        self._database.write(save)

    def save_nodes(self, cluster: str, nodes: Nodes, now: datetime | None = None) -> None:
        """Which nodes the cluster has, for those who ask about one by its name."""
        at = now or datetime.now(UTC)

        def save(connection: Any) -> None:
            known = permits.lock_cluster(connection, cluster, at)["facts"]
            values = {"facts": {**known, "nodes": list(nodes)}}
            connection.execute(update(clusters).where(clusters.c.cluster == cluster).values(**values))

        self._database.write(save)

    def sweep_went_well(self, cluster: str, now: datetime | None = None) -> None:
        """The scheduler was read: for those who watch over relight."""
        at = now or datetime.now(UTC)

        def save(connection: Any) -> None:
            permits.lock_cluster(connection, cluster, at)
            connection.execute(update(clusters).where(clusters.c.cluster == cluster).values(updated_at=at))

        self._database.write(save)

    def swept_at(self, cluster: str) -> datetime | None:
        """When `sweep_went_well` was told last; None: never."""
        query = select(clusters.c.updated_at).where(clusters.c.cluster == cluster)
        return self._database.read(lambda c: c.execute(query).scalar())

    def facts(self, cluster: str) -> ClusterFacts | None:
        """Settings of the cluster as they were last read; None: never."""
        query = select(clusters.c.facts).where(clusters.c.cluster == cluster)
        stored = self._database.read(lambda c: c.execute(query).scalar())
        return ClusterFacts.model_validate(stored) if stored else None
