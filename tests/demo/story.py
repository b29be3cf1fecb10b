"""What happens in the demo, and the figures read from relight's own audit log and Slurm's records."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities.audit.store import AuditStore, Event
from activities.contracts import EventKind
from tests.cluster.waiting import until
from tests.stage import Stage

TRAIN_STEPS = 60
Say = Callable[[str, str], None]
"""(job, text): shows one line of the story."""


@dataclass
class Case:
    """One job of the demo and what became of it."""

    title: str
    job_id: int
    fault: str
    broken_at: float | None = None
    expected: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def since_fault(self, moment: datetime | None) -> float | None:
        if moment is None or self.broken_at is None:
            return None
        return round(moment.timestamp() - self.broken_at, 2)


class Story:
    """Runs the cases on a stage and tells what relight writes, as it writes it."""

    def __init__(self, stage: Stage, say: Say) -> None:
        self.stage, self.say = stage, say
        self.store = AuditStore(stage.database)
        self._told: dict[int, int] = {}

    def tell(self, *cases: Case) -> None:
        """Shows the audit rows that are new since the last call."""
        for case in cases:
            quiet = 0
            for event in self._events(case, self._told.get(case.job_id, 0)):
                self._told[case.job_id] = event.id
                if event.kind == EventKind.FINDING and event.body.get("role") in {"cascade", "symptom"}:
                    quiet += 1  # consequences: all on record, too many to read here
                    continue
                self.say(str(case.job_id), f"{event.kind:9} {event.summary}")
            if quiet:
                self.say(str(case.job_id), f"finding   and {quiet} consequences of it (`relight show` has them)")

    def _events(self, case: Case, after: int = 0) -> list[Event]:
        return self.store.events(self.stage.cluster_name, str(case.job_id), after_id=after)

    def wait(self, ready: Callable[[], object], what: str, *cases: Case, timeout_s: float = 90) -> None:
        """Waits while the story is told."""

        def look() -> object:
            self.tell(*cases)
            return ready()

        until(look, what, timeout_s=timeout_s, every_s=0.2)
        self.tell(*cases)

    def last(self, case: Case, kind: str, /, **body: Any) -> Event | None:
        found = [
            event
            for event in self._events(case)
            if event.kind == kind and all(event.body.get(key) == value for key, value in body.items())
        ]
        return found[-1] if found else None

    def first(self, case: Case, kind: str, /, **body: Any) -> Event | None:
        found = [
            event
            for event in self._events(case)
            if event.kind == kind and all(event.body.get(key) == value for key, value in body.items())
        ]
        return found[0] if found else None

    def log_of(self, case: Case) -> str:
        return Path(self.stage.slurm.show(case.job_id)["StdOut"]).read_text(errors="replace")

    # ---------------------------------------------------------------------------------------- the three cases

    def gpu_fault(self) -> Case:
        """A job on three nodes loses a GPU on one of them and finishes elsewhere, from its last checkpoint."""
        stage = self.stage
        faults = stage.faults("gpu")
        job = stage.train("alice", "llm-pretrain", nodes=3, steps=TRAIN_STEPS, comment="relight", faults=faults)
        case = Case("GPU fault on one node", job, "CUDA uncorrectable ECC error on one rank", expected="recovered")
        self.say(str(job), "submitted by alice on 3 of 4 nodes, opted in with --comment=relight")
        stage.slurm.wait_state(job, {"RUNNING"}, 60)
        self.wait(lambda: "successfully saved checkpoint at iteration 10" in self._log(case), "its 10th step", case)
        before = stage.slurm.show(job)
        nodes = stage.slurm.run("scontrol", "show", "hostnames", before["NodeList"]).stdout.split()
        victim = next(node for node in nodes if node != before["BatchHost"])
        (faults / victim).write_text("gpu\n")
        case.broken_at = time.time()
        self.say(str(job), f"--- a GPU of {victim} breaks now ---")
        self.wait(lambda: self.first(case, EventKind.FINDING), "relight sees the fault", case)
        self.wait(lambda: stage.slurm.state(job) in {"COMPLETED", "CANCELLED"}, "the job finishes", case, timeout_s=150)
        self.wait(lambda: self.first(case, EventKind.OUTCOME, kind="first_step"), "the first new step", case)
        after = stage.slurm.show(job)
        second = stage.slurm.run("scontrol", "show", "hostnames", after["NodeList"]).stdout.split()
        log = self.log_of(case)
        resumed = [line for line in log.splitlines() if "successfully loaded checkpoint" in line]
        finding, step = self.first(case, EventKind.FINDING), self.first(case, EventKind.STEP, done=True)
        first_step = self.first(case, EventKind.OUTCOME, kind="first_step")
        case.figures = {
            "state": after["JobState"],
            "restarts": int(after["Restarts"]),
            "broken_node": victim,
            "first_attempt_nodes": nodes,
            "second_attempt_nodes": second,
            "excluded": after["ExcNodeList"],
            "avoided_broken_node": victim not in second,
            "resumed_from_checkpoint": bool(resumed),
            "resumed_at_step": int(resumed[-1].rsplit(" ", 1)[1]) if resumed else None,
            "detected_s": case.since_fault(finding.recorded_at if finding else None),
            "acted_s": case.since_fault(_moment(step, "acted_at")),
            "first_new_step_s": case.since_fault(_moment(first_step, "at")),
            "recovered": after["JobState"] == "COMPLETED"
            and int(after["Restarts"]) == 1
            and victim not in second
            and bool(resumed),
        }
        return case

    def user_error(self) -> Case:
        """A mistake in the script: another try would fail the same way, so there is none."""
        stage = self.stage
        faults = stage.faults("import")
        for node in stage.slurm.nodes:
            (faults / node).write_text("import\n")
        job = stage.train("bob", "typo", nodes=1, steps=20, comment="relight", faults=faults)
        case = Case("user error", job, "ModuleNotFoundError before the first step", expected="stopped")
        self.say(str(job), "submitted by bob, with a misspelt import")
        self.wait(lambda: stage.slurm.state(job) == "FAILED", "bob's job fails", case)
        case.broken_at = _end_of(stage, job)
        self.wait(lambda: self.last(case, EventKind.ADVICE, action="stop"), "the advice to stop", case)
        self._figures(case, "stop")
        case.figures["stopped"] = case.figures["state"] == "FAILED" and case.figures["restarts"] == 0
        return case

    def monitor_mode(self) -> Case:
        """A job that asked for monitor mode: advice is recorded, nothing is touched."""
        stage = self.stage
        faults = stage.faults("monitor")
        job = stage.train(
            "bob", "watched", nodes=1, steps=400, comment='{"relight": {"mode": "monitor"}}', faults=faults
        )
        case = Case("monitor mode", job, "CUDA uncorrectable ECC error", expected="advice only")
        self.say(str(job), 'submitted by bob with {"relight": {"mode": "monitor"}}')
        self.wait(lambda: "iteration        5/" in self._log(case), "its 5th step", case)
        (faults / stage.slurm.show(job)["BatchHost"]).write_text("gpu\n")
        case.broken_at = time.time()
        self.wait(lambda: self.last(case, EventKind.ADVICE, action="restart"), "the advice to restart", case)
        quiet_until = time.monotonic() + 3
        self.wait(lambda: time.monotonic() > quiet_until, "nothing happens", case)
        self._figures(case, "restart")
        case.figures["untouched"] = (
            case.figures["state"] == "FAILED"
            and case.figures["restarts"] == 0
            and self.first(case, EventKind.STEP) is None
        )
        return case

    def _figures(self, case: Case, action: str) -> None:
        after = self.stage.slurm.show(case.job_id)
        finding, advice = self.first(case, EventKind.FINDING), self.last(case, EventKind.ADVICE, action=action)
        case.figures = {
            "state": after["JobState"],
            "restarts": int(after["Restarts"]),
            "advice": action,
            "rule": advice.body.get("rule") if advice else None,
            "detected_s": case.since_fault(finding.recorded_at if finding else None),
            "advised_s": case.since_fault(advice.recorded_at if advice else None),
        }

    def _log(self, case: Case) -> str:
        try:
            return self.log_of(case)
        except OSError:
            return ""


def _moment(event: Event | None, key: str) -> datetime | None:
    value = event.body.get(key) if event is not None else None
    return datetime.fromisoformat(value).astimezone(UTC) if isinstance(value, str) else None


def _end_of(stage: Stage, job: int) -> float:
    """When Slurm says the job ended; whole seconds."""
    text = stage.slurm.show(job)["EndTime"]
    return datetime.fromisoformat(text).astimezone().timestamp()
