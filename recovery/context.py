"""Decides which lines of a log count, and why the others do not: what training survived, what is only a consequence.

A line alone is no fault. It becomes one by what follows: the job ends, or its steps stop. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recovery.faults.scanner import Hit
from recovery.progress import StepMark
from recovery.records import Role

WENT_ON = 3
"""Steps completed after a line that show the training survived it; one or two may only be late in the log."""

FINISHED = "run.finished"
ABORTED = "srun.step_aborted"

SURVIVED = "the training went on afterwards"
STARTED_ANEW = "the training was started anew afterwards"
REACHED_END = "the training reached its end"
AFTER_END = "the training had reached its end before"
AFTER_NOTICE = "the job had been told to end before"

_ENDS_OF_PROCESSES = ("srun.", "torchelastic.exit", "torchelastic.failed", "torchelastic.child_failed")

_ITS_OWN_WORDS = ("[after training is done]", "[exiting program a")
"""A framework says it in these words only when it is true."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A line and whether it counts."""

    hit: Hit
    why_not: str = ""
    """Why it does not count; empty: it counts."""
    survived: bool = False
    """It tells of trouble that the training survived: worth a finding, but no cause of anything."""

    @property
    def counts(self) -> bool:
        return not self.why_not


def weigh(hits: Sequence[Hit], marks: Sequence[StepMark]) -> list[Weighed]:
    """Each hit that tells something, in order, and whether it counts. Hits and marks have places in the same log.

    A notice (cancelled, requeued, finished, …) makes all that follows in the attempt a consequence, unless steps are
    completed again: then a new attempt writes to the same file, or the job restarted itself.
    """
    latest = sorted(marks, key=lambda mark: mark.offset)
    survived, why_survived = _survived(hits, latest)
    notices = [hit for hit in hits if hit.signature.ends and _is_notice(hit, latest, survived)]
    end = notices[0] if notices else None
    finished = end is not None and end.signature.id == FINISHED
    weighed: list[Weighed] = []
    aborted: int | None = None
    for hit in hits:
        if hit.signature.id == ABORTED:
            aborted = hit.offset
        if hit.signature.role is Role.BENIGN and hit is not end:
            if hit.signature.hides:
                weighed.append(Weighed(hit, hit.signature.title))
            continue
        if aborted is not None and aborted >= survived and hit.offset > aborted:
            hit = _as_consequence(hit)
        if end is not None and hit.offset > end.offset and not _is_schedulers_word(hit):
            weighed.append(Weighed(hit, AFTER_END if finished else AFTER_NOTICE))
        elif hit is not end and hit.offset < survived:
            weighed.append(Weighed(hit, why_survived, survived=True))
        elif hit is not end and finished:
            weighed.append(Weighed(hit, REACHED_END, survived=True))
        else:
            weighed.append(Weighed(hit))
    return weighed


def _survived(hits: Sequence[Hit], marks: Sequence[StepMark]) -> tuple[int, str]:
    """The place in the log before which everything was survived, and how that shows.

    Three more steps show it. So does a new beginning of the training: with a step after it, or where processes had
    ended before it (the script starts a second srun, the launcher its ranks again).
    """
    by_steps = marks[-WENT_ON].offset if len(marks) >= WENT_ON else -1
    last_step = marks[-1].offset if marks else -1
    by_start = -1
    ended = False
    for hit in hits:
        if hit.signature.id.startswith(_ENDS_OF_PROCESSES):
            ended = True
        elif hit.signature.starts and (ended or last_step > hit.offset):
            by_start = hit.offset
    if by_start > by_steps:
        return by_start, STARTED_ANEW
    return by_steps, SURVIVED


def _is_notice(hit: Hit, marks: Sequence[StepMark], survived: int) -> bool:
    """Whether a line ends the attempt. One that was survived does not; nor do words of a planned end while the step
    lines say that steps are left."""
    last = marks[-1] if marks else None
    left = last is None or last.total is None or last.step < last.total
    if hit.signature.id != FINISHED:
        return hit.offset >= survived
    # After the last step there is no going on, in whatever order several files were put.
    spelled_out = any(words in hit.text for words in _ITS_OWN_WORDS)
    return not left or (hit.offset >= survived and (spelled_out or last is None or last.total is None))


def _is_schedulers_word(hit: Hit) -> bool:
    """What srun and slurmctld say about the end may stand behind the notice of it."""
    return hit.signature.role is Role.ROOT and hit.signature.id.startswith(("slurm.", "srun."))


def _as_consequence(hit: Hit) -> Hit:
    """What srun tells of tasks after it has begun to end the step: it ended them."""
    if not hit.signature.id.startswith("srun.") or hit.signature.role is Role.CASCADE:
        return hit
    return replace(hit, signature=hit.signature.model_copy(update={"role": Role.CASCADE}))
