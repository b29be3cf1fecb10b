"""Turns the lines a scan found into findings: drops what is only a consequence, derives nodes, bounds the number.

What a job prints is testimony about this job only; blame (blame.py) decides what it is worth. No I/O.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from recovery.faults.catalogue import Says
from recovery.faults.places import RankMap, number, with_tables
from recovery.faults.scanner import Hit
from recovery.faults.silence import Kind, Silence, silence
from recovery.progress import StepMark
from recovery.records import EVIDENCE_BYTES, Certainty, FaultClass, Finding, JobView, Nodes, Retry, Role

FINDINGS = 40
"""Most findings of one attempt."""

PER_SIGNATURE = 12
"""Most findings of one signature, so that a thousand victims leave room for the cause."""

WENT_ON = 3
"""Steps completed after a line that show the training survived it; one or two may only be late in the log."""

FINISHED = "run.finished"

_ORDER = {Role.ROOT: 0, Role.SYMPTOM: 1, Role.CASCADE: 2, Role.BENIGN: 3}

_SILENCES: dict[Kind, tuple[str, FaultClass, Retry]] = {
    Kind.NODE: ("A node fell silent while all others reported the loss of a peer", FaultClass.HARDWARE, Retry.YES),
    Kind.HUNG: ("Ranks of one node were silent while all others waited for them", FaultClass.INTERCONNECT, Retry.YES),
    Kind.LEFT: ("A rank ended early and without an error while the others went on", FaultClass.APPLICATION, Retry.NO),
}


def findings_of_attempt(
    hits: Sequence[Hit],
    attempt_number: int,
    view: JobView,
    seen_at: datetime,
    *,
    marks: Sequence[StepMark] = (),
    source: str = "",
) -> tuple[Finding, ...]:
    """The findings of one attempt, first causes first, at most 40. The same line gives the same id each time.

    `marks` are the places where steps were completed (ProgressReader.marks); without them nothing counts as survived.
    """
    placed = with_tables(hits)
    maker = _Maker(RankMap(placed), attempt_number, view, seen_at, source, Counter(one.signature.id for one in placed))
    kept = that_count(placed, marks)
    findings: dict[str, Finding] = {}
    order: dict[str, tuple[int, int]] = {}
    taken: Counter[str] = Counter()
    for hit, survived in kept:
        if taken[hit.signature.id] >= PER_SIGNATURE:
            continue
        finding = maker.finding(hit, survived)
        if finding.id not in findings:
            taken[hit.signature.id] += 1
            findings[finding.id] = finding
            order[finding.id] = (_ORDER[finding.role], hit.offset)
    standing = [hit for hit, survived in kept if not survived]
    if not any(_names_a_cause(hit) for hit in standing) and (quiet := silence(standing, maker.ranks, view.nodes)):
        finding = maker.of_silence(quiet, standing[0])
        findings[finding.id] = finding
        order[finding.id] = (_ORDER[finding.role], standing[0].offset)
    return tuple(sorted(findings.values(), key=lambda one: order[one.id])[:FINDINGS])


def that_count(hits: Sequence[Hit], marks: Sequence[StepMark]) -> list[tuple[Hit, bool]]:
    """The hits that tell something, and whether the training survived them.

    A notice (cancelled, requeued, finished, …) makes all that follows in the attempt a consequence, unless steps are
    completed again: then a new attempt writes to the same file, or the job restarted itself.
    """
    latest = sorted(marks, key=lambda mark: mark.offset)
    last_survived = latest[-WENT_ON].offset if len(latest) >= WENT_ON else -1
    notices = [hit for hit in hits if hit.signature.ends and hit.offset >= last_survived]
    notices = [hit for hit in notices if hit.signature.id != FINISHED or _has_finished(hit, latest)]
    end = notices[0] if notices else None
    finished = end is not None and end.signature.id == FINISHED
    kept: list[tuple[Hit, bool]] = []
    for hit in hits:
        if hit.signature.role is Role.BENIGN and hit is not end:
            continue
        if end is not None and hit.offset > end.offset and not _is_schedulers_word(hit):
            continue
        kept.append((hit, hit is not end and (hit.offset < last_survived or finished)))
    return kept


def known_as(name: str | None, nodes: Nodes) -> str | None:
    """A host name as Slurm writes it: with or without its domain. Names of other nodes stay as they are."""
    if name is None or name in nodes:
        return name
    short = name.split(".", 1)[0]
    matching = [node for node in nodes if node.split(".", 1)[0] == short]
    return matching[0] if len(matching) == 1 and not short.isdecimal() else name


def _has_finished(hit: Hit, marks: Sequence[StepMark]) -> bool:
    """A planned end in words counts only where the step lines do not say that steps are left."""
    last = marks[-1] if marks else None
    return "[" in hit.text[:2] or last is None or last.total is None or last.step >= last.total


def _is_schedulers_word(hit: Hit) -> bool:
    """What srun and slurmctld say about the end may stand behind the notice of it."""
    return hit.signature.role is Role.ROOT and hit.signature.id.startswith(("slurm.", "srun."))


def _names_a_cause(hit: Hit) -> bool:
    return hit.signature.role is Role.ROOT and hit.signature.fault_class is not FaultClass.UNKNOWN


class _Maker:
    """Makes findings of one attempt."""

    def __init__(
        self, ranks: RankMap, attempt: int, view: JobView, seen_at: datetime, source: str, lines: Counter[str]
    ) -> None:
        self.ranks = ranks
        self.attempt = attempt
        self.view = view
        self.seen_at = seen_at
        self.source = source
        self.lines = lines

    def finding(self, hit: Hit, survived: bool) -> Finding:
        signature = hit.signature
        rank = number(hit.fields, "rank")
        node, how = self._node(hit, rank)
        place = ", ".join(part for part in (f"rank {rank}" if rank is not None else "", node or "") if part)
        lines = self.lines[signature.id]
        return Finding(
            # The line's own words only: what is derived from other lines may become known later.
            id=self._id(signature.id, hit.fields.get("node", ""), "" if rank is None else str(rank), hit.text),
            attempt=self.attempt,
            detector="log",
            signature=signature.id,
            fault_class=signature.fault_class,
            role=Role.BENIGN if survived else signature.role,
            retry=signature.retry,
            certainty=Certainty.SUSPECTED if survived or signature.role is not Role.ROOT else Certainty.CONFIRMED,
            seen_at=self.seen_at,
            nodes=(node,) if node else (),
            rank=rank,
            local_rank=number(hit.fields, "local_rank"),
            gpu=hit.fields.get("gpu") or hit.fields.get("pci"),
            peer=hit.fields.get("peer"),
            how="the training went on afterwards" if survived else how,
            summary=signature.title + (f" ({place})" if place else "") + (f", {lines} such lines" if lines > 1 else ""),
            evidence=hit.text[:EVIDENCE_BYTES],
            source=hit.source or self.source,
            line=hit.line,
        )

    def of_silence(self, quiet: Silence, first: Hit) -> Finding:
        title, fault_class, retry = _SILENCES[quiet.kind]
        who = f"ranks {', '.join(str(rank) for rank in quiet.ranks[:20])}" if quiet.ranks else "its launcher"
        return Finding(
            id=self._id(f"silence.{quiet.kind}", quiet.node, ",".join(str(rank) for rank in quiet.ranks), ""),
            attempt=self.attempt,
            detector="silence",
            signature=f"silence.{quiet.kind}",
            fault_class=fault_class,
            role=Role.ROOT,
            retry=retry,
            certainty=Certainty.SUSPECTED,
            seen_at=self.seen_at,
            nodes=() if quiet.kind is Kind.LEFT else (quiet.node,),
            rank=quiet.ranks[0] if len(quiet.ranks) == 1 else None,
            how=f"{who} said nothing, everybody else did",
            summary=f"{title} ({quiet.node}, {who})",
            source=first.source or self.source,
            line=first.line,
        )

    def _node(self, hit: Hit, rank: int | None) -> tuple[str | None, str]:
        """The node a line implicates, and how that is known."""
        nodes, says = self.view.nodes, hit.signature.node
        if says is Says.PEER:
            peer = known_as(hit.fields.get("peer"), nodes)
            how = "named as the other end by a node that could not reach it"
            return (peer, how) if peer in nodes else (None, "")
        if says not in {Says.REPORTER, Says.NAMED}:
            return None, ""
        if name := hit.fields.get("node"):
            return known_as(name, nodes), "the line names it" if says is Says.NAMED else "the line was printed by it"
        if (told := self.ranks.node_of(rank, hit.offset)) is not None:
            return known_as(told[0], nodes), told[1]
        if len(nodes) == 1:
            return nodes[0], "the job runs on this node only"
        return None, ""

    def _id(self, *parts: str) -> str:
        text = "\n".join((self.view.cluster, str(self.view.raw_id), str(self.attempt), *parts))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
