"""Plays one scenario on an arena: submits its jobs, breaks what the plan says, mends it, waits for rest, judges."""

from __future__ import annotations

import functools
import heapq
import itertools
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, Field

from activities.contracts import EventKind
from tests.chaos.arena import Arena
from tests.chaos.facts import JobFacts, collect
from tests.chaos.invariants import broken, unfinished
from tests.chaos.plan import AT_RESTART, STEP_S, STEPS, JobFault, PlannedJob, PlannedStrike, Scenario, Strike
from tests.integration.story import story

REST_WITHIN_S = 240  # after everything was mended
QUIET_S = 5  # and nothing may be broken for so long after that
ITERATION = re.compile(r"iteration +(\d+)/")


class Result(BaseModel):
    """What one run showed."""

    seed: int
    told: str
    seconds: float = 0.0
    injected: dict[str, int] = Field(default_factory=dict)
    verified: dict[str, int] = Field(
        default_factory=dict, description="actions with their outcome, and ways jobs ended"
    )
    violations: list[str] = Field(default_factory=list)
    stories: list[str] = Field(default_factory=list, description="of the jobs with violations")


class _Job:
    """One submitted job, and what has befallen it so far."""

    def __init__(self, planned: PlannedJob, number: int, faults: Path, log: Path) -> None:
        self.planned, self.number, self.faults, self.log = planned, number, faults, log
        self.struck = planned.fault in {JobFault.NONE, JobFault.USER_ERROR}
        self.struck_nodes: set[str] = set()
        self.disturbed = False
        self.hosts: list[str] = []
        self.running_since: float | None = None
        self.restarts = 0

    @property
    def ready(self) -> bool:
        """Has trained so far as the plan says; by time, where its log has vanished."""
        try:
            steps = ITERATION.findall(self.log.read_text(errors="replace"))
        except OSError:
            since = self.running_since
            return since is not None and time.monotonic() > since + self.planned.at_step * STEP_S + 1
        return bool(steps) and int(steps[-1]) >= self.planned.at_step


