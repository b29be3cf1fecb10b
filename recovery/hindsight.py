"""One recommendation compared with what really happened next. Pure: records in, one judged case out.

Nothing here decides anything. What the records cannot prove stays unproven and is never counted in relight's favour.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from recovery.records import Action, Advice, Attempt, FaultClass, JobState, Mode, Nodes, Record, Time

GRACE = timedelta(hours=24)
"""So long a person has to requeue or submit again; after that, nobody did."""

AT_ONCE_S = 600
"""An attempt without any sign of progress that failed within this time failed at once; later, nobody can tell."""

STUCK_RULES = frozenset({"hang", "straggler"})
"""Rules whose advice is about an attempt that still runs."""

NOT_JUDGED = frozenset(
    {"not_opted_in", "bad_directive", "force", "parked", "own_fault", "stopped", "finished", "cancelled", "preempted",
     "requeued_elsewhere", "interactive", "heterogeneous", "dependency_never", "dependent_started", "twin", "paused",
     "suspended", "frozen", "node_event", "hang_suspected"}
)  # fmt: skip
"""Rules that stand aside, or carry out what a person demanded: they recommend nothing that could be right or wrong."""

_GENERIC_NAMES = frozenset({"", "wrap", "bash", "sh", "sbatch", "python", "python3", "interactive", "job", "test"})
_FAILURES = frozenset({JobState.FAILED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.OUT_OF_MEMORY})
_LEFT = _FAILURES | {JobState.TIMEOUT, JobState.DEADLINE}


class Next(StrEnum):
    """What happened to the job after the recommendation, and by whom."""

    REQUEUED = "requeued"  # by a person
    RESUBMITTED = "resubmitted"  # a new job of the same user, name and partition
    CANCELLED = "cancelled"  # by a person
    REJECTED = "rejected"  # a person said no to it
    SLURM = "slurm"  # Slurm itself requeued it
    RELIGHT = "relight"  # relight did it
    WENT_ON = "went_on"  # what was held to be stuck finished by itself
    NOTHING = "nothing"
    PENDING = "pending"  # too early to tell

    @property
    def by_a_person(self) -> bool:
        return self in {Next.REQUEUED, Next.RESUBMITTED, Next.CANCELLED, Next.REJECTED}


class Judgement(StrEnum):
    RIGHT = "right"  # what happened next proves it
    WRONG = "wrong"  # what happened next contradicts it
    UNPROVEN = "unproven"  # what happened next tells nothing
    OPEN = "open"  # too early to tell


class Fate(StrEnum):
    """How the following attempt went, measured by the attempts before it."""

    ADVANCED = "advanced"  # finished, or passed the best step so far
    SAME = "failed_the_same_way"
    OTHER = "failed_another_way"
    RUNS = "runs"
    UNKNOWN = "unknown"  # cancelled, out of time, or no sign of progress in a long run


class Told(Record):
    """One recommendation as it was written down."""

    at: Time
    advice: Advice
    approved: bool | None = Field(default=None, description="a person's answer in approve mode")


class Submission(Record):
    """One life of a job, as far as it may be another job submitted again."""

    life_id: int
    cluster: str
    job_id: str
    user: str = ""
    name: str = ""
    partition: str = ""
    submitted: Time


class Story(Record):
    """One life of a job with the recommendations about it."""

    life: Submission
    stopped: bool = Field(default=False, description="relight stopped the job")
    attempts: tuple[Attempt, ...] = ()
    told: tuple[Told, ...] = ()
    again: Submission | None = Field(default=None, description="the job submitted again, after its last failure")
    again_first: Attempt | None = Field(default=None, description="the first attempt of that job")


class Case(Record):
    """One recommendation, judged."""

    cluster: str
    job_id: str
    user: str = ""
    partition: str = ""
    attempt: int
    at: Time
    mode: Mode
    fault_class: FaultClass
    signature: str = ""
    rule: str = ""
    action: Action
    next: Next
    agreed: bool | None = Field(default=None, description="people did the same; None: they did not have to")
    judgement: Judgement
    why: str
    failed_again_on: Nodes = Field(default=(), description="nodes it would have excluded, where it failed again")
    needless: Nodes = Field(default=(), description="nodes it would have excluded, where it then went well")
    excluded_by_hand: Nodes = Field(default=(), description="nodes it would have excluded, which a person excluded")
    waited_s: float | None = Field(default=None, description="from the failure until a person brought the job back")
    burnt_node_hours: float = Field(default=0, description="of the following attempt, where that failed again")


def chosen(story: Story) -> tuple[Told, ...]:
    """The recommendation to judge for each attempt: the last one that acts, else the last one that leaves alone."""
    best: dict[int, Told] = {}
    for told in sorted(story.told, key=lambda one: one.at):
        if not _is_judged(story, told.advice):
            continue
        number = told.advice.restart_count
        if told.advice.acts or number not in best or not best[number].advice.acts:
            answered = told.approved if told.approved is not None or number not in best else best[number].approved
            best[number] = told.model_copy(update={"approved": answered})
    return tuple(best[number] for number in sorted(best))


def _is_judged(story: Story, advice: Advice) -> bool:
    if advice.rule in NOT_JUDGED or advice.routine:
        return False
    if advice.action is Action.LEAVE_ALONE:
        attempt = _attempt(story, advice.restart_count)
        return advice.rule not in STUCK_RULES and attempt is not None and attempt.state in _LEFT
    return advice.action in {Action.RESTART, Action.STOP, Action.GUARD}


def submitted_again(stories: Sequence[Story], submissions: Sequence[Submission]) -> dict[int, Submission]:
    """By life: the job that a person submitted in its place. Each submission stands for the latest failure before it.

    Slurm keeps no such link: same user, name and partition within a day is what can be known.
    """
    failures: dict[tuple[str, str, str, str], list[tuple[datetime, int]]] = {}
    for story in stories:
        failed = _failed_for_good(story)
        if failed is not None:
            failures.setdefault(_kind(story.life), []).append((failed, story.life.life_id))
    for waiting in failures.values():
        waiting.sort(reverse=True)
    open_ones: dict[tuple[str, str, str, str], list[tuple[datetime, int]]] = {}  # the latest failure is the last
    found: dict[int, Submission] = {}
    for one in sorted(submissions, key=lambda each: each.submitted):
        if one.name.lower() in _GENERIC_NAMES:
            continue
        waiting, before = failures.get(_kind(one), []), open_ones.setdefault(_kind(one), [])
        while waiting and waiting[-1][0] < one.submitted:
            before.append(waiting.pop())
        if before and before[-1][1] != one.life_id and one.submitted <= before[-1][0] + GRACE:
            found.setdefault(before.pop()[1], one)
    return found


def _kind(life: Submission) -> tuple[str, str, str, str]:
    return (life.cluster, life.user, life.name, life.partition)


def _failed_for_good(story: Story) -> datetime | None:
    """When the last attempt of the life ended, where somebody may have had reason to submit the job again."""
    judged = chosen(story)
    if not judged or not story.attempts:
        return None
    last = max(story.attempts, key=lambda one: one.number)
    told = judged[-1]
    ended = last.state in _LEFT or last.state is JobState.CANCELLED
    return _broke_at(told, last) if ended and told.advice.restart_count == last.number else None


def judged(story: Story, told: Told, now: datetime) -> Case:
    """The comparison of one recommendation with what came after it."""
    advice, number = told.advice, told.advice.restart_count
    attempt = _attempt(story, number)
    follower = attempt if advice.action is Action.GUARD else _follower(story, number)
    happened = _next(story, told, attempt, follower, now)
    if happened is Next.RESUBMITTED:
        follower = story.again_first
    elif happened in {Next.WENT_ON, Next.NOTHING, Next.PENDING, Next.CANCELLED} and advice.action is not Action.GUARD:
        follower = None
    best = _best(story, number - 1 if advice.action is Action.GUARD else number)
    fate = _fate(follower, attempt, best, advice) if follower is not None else None
    ran_on = tuple(sorted(set(follower.nodes) & set(advice.exclude))) if follower is not None else ()
    failed_on = ran_on if fate in {Fate.SAME, Fate.OTHER} else ()
    proven_on = tuple(sorted(set(failed_on) & set(follower.suspects))) if follower is not None else ()
    judgement, agreed, why = _JUDGES[advice.action](happened, fate, failed_on, proven_on, ran_on)
    died_later = advice.rule in STUCK_RULES and attempt is not None and attempt.state in _LEFT
    if died_later and judgement is Judgement.RIGHT:  # it may have gone on for long: neither proof nor time saved
        judgement, why = Judgement.UNPROVEN, f"it failed by itself later; {why}"
    if happened is Next.RELIGHT and told.approved is True:
        agreed, why = True, f"a person approved; {why}"
    by_hand = happened is Next.REQUEUED and follower is not None
    before = set(attempt.excluded) if attempt is not None else set()
    return Case(
        cluster=story.life.cluster,
        job_id=story.life.job_id,
        user=story.life.user,
        partition=story.life.partition,
        attempt=number,
        at=told.at,
        mode=advice.mode,
        fault_class=advice.fault_class,
        signature=advice.signature,
        rule=advice.rule,
        action=advice.action,
        next=happened,
        agreed=agreed,
        judgement=judgement,
        why=why,
        failed_again_on=failed_on,
        needless=ran_on if fate is Fate.ADVANCED else (),
        excluded_by_hand=tuple(sorted((set(follower.excluded) - before) & set(advice.exclude)))
        if by_hand and follower is not None
        else (),
        waited_s=None if died_later else _waited(story, told, attempt, follower, happened),
        burnt_node_hours=follower.node_hours if follower is not None and fate in {Fate.SAME, Fate.OTHER} else 0,
    )


# ------------------------------------------------------------------------------------------------ what happened


def _next(story: Story, told: Told, attempt: Attempt | None, follower: Attempt | None, now: datetime) -> Next:
    advice = told.advice
    if advice.action is Action.GUARD:
        return Next.RELIGHT if told.approved is not False and advice.mode is Mode.ACT else Next.SLURM
    if follower is not None and attempt is not None and attempt.restarted_by:
        return {"relight": Next.RELIGHT, "slurm": Next.SLURM}.get(attempt.restarted_by, Next.REQUEUED)
    if told.approved is False:
        return Next.REJECTED
    if story.again is not None and follower is None and _is_last(story, advice.restart_count):
        return Next.RESUBMITTED
    if attempt is not None and attempt.state is JobState.CANCELLED:
        return Next.RELIGHT if story.stopped and advice.action is Action.STOP else Next.CANCELLED
    if attempt is not None and attempt.state is JobState.COMPLETED:
        return Next.WENT_ON
    alive = attempt is not None and (attempt.state.is_alive or attempt.state is JobState.COMPLETING)
    return Next.PENDING if alive or now < told.at + GRACE else Next.NOTHING


def _fate(follower: Attempt, attempt: Attempt | None, best: int | None, advice: Advice) -> Fate:
    step = max((value for value in (follower.last_step, follower.last_checkpoint) if value is not None), default=None)
    if follower.state is JobState.COMPLETED or (step is not None and (best is None or step > best)):
        return Fate.ADVANCED
    requeued_fault = follower.state is JobState.REQUEUED and follower.fault_class not in {None, FaultClass.NONE}
    if follower.state in _FAILURES or requeued_fault:
        if follower.own_fault or follower.ended_by_us or (step is None and best is None and not _at_once(follower)):
            return Fate.UNKNOWN
        signature = advice.signature or (attempt.signature if attempt is not None else "")
        if signature or follower.signature:
            return Fate.SAME if signature == follower.signature else Fate.OTHER
        return Fate.SAME if (follower.fault_class or FaultClass.UNKNOWN) is advice.fault_class else Fate.OTHER
    if follower.state.is_alive or follower.state is JobState.COMPLETING:
        return Fate.RUNS
    return Fate.UNKNOWN


def _at_once(attempt: Attempt) -> bool:
    if attempt.start_time is None or attempt.end_time is None:
        return False
    return (attempt.end_time - attempt.start_time).total_seconds() <= AT_ONCE_S


def _best(story: Story, number: int) -> int | None:
    values = [
        value
        for one in story.attempts
        if one.number <= number
        for value in (one.last_step, one.last_checkpoint)
        if value is not None
    ]
    return max(values, default=None)


def _attempt(story: Story, number: int) -> Attempt | None:
    return next((one for one in story.attempts if one.number == number), None)


def _follower(story: Story, number: int) -> Attempt | None:
    return min((one for one in story.attempts if one.number > number), key=lambda one: one.number, default=None)


def _is_last(story: Story, number: int) -> bool:
    return all(one.number <= number for one in story.attempts)


def _broke_at(told: Told, attempt: Attempt | None) -> datetime:
    """When it failed; of what was stuck, when that was told. Accounting may move an end to the requeue: never later."""
    if told.advice.rule in STUCK_RULES or attempt is None or attempt.end_time is None:
        return told.at
    return min(attempt.end_time, told.at)


def _waited(
    story: Story, told: Told, attempt: Attempt | None, follower: Attempt | None, happened: Next
) -> float | None:
    back = {
        Next.REQUEUED: follower.submit_time if follower is not None else None,
        Next.RESUBMITTED: story.again.submitted if story.again is not None else None,
    }.get(happened)
    return max(0.0, (back - _broke_at(told, attempt)).total_seconds()) if back is not None else None


# ------------------------------------------------------------------------------------------------ judges

Opinion = tuple[Judgement, bool | None, str]

_DOERS = {
    Next.REQUEUED: "a person requeued it",
    Next.RESUBMITTED: "a person submitted it again",
    Next.SLURM: "Slurm requeued it",
    Next.RELIGHT: "relight restarted it",
}


def _restart(happened: Next, fate: Fate | None, failed_on: Nodes, proven_on: Nodes, ran_on: Nodes) -> Opinion:
    if happened in _DOERS:
        agreed = True if happened.by_a_person else None
        who = _DOERS[happened]
        if proven_on:
            return Judgement.RIGHT, agreed, f"{who} and it failed again on {_names(proven_on)}, to be excluded"
        if failed_on:
            return Judgement.UNPROVEN, agreed, f"{who} and it failed again; {_names(failed_on)} was to be excluded"
        return {
            Fate.ADVANCED: (Judgement.RIGHT, agreed, f"{who} and it went on"),
            Fate.SAME: (Judgement.WRONG, agreed, f"{who} and it failed the same way again"),
            Fate.OTHER: (Judgement.UNPROVEN, agreed, f"{who} and it failed another way"),
            Fate.RUNS: (Judgement.OPEN, agreed, f"{who}; whether it gets further is not known yet"),
        }.get(fate or Fate.UNKNOWN, (Judgement.UNPROVEN, agreed, f"{who}; how it went does not tell"))
    return {
        Next.WENT_ON: (Judgement.WRONG, False, "it finished by itself"),
        Next.REJECTED: (Judgement.WRONG, False, "a person said no"),
        Next.CANCELLED: (Judgement.UNPROVEN, False, "a person cancelled it"),
        Next.PENDING: (Judgement.OPEN, None, "nobody has done anything yet"),
    }.get(happened, (Judgement.UNPROVEN, False, "nobody brought it back"))


def _stop(happened: Next, fate: Fate | None, failed_on: Nodes, proven_on: Nodes, ran_on: Nodes) -> Opinion:
    if happened is Next.RELIGHT and fate is None:
        return Judgement.UNPROVEN, None, "relight stopped it, and nobody brought it back"
    if happened in _DOERS:
        agreed = False if happened.by_a_person else None
        who = _DOERS[happened]
        return {
            Fate.ADVANCED: (Judgement.WRONG, agreed, f"{who} and it went on"),
            Fate.SAME: (Judgement.RIGHT, agreed, f"{who} and it failed the same way again"),
            Fate.OTHER: (Judgement.UNPROVEN, agreed, f"{who} and it failed another way"),
            Fate.RUNS: (Judgement.OPEN, agreed, f"{who}; whether it gets further is not known yet"),
        }.get(fate or Fate.UNKNOWN, (Judgement.UNPROVEN, agreed, f"{who}; how it went does not tell"))
    return {
        Next.WENT_ON: (Judgement.WRONG, False, "it finished by itself"),
        Next.REJECTED: (Judgement.WRONG, False, "a person said no"),
        Next.CANCELLED: (Judgement.RIGHT, True, "a person cancelled it"),
        Next.PENDING: (Judgement.OPEN, None, "nobody has done anything yet"),
    }.get(happened, (Judgement.UNPROVEN, True, "nobody brought it back"))


def _leave_alone(happened: Next, fate: Fate | None, failed_on: Nodes, proven_on: Nodes, ran_on: Nodes) -> Opinion:
    if happened in _DOERS:
        agreed = False if happened.by_a_person else None
        who = _DOERS[happened]
        if fate is Fate.SAME:
            return Judgement.RIGHT, agreed, f"{who} and it failed the same way again"
        if fate is Fate.RUNS:
            return Judgement.OPEN, agreed, f"{who}; whether it gets further is not known yet"
        return Judgement.UNPROVEN, agreed, f"{who}; relight would have left that to people"
    if happened is Next.PENDING:
        return Judgement.OPEN, None, "nobody has done anything yet"
    return Judgement.UNPROVEN, True, "nobody brought it back"


def _guard(happened: Next, fate: Fate | None, failed_on: Nodes, proven_on: Nodes, ran_on: Nodes) -> Opinion:
    if fate is Fate.RUNS or fate is None:
        return Judgement.OPEN, None, "Slurm requeued it; how that goes is not known yet"
    if proven_on:
        return Judgement.RIGHT, None, f"Slurm requeued it and it failed again on {_names(proven_on)}, to be excluded"
    if fate is Fate.ADVANCED and ran_on:
        return Judgement.WRONG, None, f"Slurm requeued it and it went on with {_names(ran_on)}, to be excluded"
    if fate is Fate.ADVANCED and happened is Next.RELIGHT:
        return Judgement.RIGHT, None, "it went on without the nodes that relight excluded"
    return Judgement.UNPROVEN, None, "Slurm requeued it; how it went does not tell"


_JUDGES = {
    Action.RESTART: _restart,
    Action.STOP: _stop,
    Action.LEAVE_ALONE: _leave_alone,
    Action.GUARD: _guard,
}


def _names(nodes: Nodes) -> str:
    return ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
