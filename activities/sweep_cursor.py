"""What the sweep remembers of one job between sweeps, as JSON in the `watched` table."""

from __future__ import annotations

from pydantic import Field, ValidationError

from activities.telemetry.joblog import LogCursor
from recovery.hang import Hang
from recovery.pace import Pace
from recovery.records import Nodes, Record
from recovery.straggler import Straggler

MAX_CHILDREN = 200
MAX_LOGS = 8
LATE = "metric:late:"


class SweepCursor(Record):
    """Log offsets, dependents seen, which fault was told, how the job goes and what is the matter with it."""

    logs: tuple[LogCursor, ...] = ()
    children: tuple[str, ...] = ()
    attempt: int = 0
    state: str = ""
    faults: tuple[str, ...] = ()
    note: str = ""
    pace: Pace = Pace()
    hang: Hang | None = None
    over: Hang | None = Field(default=None, description="the last hang that was none: steps went on in that attempt")
    straggler: Straggler | None = None
    nodes: tuple[str, ...] = Field(default=(), description="what is the matter with its nodes, by name")
    late: Nodes = Field(
        default=(), description="nodes that metrics blame for the end of the attempt before, while the job waits"
    )
    told: tuple[str, ...] = ()

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of all that is the matter; the job's workflow is told when they differ from `told`."""
        found = [one.key for one in (self.hang, self.straggler) if one is not None]
        return (*found, *self.nodes, *(LATE + node for node in self.late))

    @property
    def news(self) -> tuple[str, ...]:
        """Of which kind the untold judgements are, for the signal."""
        apart = set(self.judged) ^ set(self.told)
        kinds = (("hang:", "hang"), ("straggler:", "straggler"), ("metric:", "metrics"))
        names = [next((kind for start, kind in kinds if name.startswith(start)), "node") for name in sorted(apart)]
        return tuple(dict.fromkeys(names))

    def with_judgement_of(self, newer: SweepCursor) -> SweepCursor:
        """This cursor with the newer one's judgements only: logs count as unread."""
        update = {name: getattr(newer, name) for name in ("pace", "hang", "over", "straggler", "nodes", "late")}
        return self.model_copy(update=update)

    def without_judgement(self) -> SweepCursor:
        """For a job that runs no more: whatever was the matter with it then is over, and needs no telling."""
        return self.model_copy(update={"hang": None, "straggler": None, "nodes": (), "late": (), "told": ()})

    def while_waiting(self, blamed: Nodes) -> SweepCursor:
        """For a job that waits to run again: what was the matter while it ran is over, but metrics may tell late which
        node it was."""
        update = {
            "hang": None,
            "straggler": None,
            "nodes": (),
            "late": tuple(sorted({*self.late, *blamed})),
            "told": tuple(name for name in self.told if name.startswith(LATE)),
        }
        return self.model_copy(update=update)

    @property
    def by_path(self) -> dict[str, LogCursor]:
        return {log.path: log for log in self.logs}


def read_cursor(text: str) -> SweepCursor:
    """A lost or damaged cursor means reading again from the start, never a second action."""
    try:
        return SweepCursor.model_validate_json(text) if text else SweepCursor()
    except ValidationError:
        return SweepCursor()
