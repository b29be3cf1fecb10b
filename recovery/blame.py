"""Blames the first cause, not the loudest victim: findings of one attempt in, one verdict out. Pure.

Suspects are nodes of the job's own allocation only, and only where something implicates them. A suspect of LOW
confidence is merely where it happened: a reason to avoid the node when it happens there again, not before. "Cannot
tell" (class unknown, no suspect) is a valid verdict. What to do about it is the policy's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from recovery.records import Confidence, FaultClass, Finding, JobView, Nodes, Retry, Role, Suspect, Verdict

NODE_CLASSES = frozenset({FaultClass.HARDWARE, FaultClass.INTERCONNECT})
"""Classes in which the node itself is bad, so that leaving it out helps."""

ONE_NODE = {
    "storage.missing_path": FaultClass.STORAGE,
    "storage.stale_handle": FaultClass.STORAGE,
    "python.import_error": FaultClass.SYSTEM_SOFTWARE,
}
"""Reads like the user's mistake or the server's trouble, but is the node's when every rank of one node says it and
nobody else does; and the class it then has."""

DEATHS = ("torchelastic.exit.9", "torchelastic.failed.9", "process.killed")
"""They tell that a process died, not why: everything else that is known goes before."""

KILLED = (*DEATHS, "srun.killed", "process.dataloader_killed")
"""Something was killed by a signal from outside: where a host's kernel says that its memory was full, that was it."""

NAMED_BY = {
    "slurm.ended_by_node_failure": "slurm.node_failure",
    **{f"torchelastic.failed.{code}": f"torchelastic.exit.{code}" for code in (7, 9, 11)},
}
"""Of one and the same event, the first line tells it and the second one where it was."""

SHARED = 0.5
"""When more than this share of the nodes (of at least 3) report the same trouble, it lies in what they share."""

_NEVER = datetime.max.replace(tzinfo=UTC)
_WEAKEST = (
    Confidence.LOW,
    Confidence.MEDIUM,
    Confidence.HIGH,
)


def attribute(view: JobView, findings: Sequence[Finding], *, nodes_down: Nodes = ()) -> Verdict:
    """The verdict on one attempt. `nodes_down` are nodes the scheduler calls down now, wherever they are."""
    down = tuple(node for node in nodes_down if node in view.nodes)
    counting = [one for one in findings if one.role is not Role.BENIGN]
    words = [one for one in counting if one.trusted]
    testimony = [one for one in counting if not one.trusted]
    if any(one.fault_class is not FaultClass.NONE for one in words) or any(_is_trouble(one) for one in testimony):
        # A step is also "cancelled" as a consequence; that word alone never outweighs a failure.
        testimony = [one for one in testimony if one.fault_class is not FaultClass.NONE]

    # What holds the next attempt up goes before what ended the one before it.
    words.sort(key=lambda word: -word.attempt)
    for word in words:
        if word.retry is Retry.HANDS_OFF and word.attempt == words[0].attempt:
            return _verdict(word, (), f"{word.summary}: nothing broke that relight should repair")
    for word in words:
        if word.role is Role.ROOT:
            return _scheduler_says(view, word, testimony, down)

    causes = sorted((one for one in testimony if one.role is Role.ROOT), key=_precedence)
    if (starved := _host_without_memory(view, words, testimony)) is not None:
        return starved
    if down and not any(_is_ours(one) for one in causes):
        return _node_down(down, causes)
    if causes:
        return _first_cause(view, causes, testimony)
    symptoms = sorted((one for one in (*words, *testimony) if one.role is Role.SYMPTOM), key=_moment)
    known = [one for one in symptoms if one.fault_class is not FaultClass.UNKNOWN]
    if known:
        return _symptom(view, known[0])
    return _cannot_tell(view, [*words, *testimony])


def _scheduler_says(view: JobView, word: Finding, testimony: Sequence[Finding], down: Nodes) -> Verdict:
    """NODE_FAIL, OUT_OF_MEMORY and the like: what the scheduler says goes before what the job printed."""
    if word.fault_class is FaultClass.OUT_OF_MEMORY:
        where = [one for one in testimony if one.fault_class is FaultClass.OUT_OF_MEMORY and one.nodes]
        suspects, dropped = _suspects(view, where, at_most=Confidence.LOW)
        return _verdict(word, suspects, word.summary, dropped)
    named = [one for one in testimony if one.signature == "slurm.node_failure"]
    suspects, dropped = _suspects(view, [word, *named])
    suspects = _merged(_down(down), suspects)
    causes = sorted((one for one in testimony if one.role is Role.ROOT), key=_precedence)
    if not suspects and word.fault_class is FaultClass.HARDWARE and causes and causes[0].fault_class in NODE_CLASSES:
        # A slurmctld that lost a job's end when it died calls that a lost node later: then only the log tells where.
        told = _first_cause(view, causes, testimony)
        return _verdict(word, told.suspects, f"{word.summary}; before that: {told.reason}", dropped)
    return _verdict(word, suspects, word.summary + _where(suspects), dropped)


