"""What the judged recommendations add up to: agreement, time, harm, and where acting has earned trust. Pure.

Trust is only told, never acted on: who turns a mode up is a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median

from pydantic import Field

from recovery.hindsight import chosen, judged
from recovery.hindsight_records import Case, Judgement, Story
from recovery.records import FAILURES, Action, Attempt, FaultClass, JobState, Record, Time

ASSUMED_REACTION_S = 10.0
"""From a failure to relight's requeue, where relight has not restarted anything yet."""

LEAST_RIGHT = 5
"""So many recommendations must have proved right before a class is called safe in a partition."""

LEAST_JOBS = 3
"""And so many jobs: five attempts of one job are one case told five times."""


class Spent(Record):
    """Time of what jobs run on. A job counts in one of the two: GPUs where Slurm tells of any, else nodes."""

    gpu_hours: float = 0
    node_hours: float = Field(default=0, description="of jobs of which Slurm tells no GPUs")

    @classmethod
    def of(cls, hours: float, gpus: int | None, nodes: int) -> Spent:
        return cls(gpu_hours=hours * gpus) if gpus else cls(node_hours=hours * nodes)

    @classmethod
    def all(cls, several: Iterable[Spent]) -> Spent:
        known = list(several)
        return cls(gpu_hours=sum(one.gpu_hours for one in known), node_hours=sum(one.node_hours for one in known))

    @property
    def words(self) -> str:
        """For people: GPU-hours, and node-hours named as such."""
        nodes = f"{self.node_hours:.1f} node-hours"
        if not self.gpu_hours:
            return nodes
        of_gpus = f"{self.gpu_hours:.1f} GPU-hours"
        return f"{of_gpus} and {nodes} of jobs whose GPUs are not told" if self.node_hours else of_gpus


class Tally(Record):
    """All cases of one class and action."""

    fault_class: FaultClass
    action: Action
    cases: int
    agreed: int = Field(description="people did the same")
    differed: int = Field(description="people did something else")
    right: int
    wrong: int
    unproven: int
    open: int
    failed_again_on_suspects: int = Field(default=0, description="failed again on a node that was to be excluded")
    saved_s: float = Field(default=0, description="time that would have been saved")
    saved: Spent = Field(default=Spent(), description="the same, for all that the jobs would have used")


class Trust(Record):
    """Whether one class in one partition has earned acting."""

    cluster: str
    partition: str
    fault_class: FaultClass
    safe: bool
    right: int
    wrong: int
    jobs: int = Field(description="different jobs among those that were right")
    wrong_jobs: tuple[str, ...] = ()
    why: str


class Harm(Record):
    """What relight's own restarts cost."""

    restarts: int = 0
    failed_again: int = Field(default=0, description="ended by a fault without passing the best step so far")
    burnt: Spent = Field(default=Spent(), description="by restarts that failed again")
    burnt_node_hours: float = Field(default=0, description="the same in node-hours, of all jobs")
    queue_wait_s: float = Field(default=0, description="from the requeue until the start, all restarts together")
    longest_wait_s: float = 0


class Scorecard(Record):
    since: Time
    until: Time
    jobs: int
    cases: tuple[Case, ...] = ()
    truncated: bool = Field(default=False, description="there were more: only the newest are counted")
    tallies: tuple[Tally, ...] = ()
    saved_s: float = 0
    saved: Spent = Spent()
    reaction_s: float = ASSUMED_REACTION_S
    reaction_measured: int = Field(default=0, description="restarts behind reaction_s; 0: assumed")
    harm: Harm = Harm()
    trust: tuple[Trust, ...] = ()
    verdict: str = ""


def scorecard(stories: Sequence[Story], *, since: datetime, until: datetime, truncated: bool = False) -> Scorecard:
    """The whole comparison. Stories without a recommendation that can be judged still count for harm and reaction."""
    cases = tuple(judged(story, told, until) for story in stories for told in chosen(story))
    reactions = sorted(reaction for story in stories for reaction in _reactions(story))
    reaction = median(reactions) if reactions else ASSUMED_REACTION_S
    tallies = _tallies(cases, reaction)
    trust = _trust(cases)
    return Scorecard(
        since=since,
        until=until,
        jobs=len({(case.cluster, case.job_id) for case in cases}),
        cases=tuple(sorted(cases, key=lambda case: (case.at, case.cluster, case.job_id, case.attempt))),
        truncated=truncated,
        tallies=tallies,
        saved_s=sum(one.saved_s for one in tallies),
        saved=Spent.all(one.saved for one in tallies),
        reaction_s=reaction,
        reaction_measured=len(reactions),
        harm=_harm(stories, since),
        trust=trust,
        verdict=_verdict(trust),
    )


def saved_s(case: Case, reaction_s: float) -> float:
    """Time that following the recommendation at once would have saved. Only where it was right, and a person did it."""
    if case.action is not Action.RESTART or case.judgement is not Judgement.RIGHT or case.waited_s is None:
        return 0.0
    return max(0.0, case.waited_s - reaction_s)


def _reactions(story: Story) -> Iterable[float]:
    """How long relight's own restarts of dead jobs took, approvals by people left out."""
    asked = {told.advice.restart_count for told in story.told if told.advice.needs_approval}
    for attempt, after in _own_restarts(story):
        known = attempt.end_time is not None and after.submit_time is not None
        if known and not attempt.ended_by_us and attempt.number not in asked:
            assert attempt.end_time is not None
            assert after.submit_time is not None
            yield max(0.0, (after.submit_time - attempt.end_time).total_seconds())


