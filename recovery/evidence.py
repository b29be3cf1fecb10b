"""Turns the lines a scan found into findings: keeps those that count, derives nodes, bounds the number.

What a job prints is testimony about this job only; blame (blame.py) decides what it is worth. No I/O.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from recovery.context import Weighed, weigh
from recovery.faults.catalogue import Says
from recovery.faults.places import (
    AddressMap,
    RankMap,
    Told,
    known_as,
    names_in,
    nodes_of_files,
    number,
    with_tables,
)
from recovery.faults.scanner import BRIEF, Hit
from recovery.faults.silence import Kind, Silence, never_came, silence
from recovery.progress import StepMark
from recovery.records import (
    EVIDENCE_BYTES,
    Certainty,
    Confidence,
    FaultClass,
    Finding,
    JobView,
    Nodes,
    Retry,
    Role,
)

__all__ = ["FINDINGS", "PER_SIGNATURE", "Evidence", "evidence_of", "findings_of_attempt", "known_as"]

FINDINGS = 40
"""Most findings of one attempt."""

PER_SIGNATURE = 12
"""Most findings of one signature, so that a thousand victims leave room for the cause."""

DEATHS = ("torchelastic.exit.9", "torchelastic.failed.9", "process.killed", "srun.killed")
"""They tell that a process died, not why: who fell silent may tell more."""

ENDED_BY_LAUNCHER = ("-15", "-9")
"""Exit codes of ranks that did not fail by themselves."""

Find = Callable[[Hit], Told | None]

_ORDER = {Role.ROOT: 0, Role.SYMPTOM: 1, Role.CASCADE: 2, Role.BENIGN: 3}

_SILENCES: dict[Kind, tuple[str, FaultClass, Retry]] = {
    Kind.NODE: ("A node fell silent while all others reported the loss of a peer", FaultClass.HARDWARE, Retry.YES),
    Kind.HUNG: ("Ranks of one node were silent while all others waited for them", FaultClass.INTERCONNECT, Retry.YES),
    Kind.BEHIND: ("Ranks of one node had not come to where all others waited", FaultClass.INTERCONNECT, Retry.YES),
    Kind.CUT: (
        "Ranks of all nodes waited in vain, and one launcher did not come to its end",
        FaultClass.INTERCONNECT,
        Retry.YES,
    ),
    Kind.LEFT: ("A rank ended early and without an error while the others went on", FaultClass.APPLICATION, Retry.NO),
}


@dataclass(frozen=True)
class Evidence:
    """What a log says about one attempt: findings, first causes first, and each line with whether it counts."""

    findings: tuple[Finding, ...]
    weighed: tuple[Weighed, ...]


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
    return evidence_of(hits, attempt_number, view, seen_at, marks=marks, source=source).findings


def evidence_of(
    hits: Sequence[Hit],
    attempt_number: int,
    view: JobView,
    seen_at: datetime,
    *,
    marks: Sequence[StepMark] = (),
    source: str = "",
    files: Sequence[str] = (),
) -> Evidence:
    """The same, with what was left out and why. `files` are the names of all files of the attempt."""
    placed = with_tables(hits)
    weighed = weigh(placed, marks)
    maker = _Maker(placed, [one.hit for one in weighed if one.counts], attempt_number, view, seen_at, source, files)
    findings: dict[str, Finding] = {}
    order: dict[str, tuple[int, int]] = {}
    taken: Counter[str] = Counter()
    # What counts comes first: the same words may stand twice, survived the first time and not the second.
    for one in sorted(weighed, key=lambda one: not one.counts):
        hit = one.hit
        if not (one.counts or one.survived) or taken[hit.signature.id] >= PER_SIGNATURE:
            continue
        finding = maker.finding(hit, one.why_not)
        if finding.id not in findings:
            taken[hit.signature.id] += 1
            findings[finding.id] = finding
            order[finding.id] = (_ORDER[finding.role], hit.offset)
    standing = maker.standing
    if not any(_names_a_cause(hit) for hit in standing) and (quiet := silence(standing, maker.ranks, view.nodes)):
        finding = maker.of_silence(quiet, standing[0])
        findings[finding.id] = finding
        order[finding.id] = (_ORDER[finding.role], standing[0].offset)
    first = sorted(findings.values(), key=lambda one: order[one.id])[:FINDINGS]
    return Evidence(findings=tuple(first), weighed=tuple(weighed))


def _names_a_cause(hit: Hit) -> bool:
    signature = hit.signature
    return (
        signature.role is Role.ROOT and signature.fault_class is not FaultClass.UNKNOWN and signature.id not in DEATHS
    )


class _Maker:
    """Makes findings of one attempt."""

    def __init__(
        self,
        hits: Sequence[Hit],
        standing: Sequence[Hit],
        attempt: int,
        view: JobView,
        seen_at: datetime,
        source: str,
        files: Sequence[str],
    ) -> None:
        self.standing = standing
        self.ranks = RankMap(hits)
        self.attempt = attempt
        self.view = view
        self.seen_at = seen_at
        self.source = source
        self.lines = Counter(one.signature.id for one in hits)
        self.addresses = AddressMap(hits, view.nodes)
        self.files = nodes_of_files(files, hits, view.nodes)
        self.shared_ends = _shared_ends(standing, self._peer, self._reporter)
        self.unsigned: dict[str, Told | None] = {}
        self.everywhere = self._told_everywhere()
        self.alike = Counter(
            (hit.signature.id, nodes[0])
            for hit in standing
            if hit.signature.role is Role.ROOT and (nodes := self._nodes(hit, number(hit.fields, "rank"))[0])
        )

    def finding(self, hit: Hit, why_not: str) -> Finding:
        """The finding of one line. `why_not`: it does not count, since the training survived it."""
        signature = hit.signature
        rank = number(hit.fields, "rank")
        nodes, how = self._nodes(hit, rank)
        place = ", ".join(part for part in (f"rank {rank}" if rank is not None else "", *nodes[:3]) if part)
        lines = self.lines[signature.id]
        # The same words in the files of several nodes are several findings.
        own = hit.fields.get("node", "") or (hit.source if hit.source in self.files else "")
        return Finding(
            # The line's own words only: what is derived from other lines may become known later.
            id=self._id(signature.id, own, "" if rank is None else str(rank), hit.text[:BRIEF]),
            attempt=self.attempt,
            detector="log",
            signature=signature.id,
            fault_class=signature.fault_class,
            role=Role.BENIGN if why_not else signature.role,
            retry=signature.retry,
            certainty=Certainty.SUSPECTED if why_not or signature.role is not Role.ROOT else Certainty.CONFIRMED,
            seen_at=self.seen_at,
            nodes=nodes,
            confidence=signature.confidence,
            alike=max(1, self.alike[signature.id, nodes[0]]) if nodes else 1,
            everywhere=not why_not and signature.fault_class in self.everywhere,
            rank=rank,
            local_rank=number(hit.fields, "local_rank"),
            gpu=hit.fields.get("gpu") or hit.fields.get("pci"),
            peer=hit.fields.get("peer"),
            how=why_not or how,
            summary=signature.title + (f" ({place})" if place else "") + (f", {lines} such lines" if lines > 1 else ""),
            evidence=hit.text[:EVIDENCE_BYTES],
            source=hit.source or self.source,
            line=hit.line,
            place=hit.offset,
        )

    def of_silence(self, quiet: Silence, first: Hit) -> Finding:
        title, fault_class, retry = _SILENCES[quiet.kind]
        how = {
            Kind.BEHIND: "{} waited in an earlier operation",
            Kind.CUT: "{} may be cut off; or its launcher was only ended before it could say so",
        }.get(quiet.kind, "{} said nothing, everybody else did")
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
            confidence=Confidence.LOW if quiet.kind is Kind.CUT else None,
            how=how.format(who),
            summary=f"{title} ({quiet.node}, {who})",
            source=first.source or self.source,
            line=first.line,
            place=first.offset,
        )

    def _told_everywhere(self) -> frozenset[FaultClass]:
        """Classes of causes that every node told. Only some of the lines become findings, so it is counted here."""
        told: defaultdict[FaultClass, set[str]] = defaultdict(set)
        for hit in self.standing:
            if hit.signature.role is Role.ROOT and hit.signature.node is not Says.PEER and (one := self._reporter(hit)):
                told[hit.signature.fault_class].add(one[0])
        every = set(self.view.nodes)
        return frozenset(one for one, nodes in told.items() if len(every) > 1 and nodes >= every)

    # -------------------------------------------------------------------------------------------- where

    def _nodes(self, hit: Hit, rank: int | None) -> tuple[Nodes, str]:
        """The nodes a line implicates, and how that is known."""
        nodes, says, signature = self.view.nodes, hit.signature.node, hit.signature
        if signature.id == "rendezvous.timeout" and (missing := self._never_came):
            return missing, "it never came to the rendezvous; all others said something"
        if says is Says.NAMED and (name := hit.fields.get("node")):
            return tuple(known_as(one, nodes) or one for one in names_in(name)), "the line names it"
        told: Told | None = None
        if says is Says.PEER:
            told = self._peer(hit)
            if (end := self.shared_ends.get(signature.id)) is not None:
                told = end if end[0] in {told[0] if told else "", (self._reporter(hit) or ("",))[0]} else None
        elif says in {Says.REPORTER, Says.NAMED}:
            told = self._reporter(hit)
            if told is None and signature.role is Role.ROOT:
                told = self._left_first(hit) or self._gave_up_first(hit)
        elif says is Says.HEAD:
            told = self._reporter(hit)
            if told is None and self.view.batch_host in nodes:
                told = self.view.batch_host, "the job's processes meet on its first node"
        return ((known_as(told[0], nodes) or told[0],), told[1]) if told is not None else ((), "")

    def _reporter(self, hit: Hit) -> Told | None:
        """The node that printed a line."""
        if hit.signature.node is not Says.NAMED and (name := hit.fields.get("node")):
            return known_as(name, self.view.nodes) or name, "the line was printed by it"
        told = self.ranks.node_of(number(hit.fields, "rank"), hit.offset)
        told = told or self.files.get(hit.source) or self.ranks.node_of_task(number(hit.fields, "task"))
        if told is not None:
            return known_as(told[0], self.view.nodes) or told[0], told[1]
        if len(self.view.nodes) == 1:
            return self.view.nodes[0], "the job runs on this node only"
        return None

    def _peer(self, hit: Hit) -> Told | None:
        """The other end that a line names, where it is a node of the job."""
        peer = known_as(hit.fields.get("peer"), self.view.nodes)
        if peer in self.view.nodes:
            return str(peer), "named as the other end by a node that could not reach it"
        return self.addresses.node_of(hit.fields.get("peer"))

    def _left_first(self, hit: Hit) -> Told | None:
        """Where a cause happened that nobody signed: on the node whose connections the others lost first after it.

        It must not be one whose ranks were only ended by their launcher.
        """
        if hit.signature.fault_class not in {FaultClass.HARDWARE, FaultClass.INTERCONNECT}:
            return None
        # Not looked through for each line: a hostile log holds thousands of causes.
        place = bisect_right(self._losses, hit.offset, key=lambda one: one.offset)
        lost = self._losses[place] if place < len(self._losses) else None
        told = self.addresses.likely_node_of(lost.fields["peer"]) if lost is not None else None
        if told is None:
            return None
        codes = self._codes
        ended = codes.get(told[0])
        if ended is None and len(codes) == len(self.view.nodes) - 1:
            ended = {""}  # all others have told how theirs ended
        if ended is None or ended <= {"-15"}:
            return None
        return told[0], f"the others lost it first, and {told[1]}"

    @cached_property
    def _never_came(self) -> Nodes:
        return never_came(self.standing, self.view.nodes, self.view.batch_host)

    @cached_property
    def _losses(self) -> list[Hit]:
        """Lines that tell of a lost peer, in order."""
        lost = (one for one in self.standing if one.signature.role is Role.CASCADE and "peer" in one.fields)
        return sorted(lost, key=lambda one: one.offset)

    @cached_property
    def _codes(self) -> dict[str, set[str]]:
        """With which exit codes ranks of a node ended, as its launcher tells."""
        codes: dict[str, set[str]] = {}
        for one in self.standing:
            if one.signature.id.startswith("torchelastic.exit") and "node" in one.fields:
                codes.setdefault(one.fields["node"], set()).add(one.fields.get("code", ""))
        return codes

    @cached_property
    def _signed(self) -> set[str]:
        """Ranks that said something themselves."""
        return {one.fields["rank"] for one in self.standing if "rank" in one.fields and not _is_table(one)}

    @cached_property
    def _standing_lines(self) -> Counter[str]:
        return Counter(one.signature.id for one in self.standing)

    @cached_property
    def _tables(self) -> list[Hit]:
        """What launchers say of their ranks and of each other."""
        names = ("torchelastic.exit", "rendezvous.lost")
        return [one for one in self.standing if one.signature.id.startswith(names)]

    def _gave_up_first(self, hit: Hit) -> Told | None:
        """Where a cause happened that nobody signed: ranks have no label yet while they start.

        On the node whose launcher was the first to see ranks fail, when at least as many failed there as said so, none
        of them said anything else, and the launchers of all other nodes spoke later.
        """
        name = hit.signature.id
        if name not in self.unsigned:
            # Each costs a look at every line; the number after an Xid makes as many names as a log likes.
            self.unsigned[name] = self._of_the_first_table(hit) if len(self.unsigned) < FINDINGS else None
        return self.unsigned[name]

    def _of_the_first_table(self, hit: Hit) -> Told | None:
        alike = self._standing_lines[hit.signature.id]
        failed: dict[str, set[str]] = {}
        others: set[str] = set()
        for one in self._tables:
            node = known_as(one.fields.get("node"), self.view.nodes) if one.offset >= hit.offset else None
            if node is None:
                continue
            if one.signature.id == "rendezvous.lost":
                others.add(node)
            elif one.fields.get("code") not in ENDED_BY_LAUNCHER:
                failed.setdefault(node, set()).add(one.fields.get("rank", ""))
        if not failed or len(self.view.nodes) < 2:
            return None
        first, ranks = next(iter(failed.items()))
        if alike > len(ranks) or ranks & self._signed or {first, *others, *failed} < set(self.view.nodes):
            return None
        return first, "its launcher was the first that saw ranks fail, as many as said so"

    def _id(self, *parts: str) -> str:
        text = "\n".join((self.view.cluster, str(self.view.raw_id), str(self.attempt), *parts))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _is_table(hit: Hit) -> bool:
    return hit.signature.id.startswith("torchelastic.")


def _shared_ends(hits: Sequence[Hit], peer: Find, reporter: Find) -> dict[str, Told]:
    """Of lines that tell of a connection between two nodes: the node that most pairs have in common, by signature."""
    pairs: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for hit in hits:
        if hit.signature.node is Says.PEER and (one := reporter(hit)) and (other := peer(hit)):
            pairs[hit.signature.id].add((one[0], other[0]))
    found: dict[str, Told] = {}
    for name, seen in pairs.items():
        counted = Counter(node for pair in seen for node in set(pair)).most_common(2)
        if len(seen) > 1 and (len(counted) == 1 or counted[0][1] > counted[1][1]):
            found[name] = counted[0][0], f"{counted[0][1]} of {len(seen)} broken connections have it as an end"
    return found