class Play:
    def __init__(self, arena: Arena, scenario: Scenario) -> None:
        self.arena, self.scenario, self.stage = arena, scenario, arena.stage
        self.jobs: list[_Job] = []
        self.injected: Counter[str] = Counter()
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._armed = [one for one in scenario.strikes if one.kind in AT_RESTART]
        self._looked = 0.0

    def run(self) -> Result:
        began = time.monotonic()
        for index, planned in enumerate(self.scenario.jobs):
            self.jobs.append(self._submit(index, planned))
        for strike in self.scenario.strikes:
            if strike.kind in AT_RESTART:
                self.arena.sabotage.arm(strike.point, self.jobs[strike.job].number, strike.order)
            else:
                self._at(strike.at_s, self._strike_of(strike))
        violations, facts = self._until_rest()
        return Result(
            seed=self.scenario.seed,
            told=self.scenario.told,
            seconds=round(time.monotonic() - began, 1),
            injected=dict(sorted(self.injected.items())),
            verified=dict(sorted(_verified(facts).items())),
            violations=violations,
            stories=[
                story(self.stage, one.job) for one in facts if any(f"job {one.job} " in text for text in violations)
            ],
        )

    # -- time ------------------------------------------------------------------------------------------------------

    def _at(self, after_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + after_s, next(self._order), what))

    def _tick(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        self.arena.supervise()
        self._at_restart()
        if time.monotonic() > self._looked + 0.5 and not self.arena.slurmctld_away:
            self._look()
            self._looked = time.monotonic()
        time.sleep(0.1)

    def _until_rest(self) -> tuple[list[str], list[JobFacts]]:
        while self._due or any(not job.struck and job.running_since is not None for job in self.jobs):
            self._tick()
        self.arena.mend()
        deadline = time.monotonic() + REST_WITHIN_S
        quiet_since: float | None = None
        while True:
            for _ in range(10):
                self._tick()
            facts = self._facts()
            left = [text for one in facts for text in unfinished(one)]
            busy = left or self.arena.asleep or self._due
            quiet_since = None if busy else quiet_since or time.monotonic()
            rest = quiet_since is not None and time.monotonic() > quiet_since + QUIET_S
            if rest or time.monotonic() > deadline:
                return [text for one in facts for text in broken(one)] + left, facts

    def _facts(self) -> list[JobFacts]:
        forgot = any(one.kind is Strike.SLURMCTLD_KILL for one in self.scenario.strikes)
        lost = {one.job for one in self.scenario.strikes if one.kind is Strike.LOG_VANISHES}
        return [
            collect(
                self.stage,
                self.arena.sabotage,
                job.number,
                fault=job.planned.fault,
                monitor=job.planned.monitor,
                struck_nodes=frozenset(job.struck_nodes),
                slurm_forgot=forgot,
                disturbed=job.disturbed,
                log_lost=index in lost,
            )
            for index, job in enumerate(self.jobs)
        ]

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _submit(self, index: int, planned: PlannedJob) -> _Job:
        name = f"chaos-{self.scenario.seed}-{index}-{time.monotonic_ns()}"
        faults = self.stage.faults(name)
        if planned.fault is JobFault.USER_ERROR:
            self.injected[JobFault.USER_ERROR] += 1
            for node in self.stage.slurm.nodes:
                (faults / node).write_text("import")
        limited = ["--mem=100"] if planned.fault is JobFault.OUT_OF_MEMORY else []
        number = self.stage.train(
            planned.user,
            name,
            "--exclusive",
            *limited,
            nodes=planned.nodes,
            steps=STEPS,
            step_time=STEP_S,
            comment='{"relight": {"mode": "monitor"}}' if planned.monitor else "relight",
            faults=faults,
        )
        return _Job(planned, number, faults, self.stage.slurm.home(planned.user) / f"{name}-{number}.out")

    def _look(self) -> None:
        """Where the jobs run; strikes those whose time has come, and heals what was to befall one attempt only."""
        try:
            form = "JobID:20,State:20,RestartCnt:12,NodeList:200,BatchHost:40"
            rows = self.stage.slurm.run("squeue", "-h", "-t", "all", "-O", form, timeout_s=30).stdout.splitlines()
        except subprocess.TimeoutExpired:
            return
        known = {words[0]: words for words in map(str.split, rows) if words}
        for job in self.jobs:
            words = known.get(str(job.number), [])
            if len(words) < 3:
                continue
            restarts = int(words[2])
            running = words[1] == "RUNNING" and len(words) == 5
            if restarts != job.restarts or not running:
                job.running_since = None
                if job.planned.fault in {JobFault.KILL, JobFault.HANG} and job.struck:
                    for node in job.struck_nodes:
                        (job.faults / node).unlink(missing_ok=True)
            job.restarts = restarts
            job.hosts = self.stage.hosts(words[3]) if running else []
            if running:
                job.running_since = job.running_since or time.monotonic()
                if not job.struck and job.ready:
                    self._strike_job(job, job.hosts)

    def _strike_job(self, job: _Job, hosts: list[str]) -> None:
        victim = hosts[job.planned.rank % len(hosts)]
        job.struck = True
        job.struck_nodes.add(victim)
        self.injected[job.planned.fault] += 1
        if job.planned.fault is JobFault.NODE_DEATH:
            self.arena.kill_node(victim)
            self._at(job.planned.lasts_s, lambda: self.arena.start_node(victim))
        else:
            words = {
                JobFault.CRASH: "gpu",
                JobFault.KILL: "kill",
                JobFault.HANG: "hang",
                JobFault.OUT_OF_MEMORY: f"memory 300 {job.planned.at_step + 5}",
            }
            (job.faults / victim).write_text(words[job.planned.fault])

    # -- strikes ---------------------------------------------------------------------------------------------------

    def _strike_of(self, strike: PlannedStrike) -> Callable[[], None]:
        arena = self.arena

        def lasting(begin: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
            def strike_now() -> None:
                begin()
                self._at(strike.lasts_s, end)

            return strike_now

        def sleep() -> None:
            pid = arena.sleep_worker()
            if pid is not None:
                self._at(strike.lasts_s, lambda: arena.wake_worker(pid))

        def second() -> None:
            arena.wanted = 2

        def hang_node() -> None:
            """Of the job that was drawn, or of another one that runs."""
            running = [job for job in (self.jobs[strike.job], *self.jobs) if job.hosts]
            if running:
                node = running[0].hosts[-1]
                for job in self.jobs:
                    job.struck_nodes.add(node)
                    job.disturbed = job.disturbed or node in job.hosts
                arena.hang_node(node)
                self._at(strike.lasts_s, lambda: arena.unhang_node(node))

        what: dict[Strike, Callable[[], object]] = {
            Strike.WORKER_KILL: arena.kill_worker,
            Strike.WORKER_SLEEP: sleep,
            Strike.SECOND_WORKER: second,
            Strike.TEMPORAL_KILL: lasting(arena.kill_temporal, arena.start_temporal),
            Strike.TEMPORAL_AWAY: lasting(arena.kill_temporal, arena.start_temporal),
            Strike.SLURMCTLD_KILL: lasting(arena.kill_slurmctld, arena.start_slurmctld),
            Strike.SLURMCTLD_HANG: lasting(arena.hang_slurmctld, arena.unhang_slurmctld),
            Strike.ACCOUNTING_AWAY: lasting(arena.stop_accounting, arena.start_accounting),
            Strike.NODE_HANG: hang_node,
            Strike.ATTRIBUTION: lasting(lambda: arena.misbehave(strike.order), lambda: arena.misbehave("")),
            Strike.DISK_FULL: lasting(arena.fill_disks, arena.free_disks),
            Strike.DATABASE_AWAY: lasting(arena.stop_database, arena.start_database),
            Strike.DATABASE_READ_ONLY: lasting(lambda: self._read_only(True), lambda: self._read_only(False)),
            Strike.LOG_VANISHES: lambda: self.jobs[strike.job].log.unlink(missing_ok=True),
        }

        def armed() -> None:
            arena.sabotage.arm(strike.point, strike.order, "kill")
            self._armed.append(strike)

        def counted() -> None:
            what[strike.kind]()
            self.injected[strike.kind] += 1

        if strike.kind is Strike.WORKER_KILL_AT_ACTIVITY:
            return armed

        return counted

    def _read_only(self, on: bool) -> None:
        if self.arena.database_away:  # it can be changed when it is there again
            self._at(1, lambda: self._read_only(on))
        else:
            self.arena.read_only(on)

    def _at_restart(self) -> None:
        """Counts the strikes inside a restart, and sees to it that a sleeper wakes up."""
        for strike in tuple(self._armed):
            at_activity = strike.kind is Strike.WORKER_KILL_AT_ACTIVITY
            job = strike.order if at_activity else self.jobs[strike.job].number
            if not self.arena.sabotage.struck(strike.point, job):
                continue
            self._armed.remove(strike)
            self.injected[strike.kind] += 1
            if strike.kind is Strike.WORKER_SLEEP_AT_RESTART:
                gate, worker = self.arena.sabotage.pids(strike.point, job)
                self.arena.asleep[worker] = (gate, worker)
                self._at(strike.lasts_s, functools.partial(self.arena.wake_worker, worker))


def _verified(facts: list[JobFacts]) -> Counter[str]:
    """Actions whose outcome stands in the audit log and in Slurm, and how jobs ended."""
    told: Counter[str] = Counter()
    for one in facts:
        told["requeues"] += one.requeues
        told[_ending(one)] += 1
        told["outcomes"] += sum(event.kind == EventKind.OUTCOME for event in one.events)
        told["steps done"] += sum(
            event.kind == EventKind.STEP and event.body.get("done") is True for event in one.events
        )
        begun = {event.key for event in one.events if event.kind == EventKind.STEP}
        plans = [event.body["step_key"] for event in one.events if event.kind == EventKind.PLAN]
        told["plans never begun"] += sum(f"{key}:intent" not in begun for key in plans)
    return told


def _ending(one: JobFacts) -> str:
    """Also why a job was not brought back: a wrong reason breaks no invariant and should catch the eye."""
    state = one.state.lower() or "unknown"
    advice = [event for event in one.events if event.kind == EventKind.ADVICE]
    if state == "completed" or not advice:
        return f"jobs {state}"
    return f"jobs {state} ({'monitor' if one.monitor else advice[-1].body.get('rule')})"