def _host_without_memory(view: JobView, words: Sequence[Finding], testimony: Sequence[Finding]) -> Verdict | None:
    """The verdict where the log tells no more than that something was killed, and a trusted witness that a host of the
    job had run out of memory. Which process filled it is not known, so the host is merely where it happened."""
    told = [one for one in words if one.fault_class is FaultClass.OUT_OF_MEMORY and one.nodes]
    killed = any(one.signature in KILLED for one in testimony)
    if not told or not killed or any(one.role is Role.ROOT and one.signature not in KILLED for one in testimony):
        return None
    suspects, dropped = _suspects(view, told, at_most=Confidence.LOW)
    first = min(told, key=_moment)
    return _verdict(first, suspects, f"{first.summary}; the log tells of a process that was killed", dropped)


def _node_down(down: Nodes, causes: Sequence[Finding]) -> Verdict:
    suspects = _down(down)
    return Verdict(
        fault_class=FaultClass.HARDWARE,
        signature=causes[0].signature if causes else "node.down",
        retry=Retry.YES,
        suspects=suspects,
        reason=f"the scheduler calls {', '.join(down)} down, and the log shows no fault of the job itself",
        first_cause=causes[0].id if causes else None,
    )


def _first_cause(view: JobView, causes: Sequence[Finding], testimony: Sequence[Finding]) -> Verdict:
    first = causes[0]
    same = [one for one in causes if one.signature == first.signature]
    nodes = {node for one in same for node in one.nodes if node in view.nodes}
    if first.signature in ONE_NODE and (verdict := _on_one_node(view, first, same)) is not None:
        return verdict
    alike = {node for one in causes if one.fault_class is first.fault_class for node in one.nodes}
    everywhere = first.everywhere or (len(alike) > 1 and alike >= set(view.nodes))
    if first.fault_class not in NODE_CLASSES and everywhere:
        never = first.retry is Retry.ONCE or first.signature in ONE_NODE
        retry = Retry.NO if never else first.retry
        return _verdict(first, (), f"{first.summary}: the same on every node, so no node is to blame", retry=retry)
    if first.fault_class is FaultClass.INTERCONNECT and len(nodes) >= 3 and len(nodes) > SHARED * len(view.nodes):
        reason = f"{first.summary}: on {len(nodes)} of {len(view.nodes)} nodes, so it lies in what they share"
        return _verdict(first, (), reason)
    named = [one for one in causes if one.signature == NAMED_BY.get(first.signature)]
    if not first.trusted and first.signature.startswith("torchelastic.") and len({one.nodes for one in named}) > 1:
        named = []  # which of them was the first death, the launcher did not say
    suspects, dropped = _suspects(view, [*_together(first, same), *named])
    suspects = _confirmed(suspects, testimony, first)
    return _verdict(first, suspects, first.summary + _where(suspects), dropped)


def _on_one_node(view: JobView, first: Finding, same: Sequence[Finding]) -> Verdict | None:
    """The verdict where several ranks of one node, and nobody else, lack what all others have."""
    nodes = {node for one in same for node in one.nodes if node in view.nodes}
    ranks = {one.rank for one in same if one.rank is not None}
    count = len(ranks) or max(one.alike for one in same)  # ranks that are only starting have no label yet
    if len(nodes) != 1 or count < 2 or len(view.nodes) < 2 or any(not one.nodes for one in same):
        return None
    suspects, dropped = _suspects(view, same, at_most=Confidence.MEDIUM, low=False)
    reason = f"{first.summary}: only on {min(nodes)}, with {count} of its ranks, so the node lacks it"
    fault_class = ONE_NODE[first.signature]
    return _verdict(first, suspects, reason, dropped, fault_class=fault_class, retry=Retry.YES)


def _together(first: Finding, same: Sequence[Finding]) -> list[Finding]:
    """The first cause, with later lines of the same signature only where they speak of the same node.

    Where the first one names none, and all that do name the same, that is where it was.
    """
    named = [one for one in same if one.nodes]
    if not first.nodes and len({one.nodes for one in named}) == 1:
        return named
    return [first, *(one for one in same if one is not first and set(one.nodes) & set(first.nodes))]


def _symptom(view: JobView, first: Finding) -> Verdict:
    suspects, dropped = _suspects(view, [first], at_most=Confidence.LOW)
    return _verdict(first, suspects, f"{first.summary}; the log shows no cause behind it", dropped)