def _own_restarts(story: Story) -> Iterable[tuple[Attempt, Attempt]]:
    by_number = {attempt.number: attempt for attempt in story.attempts}
    for attempt in story.attempts:
        after = by_number.get(attempt.number + 1)
        if attempt.restarted_by == "relight" and after is not None:
            yield attempt, after


def _tallies(cases: Sequence[Case], reaction_s: float) -> tuple[Tally, ...]:
    groups: dict[tuple[FaultClass, Action], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.fault_class, case.action), []).append(case)
    return tuple(
        Tally(
            fault_class=fault_class,
            action=action,
            cases=len(group),
            agreed=sum(case.agreed is True for case in group),
            differed=sum(case.agreed is False for case in group),
            right=_count(group, Judgement.RIGHT),
            wrong=_count(group, Judgement.WRONG),
            unproven=_count(group, Judgement.UNPROVEN),
            open=_count(group, Judgement.OPEN),
            failed_again_on_suspects=sum(bool(case.failed_again_on) for case in group),
            saved_s=sum(saved_s(case, reaction_s) for case in group),
            saved=Spent.all(Spent.of(saved_s(case, reaction_s) / 3600, case.gpus, case.nodes) for case in group),
        )
        for (fault_class, action), group in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1]))
    )


def _count(cases: Sequence[Case], judgement: Judgement) -> int:
    return sum(case.judgement is judgement for case in cases)


def _harm(stories: Sequence[Story], since: datetime) -> Harm:
    restarts = failed = 0
    burnt, waits = list[tuple[Spent, float]](), [0.0]
    for story in stories:
        for attempt, after in _own_restarts(story):
            if (after.submit_time or attempt.end_time or since) < since:
                continue
            restarts += 1
            if after.submit_time is not None and after.start_time is not None:
                waits.append(max(0.0, (after.start_time - after.submit_time).total_seconds()))
            if _in_vain(story, after):
                failed += 1
                burnt.append((Spent.of(after.hours, story.gpus_of(after), len(after.nodes)), after.node_hours))
    return Harm(
        restarts=restarts,
        failed_again=failed,
        burnt=Spent.all(spent for spent, _ in burnt),
        burnt_node_hours=sum(hours for _, hours in burnt),
        queue_wait_s=sum(waits),
        longest_wait_s=max(waits),
    )


def _in_vain(story: Story, after: Attempt) -> bool:
    fault = after.state is JobState.REQUEUED and after.fault_class not in {None, FaultClass.NONE}
    if not (after.state in FAILURES or fault or after.ended_by_us):
        return False
    before = [one for one in story.attempts if one.number < after.number]
    best = max((step for one in before for step in one.steps), default=None)
    return not any(best is None or step > best for step in after.steps)


# ------------------------------------------------------------------------------------------------ trust


def _trust(cases: Sequence[Case]) -> tuple[Trust, ...]:
    """By partition and class, over everything that acting would change there."""
    groups: dict[tuple[str, str, FaultClass], list[Case]] = {}
    for case in cases:
        if case.action is not Action.LEAVE_ALONE:
            groups.setdefault((case.cluster, case.partition, case.fault_class), []).append(case)
    return tuple(_judge_trust(*key, group) for key, group in sorted(groups.items()))


def _judge_trust(cluster: str, partition: str, fault_class: FaultClass, cases: Sequence[Case]) -> Trust:
    right = [case for case in cases if case.judgement is Judgement.RIGHT]
    wrong = sorted({f"{case.cluster}-{case.job_id}" for case in cases if case.judgement is Judgement.WRONG})
    jobs = len({case.job_id for case in right})
    count = _count(cases, Judgement.WRONG)
    others = sum(case.agreed is False and case.judgement is Judgement.UNPROVEN for case in cases)
    if count:
        why = f"{count} of {len(right) + count} would have been wrong: {', '.join(wrong[:5])}"
    elif others * 2 > len(right):
        why = f"people did otherwise in {others} cases, {len(right)} were right"
    elif len(right) < LEAST_RIGHT:
        why = f"{len(right)} of the {LEAST_RIGHT} cases it takes"
    elif jobs < LEAST_JOBS:
        why = f"{len(right)} cases of {jobs} jobs; it takes {LEAST_JOBS} jobs"
    else:
        why = f"{len(right)} cases of {jobs} jobs, none wrong"
    return Trust(
        cluster=cluster,
        partition=partition,
        fault_class=fault_class,
        safe=not count and others * 2 <= len(right) and len(right) >= LEAST_RIGHT and jobs >= LEAST_JOBS,
        right=len(right),
        wrong=count,
        jobs=jobs,
        wrong_jobs=tuple(wrong),
        why=why,
    )


def _verdict(trust: Sequence[Trust]) -> str:
    if not trust:
        return "nothing was advised in that time that would change a job, so nothing tells yet where acting is safe"
    safe = [one for one in trust if one.safe]
    if not safe:
        return "safe to turn on act for: nothing yet"
    return "safe to turn on act for: " + "; ".join(
        f"{one.fault_class.value} in {one.cluster}/{one.partition or 'any partition'} ({one.why})" for one in safe
    )
