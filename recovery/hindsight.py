"""One recommendation compared with what really happened next. Pure: records in, one judged case out.

Nothing here decides anything. What the records cannot prove stays unproven and is never counted in relight's favour.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from recovery.hindsight_records import Case, Fate, Judgement, Next, Story, Submission, Told
from recovery.judges import JUDGES
from recovery.records import FAILURES, Action, Advice, Attempt, FaultClass, JobState, Mode

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
_LEFT = FAILURES | {JobState.TIMEOUT, JobState.DEADLINE}


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
    judgement, agreed, why = JUDGES[advice.action](happened, fate, failed_on, proven_on, ran_on)
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
        gpus=story.gpus_of(attempt),
        nodes=len(attempt.nodes) if attempt is not None else 0,
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
    step = max(follower.steps, default=None)
    if follower.state is JobState.COMPLETED or (step is not None and (best is None or step > best)):
        return Fate.ADVANCED
    requeued_fault = follower.state is JobState.REQUEUED and follower.fault_class not in {None, FaultClass.NONE}
    if follower.state in FAILURES or requeued_fault:
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
    return max((step for one in story.attempts if one.number <= number for step in one.steps), default=None)


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