def _cannot_tell(view: JobView, counting: Sequence[Finding]) -> Verdict:
    if not counting:
        return Verdict(fault_class=FaultClass.NONE, retry=Retry.HANDS_OFF, reason="nothing speaks of a fault")
    first = min(counting, key=lambda one: (one.role is Role.CASCADE, one.trusted, _moment(one)))
    exits = [one for one in counting if one.signature == "srun.task_exited" and one.role is Role.SYMPTOM]
    # srun only tells which task ended first with an error, often a victim's.
    suspects, dropped = _suspects(view, exits[:1], at_most=Confidence.LOW)
    reason = f"cannot tell why: {first.summary}; no cause is shown"
    return _verdict(first, suspects, reason, dropped, fault_class=FaultClass.UNKNOWN, retry=Retry.YES)


# ------------------------------------------------------------------------------------------------ order


def _moment(finding: Finding) -> tuple[int, datetime, int]:
    """When it was. Lines of one attempt stand in an order of their own: clocks of nodes differ."""
    last = 1 << 62
    if finding.place is not None:
        return finding.place, _NEVER, 0
    return last, finding.at or _NEVER, finding.line if finding.line is not None else last


def _precedence(finding: Finding) -> tuple[int, int, datetime, int]:
    """Local evidence before what is said of others, and both before deaths without a stated cause."""
    if finding.fault_class is FaultClass.UNKNOWN or finding.signature in DEATHS:
        strength = 2
    elif finding.peer is not None:
        strength = 1
    else:
        strength = 0
    return (strength, *_moment(finding))


def _is_trouble(finding: Finding) -> bool:
    return finding.fault_class is not FaultClass.NONE and finding.role in {Role.ROOT, Role.SYMPTOM}


def _is_ours(finding: Finding) -> bool:
    """True for causes that lie in the job itself and not in a node."""
    return finding.fault_class in {FaultClass.USER, FaultClass.APPLICATION, FaultClass.OUT_OF_MEMORY}


# ------------------------------------------------------------------------------------------------ suspects


def _suspects(
    view: JobView, findings: Iterable[Finding], *, at_most: Confidence = Confidence.HIGH, low: bool = True
) -> tuple[tuple[Suspect, ...], Nodes]:
    """Suspects inside the allocation, and the named nodes that are not in it."""
    inside: dict[str, Suspect] = {}
    outside: set[str] = set()
    for finding in findings:
        for node in finding.nodes:
            if node not in view.nodes:
                outside.add(node)
                continue
            confidence = _confidence(finding) if low else Confidence.MEDIUM
            confidence = min(confidence, at_most, key=_WEAKEST.index)
            how = f"{finding.summary} ({finding.how})" if finding.how else finding.summary
            inside.setdefault(node, Suspect(node=node, how=how, confidence=confidence, trusted=finding.trusted))
    return tuple(inside[node] for node in sorted(inside)), tuple(sorted(outside))


def _confidence(finding: Finding) -> Confidence:
    if finding.trusted:
        return Confidence.HIGH
    if finding.confidence is not None:
        return finding.confidence
    return Confidence.MEDIUM if finding.fault_class in NODE_CLASSES else Confidence.LOW


def _confirmed(suspects: Sequence[Suspect], testimony: Sequence[Finding], first: Finding) -> tuple[Suspect, ...]:
    """A second, different line that names the same node as where it broke makes the first one surer, unless its entry
    in the catalogue says how sure it is."""
    if first.confidence is not None:
        return tuple(suspects)
    seconds = {
        node
        for one in testimony
        if one.signature != first.signature and one.role is not Role.CASCADE
        for node in one.nodes
    }
    return tuple(
        one.model_copy(update={"confidence": Confidence.HIGH})
        if one.confidence is Confidence.MEDIUM and one.node in seconds
        else one
        for one in suspects
    )


def _down(nodes: Nodes) -> tuple[Suspect, ...]:
    how = "the scheduler calls it down"
    return tuple(Suspect(node=node, how=how, confidence=Confidence.HIGH, trusted=True) for node in nodes)


def _merged(*groups: Sequence[Suspect]) -> tuple[Suspect, ...]:
    """Suspects of several sources, each node once, the earlier source first."""
    merged: dict[str, Suspect] = {}
    for suspect in (one for group in groups for one in group):
        merged.setdefault(suspect.node, suspect)
    return tuple(merged[node] for node in sorted(merged))


def _where(suspects: Sequence[Suspect]) -> str:
    return f" on {', '.join(one.node for one in suspects)}" if suspects else "; nothing tells which node"


def _verdict(
    cause: Finding,
    suspects: Sequence[Suspect],
    reason: str,
    dropped: Nodes = (),
    *,
    fault_class: FaultClass | None = None,
    retry: Retry | None = None,
) -> Verdict:
    if dropped:
        reason += f"; {', '.join(dropped[:5])} named but not part of the job's allocation, so not suspected"
    return Verdict(
        fault_class=cause.fault_class if fault_class is None else fault_class,
        signature=cause.signature,
        retry=cause.retry if retry is None else retry,
        suspects=tuple(suspects),
        reason=reason,
        first_cause=cause.id,
    )
