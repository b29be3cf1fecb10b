"""What earlier suspicions of the same nodes mean for a verdict: a weak suspect that repeats becomes a strong one. Pure.

Who may strengthen a suspicion of a job's own node:

- an earlier attempt of the same job, whatever told of it;
- another job, where a witness that users cannot write (Slurm, metrics) told of it then or now;
- another job of *another user*, which came upon the same node by itself.

Of other jobs only faults count that may be a node's.

So nothing a job prints can make another job's node suspect, and one user's jobs alone can convict a node for nobody
else. It never adds a suspect: the ledger is only asked about nodes that this attempt suspects by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from pydantic import Field

from recovery.records import Attempt, Confidence, FaultClass, JobView, Record, Suspect, Time, Verdict

INCIDENT = "incident"
"""The rule of a fault that several jobs share."""

NO_NODES_FAULT = frozenset(
    {FaultClass.USER, FaultClass.APPLICATION, FaultClass.OUT_OF_MEMORY, FaultClass.NONE, FaultClass.SCHEDULER}
)
"""Of these, where it happened says nothing about the node to anybody else."""


class Suspicion(Record):
    """One entry of the ledger: an attempt of a job had this node of its own among the suspects."""

    node: str
    life_id: int
    job_id: str
    user: str = ""
    attempt: int
    fault_class: FaultClass = FaultClass.UNKNOWN
    signature: str = ""
    confidence: Confidence = Confidence.LOW
    trusted: bool = Field(default=False, description="from a witness that users cannot write")
    how: str = ""
    at: Time
    expires_at: Time


def worth_remembering(verdict: Verdict, rule: str, exclude: Collection[str]) -> Verdict:
    """The verdict with the suspects that may count later: those whom only somebody outside named do not, and of a
    fault that many jobs share only those that are excluded all the same. `rule`, `exclude`: of the advice."""
    shared = rule == INCIDENT
    own = tuple(one for one in verdict.suspects if not one.by and (not shared or one.node in exclude))
    return verdict if own == verdict.suspects else verdict.model_copy(update={"suspects": own})


def strengthened(verdict: Verdict, view: JobView, life_id: int | None, ledger: Sequence[Suspicion]) -> Verdict:
    """The verdict with those of its suspects made surer that were suspected before."""
    told = [_with_history(suspect, verdict, view, life_id, ledger) for suspect in verdict.suspects]
    return verdict if tuple(told) == verdict.suspects else verdict.model_copy(update={"suspects": tuple(told)})


def _with_history(
    suspect: Suspect, verdict: Verdict, view: JobView, life_id: int | None, ledger: Sequence[Suspicion]
) -> Suspect:
    counting = [entry for entry in ledger if _counts(entry, suspect, verdict, view, life_id)]
    if not counting:
        return suspect
    last = max(counting, key=lambda entry: (entry.at, entry.job_id, entry.attempt))
    whose = "an earlier attempt of this job" if last.life_id == life_id else f"job {last.job_id} of {last.user}"
    how = f"{suspect.how}; suspected before by {whose} ({last.signature or last.fault_class.value})"
    weak = suspect.confidence is Confidence.LOW
    return suspect.model_copy(
        update={"how": how, "again": True, "confidence": Confidence.MEDIUM if weak else suspect.confidence}
    )


def _counts(entry: Suspicion, suspect: Suspect, verdict: Verdict, view: JobView, life_id: int | None) -> bool:
    if entry.node != suspect.node:
        return False
    if life_id is not None and entry.life_id == life_id:
        return verdict.attempt is not None and entry.attempt < verdict.attempt
    if {entry.fault_class, verdict.fault_class} & NO_NODES_FAULT:
        return False
    return entry.trusted or suspect.trusted or (bool(view.user) and bool(entry.user) and entry.user != view.user)


def essential(ledger: Iterable[Suspicion], life_id: int) -> tuple[Suspicion, ...]:
    """What a decision needs of the ledger (newest first): of each node the job's own entries, and of other jobs the
    newest by each user and kind of witness. However much one user's jobs enter, it hides nobody else's."""
    kept: dict[Hashable, Suspicion] = {}
    for entry in ledger:
        own = entry.attempt if entry.life_id == life_id else None
        whose = (entry.node, entry.user, entry.trusted, entry.fault_class in NO_NODES_FAULT, own)
        kept.setdefault(whose, entry.model_copy(update={"how": ""}))
    return tuple(kept.values())


def suspected_earlier(
    attempts: Iterable[Attempt], cleared: Mapping[str, datetime], now: datetime, window: timedelta
) -> frozenset[str]:
    """Nodes that earlier attempts of one job suspected, within the window and since a person cleared them last."""
    found = set[str]()
    for attempt in attempts:
        if attempt.end_time is not None and now - attempt.end_time > window:
            continue
        for node in attempt.suspects:
            since = cleared.get(node)
            if since is None or (attempt.end_time is not None and attempt.end_time > since):
                found.add(node)
    return frozenset(found)
