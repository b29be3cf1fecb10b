"""What is done to the audit store as a whole: comparing it with histories, putting back what is lost, pruning.

Synchronous, each call one short transaction that may be repeated without harm; reached by `AuditStore.upkeep`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from activities.audit import pruning, restoring
from activities.audit.database import Database
from activities.audit.pruning import Belongings
from activities.audit.records import Event, Life, RunOnRecord
from activities.contracts import NewEvent
from recovery.records import Attempt, JobView

PIECE = 400
"""Names in one query: SQLite takes at most 999 in old versions."""


class Upkeep:
    """Shares the database of the store that it belongs to."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def by_keys(self, keys: Sequence[str]) -> dict[str, Event]:
        """Rows by their keys, as the store names them."""
        found: dict[str, Event] = {}
        for start in range(0, len(keys), PIECE):
            piece = keys[start : start + PIECE]
            found |= self._database.read(lambda c, piece=piece: restoring.by_keys(c, piece))  # type: ignore[misc]
        return found

    def of_run(self, cluster: str, job_id: str, run_id: str, kinds: Collection[str]) -> Iterator[list[Event]]:
        """Rows of these kinds that one workflow run has written, piece by piece."""
        after = 0
        while rows := self._database.read(
            lambda c, after=after: restoring.of_run(c, cluster, job_id, run_id, kinds, after, PIECE)  # type: ignore[misc]
        ):
            yield rows
            after = rows[-1].id

    def lives_since(self, cluster: str, since: datetime, job_id: str | None = None) -> Iterator[Life]:
        """Lives about which something was written since then."""
        after = 0
        while lives := self._database.read(
            lambda c, after=after: restoring.lives_since(c, cluster, job_id, since, after, PIECE)  # type: ignore[misc]
        ):
            yield from lives
            after = lives[-1].life_id

    def runs_of(self, life: Life) -> list[RunOnRecord]:
        """Workflow runs that wrote about the life."""
        return self._database.read(lambda c: restoring.runs_of(c, life))

    def restore(
        self,
        life: Life,
        lost: Sequence[NewEvent],
        attempts_lost: Sequence[Attempt],
        *,
        workflow_id: str,
        run_id: str,
    ) -> tuple[int, int]:
        """Inserts rows and attempts that are missing; what is there stays. How many of each it were."""
        return self._database.write(
            lambda c: restoring.restore(
                c, life.cluster, life.job_id, life.life_id, lost, attempts_lost, workflow_id, run_id
            )
        )

    def restore_life(
        self,
        life_id: int,
        view: JobView,
        *,
        workflow_id: str,
        run_id: str,
        opened_at: datetime,
        standing: Mapping[str, Any],
        closed: tuple[datetime, str] | None = None,
    ) -> bool:
        """Inserts a life that is missing, under its own id; False: other lives of the job leave no room for it.

        `standing`: phase, mode, paused, paused_by, stopped, as they were shown last.
        """
        return self._database.write(
            lambda c: restoring.restore_life(c, life_id, view, workflow_id, run_id, opened_at, standing, closed)
        )

    # -------------------------------------------------------------------------------------------- what is old

    def ended(self, cluster: str, before: datetime) -> Iterator[Life]:
        """Lives that ended before that time, by their ids."""
        after = 0
        while lives := self._database.read(
            lambda c, after=after: pruning.ended(c, cluster, before, after, PIECE)  # type: ignore[misc]
        ):
            yield from lives
            after = lives[-1].life_id

    def still_needed(self, life: Life, now: datetime) -> str:
        """Why the life must stay; empty: it may go."""
        return self._database.read(lambda c: pruning.still_needed(c, life, now))

    def belongings(self, life: Life) -> Belongings:
        return self._database.read(lambda c: pruning.belongings(c, life))

    def delete(self, life: Life, before: datetime) -> bool:
        """Deletes the life with everything that belongs to it, in short transactions; False: it lives again."""
        while self._database.write(lambda c: pruning.delete_events(c, life, before, PIECE)):
            pass
        return self._database.write(lambda c: pruning.delete_life(c, life, before))

    def old_of_cluster(self, cluster: str, before: datetime) -> int:
        """How many closed incidents and rows of the cluster's own are older."""
        return self._database.read(lambda c: pruning.delete_of_cluster(c, cluster, before, 0, dry=True))

    def delete_of_cluster(self, cluster: str, before: datetime) -> int:
        total = 0
        while gone := self._database.write(lambda c: pruning.delete_of_cluster(c, cluster, before, PIECE, dry=False)):
            total += gone
        return total
