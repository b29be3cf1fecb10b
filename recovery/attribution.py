"""What somebody outside says about a failed attempt, and how far that may refine the verdict of the built-in rules.

An outside answer is testimony. It may add suspects of its own allocation where the rules cannot tell which node, and
nothing else: it never changes the class, never lifts a stop, never touches or weakens what local evidence says. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from recovery.blame import NODE_CLASSES, SHARED
from recovery.records import (
    Confidence,
    FaultClass,
    Finding,
    JobView,
    Nodes,
    Record,
    Retry,
    Role,
    Suspect,
    Time,
    Verdict,
)

LINE_LENGTH = 500
"""Longest text of one line of evidence that is handed on (characters)."""

LINES = 80
"""Most lines of evidence."""

ELSEWHERE_MAY_HELP = NODE_CLASSES | {FaultClass.STORAGE, FaultClass.SYSTEM_SOFTWARE}
"""What an answer must think broke for the hosts it names to count: of other causes no node is to blame."""

THEIR_OWN = frozenset({FaultClass.USER, FaultClass.APPLICATION})


class AskedPhase(StrEnum):
    """Which of the two questions: the quick one that a decision waits for, or the thorough one beside it."""

    FAST = "fast"
    SLOW = "slow"


class About(StrEnum):
    """What the question is about."""

    ENDED = "ended"  # the attempt has failed
    HANG = "hang"  # it runs and makes no progress: recorded only


class AnswerStatus(StrEnum):
    """What came back."""

    ANSWERED = "answered"
    LATE = "late"
    FAILED = "failed"  # not reached, or refused
    NONSENSE = "nonsense"  # malformed, enormous, or about something else


class Trust(StrEnum):
    """How sure a host named by a provider is held to be at fault."""

    WEAK = "weak"  # avoided when it is suspected a second time
    STRONG = "strong"  # as sure as a line of the job's own log: avoided at once


class EvidenceLine(Record):
    """One line that may be handed on, by its name `ref`."""

    ref: str
    source: str = Field(default="", description="the detector that found it, or 'tail': one of the last lines")
    signature: str = ""
    fault_class: FaultClass = FaultClass.UNKNOWN
    at: Time | None = None
    nodes: Nodes = ()
    rank: int | None = None
    text: str


class Question(Record):
    """All that is asked about one attempt, before anything is masked."""

    cluster: str
    job_id: str
    attempt: int
    about: About = About.ENDED
    signal: str = Field(description="how it was noticed: the ending Slurm tells, or hang")
    detected_at: Time
    nodes: Nodes = Field(description="the allocation of that attempt")
    start_time: Time | None = None
    end_time: Time | None = None
    user: str = ""
    account: str = ""
    lines: tuple[EvidenceLine, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({line.rank for line in self.lines if line.rank is not None}))


class OutsideSuspect(Record):
    """A host somebody outside named, after grounding: a node of the allocation."""

    node: str
    confidence: Confidence = Confidence.LOW
    reason: str = ""


class Attribution(Record):
    """What one provider said about one attempt in one phase. It is not a verdict."""

    provider: str
    phase: AskedPhase
    attempt: int
    about: About = About.ENDED
    status: AnswerStatus
    trust: Trust = Trust.WEAK
    may_stop: bool = Field(default=False, description="the site lets it cut an unknown fault to one retry")
    category: FaultClass = FaultClass.UNKNOWN
    confidence: Confidence = Confidence.LOW
    suspects: tuple[OutsideSuspect, ...] = ()
    lines: tuple[str, ...] = Field(default=(), description="evidence it refers to, by name")
    explanation: str = ""
    dropped: tuple[str, ...] = Field(default=(), description="what it named and is not in the evidence or allocation")
    problem: str = Field(default="", description="why there is no answer")
    session: str = ""
    took_s: float = 0.0

    @property
    def summary(self) -> str:
        """The answer in one line, for the record."""
        who = f"{self.provider} ({self.phase.value})"
        if self.status is not AnswerStatus.ANSWERED:
            return f"{who}: {self.status.value}: {self.problem}"[:900]
        nodes = ", ".join(one.node for one in self.suspects[:10])
        left_out = f"; {len(self.dropped)} claims dropped: {'; '.join(self.dropped[:3])}" if self.dropped else ""
        where = f" on {nodes}" if nodes else ", no node"
        said = f": {self.explanation}" if self.explanation else ""
        return f"{who}: {self.category.value}{where}{said}{left_out}"[:900]


def evidence_lines(findings: Sequence[Finding]) -> tuple[EvidenceLine, ...]:
    """The lines behind findings, causes first; each with a name to refer to it by."""
    counting = [one for one in findings if one.role is not Role.BENIGN]
    return tuple(
        EvidenceLine(
            ref=f"L{number}",
            source=one.detector,
            signature=one.signature,
            fault_class=one.fault_class,
            at=one.at,
            nodes=one.nodes,
            rank=one.rank,
            text=(one.evidence or one.summary)[:LINE_LENGTH],
        )
        for number, one in enumerate(counting[:LINES], start=1)
    )


def may_help(verdict: Verdict, findings: Sequence[Finding], view: JobView) -> bool:
    """Whether somebody outside could add anything: the rules cannot tell the cause, or not the node."""
    if verdict.retry not in {Retry.YES, Retry.ONCE}:
        return False
    if any(one.trusted or one.confidence is not Confidence.LOW for one in verdict.suspects):
        return False
    if verdict.fault_class is FaultClass.UNKNOWN:
        return True
    return verdict.fault_class in NODE_CLASSES and not verdict.suspects and not _shared(verdict, findings, view)


def refined(
    verdict: Verdict, attributions: Sequence[Attribution], findings: Sequence[Finding], view: JobView
) -> Verdict:
    """The verdict with what outside answers about this ended attempt add to it; class and signature stay the rules'.

    `view` is the job in the attempt that the verdict is about. Without a usable answer the verdict is the same object.
    """
    usable = [
        one
        for one in attributions
        if one.status is AnswerStatus.ANSWERED and one.about is About.ENDED and one.attempt == view.restarts
    ]
    if not usable or not may_help(verdict, findings, view):
        return verdict
    suspects = {one.node: one for one in verdict.suspects}
    said: list[str] = []
    retry = verdict.retry
    for answer in usable:
        added = _added(answer, suspects, view) if answer.category in ELSEWHERE_MAY_HELP else {}
        suspects |= added
        if added:
            said.append(f"{answer.provider} thinks {answer.category.value}, on {', '.join(sorted(added))}")
        if answer.may_stop and answer.category in THEIR_OWN and verdict.fault_class is FaultClass.UNKNOWN:
            retry = Retry.ONCE
            said.append(f"{answer.provider} thinks {answer.category.value}, so it is tried once more only")
    if not said:
        return verdict
    names = dict.fromkeys(one.provider for one in usable)
    return verdict.model_copy(
        update={
            "suspects": tuple(suspects[node] for node in sorted(suspects)),
            "retry": retry,
            "reason": f"{verdict.reason}; {'; '.join(said)}"[:1_000],
            "by": "+".join([verdict.by, *names]),
        }
    )


def _added(answer: Attribution, known: dict[str, Suspect], view: JobView) -> dict[str, Suspect]:
    """Suspects the answer adds; grounded once more, because records may come from anywhere."""
    named = {one.node: one for one in answer.suspects if one.node in view.nodes}
    if is_everywhere(len(named), len(view.nodes)):
        return {}
    strong = answer.trust is Trust.STRONG and answer.category in NODE_CLASSES
    confidence = Confidence.MEDIUM if strong else Confidence.LOW
    return {
        node: Suspect(
            node=node,
            how=f"named by {answer.provider}{f': {one.reason}' if one.reason else ''}"[:300],
            confidence=confidence,
            by=answer.provider,
        )
        for node, one in named.items()
        if node not in known or (strong and known[node].confidence is Confidence.LOW)
    }


def is_everywhere(named: int, nodes: int) -> bool:
    """Whether so many of the nodes are named that none of them stands out."""
    return nodes > 1 and named > SHARED * nodes


def _shared(verdict: Verdict, findings: Sequence[Finding], view: JobView) -> bool:
    """Whether the rules found the trouble in what the nodes share, so that no node is to blame."""
    alike = [one for one in findings if one.role is Role.ROOT and one.fault_class is verdict.fault_class]
    nodes = {node for one in alike for node in one.nodes if node in view.nodes}
    return any(one.everywhere for one in alike) or is_everywhere(len(nodes), len(view.nodes))
