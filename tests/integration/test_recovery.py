"""What relight does with each way a job can end, on a real cluster, in act mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from activities.contracts import EventKind
from tests.stage import Stage


def _crash(stage: Stage, job: int, faults: Path, words: str = "gpu", *, after_step: int = 5) -> str:
    """Breaks a node of the running job that is not its batch host; gives the node."""
    stage.until(lambda: stage.trained(job, after_step), f"job {job} completes step {after_step}")
    shown = stage.slurm.show(job)
    nodes = stage.hosts(shown["NodeList"])
    victim = next((node for node in nodes if node != shown["BatchHost"]), nodes[0])
    (faults / victim).write_text(words)
    return victim


def test_a_crashed_job_comes_back_on_other_nodes_from_its_checkpoint(stage: Stage) -> None:
    faults = stage.faults("crash")
    job = stage.train("alice", "crash", nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    victim = _crash(stage, job, faults)
    stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
    attempts = stage.slurm.settled_attempts(job)
    assert [attempt["State"] for attempt in attempts] == ["REQUEUED", "COMPLETED"]
    assert victim in stage.hosts(attempts[0]["NodeList"])
    assert victim not in stage.hosts(attempts[1]["NodeList"])
    assert stage.slurm.show(job)["ExcNodeList"] == victim
    assert "successfully loaded checkpoint" in stage.log(job)
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the recovery ends")
    kinds = [event.kind for event in stage.events(job)]
    order = [kinds.index(kind) for kind in ("finding", "verdict", "advice", "plan", "step", "outcome")]
    assert order == sorted(order)


def test_findings_of_the_first_attempt_are_not_held_against_the_second(stage: Stage) -> None:
    faults = stage.faults("append")
    job = stage.train("alice", "append", nodes=2, steps=20, comment="relight", faults=faults, step_time=0.2)
    _crash(stage, job, faults)
    stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
    stage.until(lambda: stage.events(job, EventKind.STATE, state="COMPLETED"), "relight has seen its end")
    later = [event for event in stage.events(job, EventKind.FINDING) if event.attempt == 1]
    assert [event.body["signature"] for event in later] in ([], ["scheduler.completed"])


def test_a_users_mistake_is_stopped_after_one_attempt(stage: Stage) -> None:
    faults = stage.faults("mistake")
    for node in stage.slurm.nodes:
        (faults / node).write_text("import")
    job = stage.train("bob", "mistake", nodes=1, steps=20, comment="relight", faults=faults)
    stage.until(lambda: stage.events(job, EventKind.ADVICE, action="stop"), "the advice to stop")
    assert stage.events(job, EventKind.ADVICE)[-1].body["rule"] == "cannot_help"
    assert stage.slurm.state(job) == "FAILED"
    assert stage.slurm.show(job)["Restarts"] == "0"
    assert not stage.events(job, EventKind.STEP)


def test_a_job_in_monitor_mode_is_not_touched_and_a_persons_requeue_judges_the_advice(stage: Stage) -> None:
    faults = stage.faults("watched")
    comment = '{"relight": {"mode": "monitor"}}'
    job = stage.train("bob", "watched", nodes=1, steps=60, comment=comment, faults=faults, step_time=0.1)
    victim = _crash(stage, job, faults)
    stage.until(lambda: stage.events(job, EventKind.ADVICE, action="restart"), "the advice to restart")
    assert stage.slurm.show(job)["Restarts"] == "0"
    assert not stage.events(job, EventKind.STEP)
    assert [(case["next"], case["judgement"]) for case in _judged(stage, job)] == [("pending", "open")]
    (faults / victim).unlink()
    stage.slurm.run("scontrol", "requeue", str(job))
    stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
    stage.until(lambda: stage.events(job, EventKind.STATE, state="COMPLETED"), "relight has seen its end")
    stage.until(lambda: _judged(stage, job)[0]["judgement"] == "right", "the requeue proves the advice")
    (case,) = _judged(stage, job)
    assert (case["action"], case["next"], case["agreed"], case["mode"]) == ("restart", "requeued", True, "monitor")
    assert case["waited_s"] is not None
    assert not stage.events(job, EventKind.STEP)


def _judged(stage: Stage, job: int) -> list[dict[str, Any]]:
    """The scorecard's cases of that job."""
    card = json.loads(stage.relight("scorecard", "--since", "1h", "--json").stdout)
    return [case for case in card["cases"] if case["job_id"] == str(job)]


def test_a_job_that_did_not_opt_in_is_not_seen(stage: Stage) -> None:
    job = stage.slurm.submit("bob", "#!/bin/bash\nexit 1\n", comment="no light please")
    other = stage.slurm.submit("bob", "#!/bin/bash\nexit 1\n", comment="relight")
    stage.until(lambda: stage.events(other, EventKind.ADVICE), "the other job is advised upon")
    assert stage.events(job) == []


def test_a_dead_node_is_excluded_while_slurms_own_requeue_waits(stage: Stage) -> None:
    faults = stage.faults("nodefail")
    job = stage.train("alice", "nodefail", nodes=2, steps=400, comment="relight", faults=faults, step_time=0.2)
    stage.until(lambda: stage.trained(job, 3), "it trains")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    stage.slurm.kill_node(victim)
    try:
        stage.until(lambda: stage.slurm.show(job)["Restarts"] == "1", "Slurm requeues the job", 120)
        stage.until(lambda: stage.events(job, EventKind.OUTCOME), "relight has guarded it", 60)
        assert [event.body["action"] for event in stage.events(job, EventKind.STEP, done=True)] == ["guard"]
        stage.until(lambda: stage.slurm.state(job) == "RUNNING", "it runs again", 60)
        shown = stage.slurm.show(job)
        assert shown["Restarts"] == "1"
        assert victim in stage.hosts(shown["ExcNodeList"])
        assert victim not in stage.hosts(shown["NodeList"])
    finally:
        stage.slurm.run("scancel", str(job))
        stage.slurm.start_node(victim)
        stage.slurm.wait_node(victim, {"IDLE"}, 90)


def test_a_no_requeue_job_is_armed_while_it_lives_and_restarted_later(stage: Stage) -> None:
    faults = stage.faults("armed")
    job = stage.train(
        "alice", "armed", "--no-requeue", nodes=2, steps=75, comment="relight", faults=faults, step_time=0.2
    )
    stage.until(lambda: stage.slurm.show(job)["Requeue"] == "1", "it is armed")
    _crash(stage, job, faults)
    stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
    assert [event.body["action"] for event in stage.events(job, EventKind.STEP, done=True)] == ["arm", "restart"]


def test_an_afterok_child_is_armed_again_and_runs(stage: Stage) -> None:
    faults = stage.faults("parent")
    job = stage.train("alice", "parent", nodes=2, steps=20, comment="relight", faults=faults, step_time=0.2)
    child = stage.slurm.submit("alice", "#!/bin/bash\ntrue\n", f"--dependency=afterok:{job}", name="child")
    _crash(stage, job, faults)
    stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the parent finishes")
    stage.until(lambda: stage.slurm.state(child) == "COMPLETED", "the child runs", 60)


def test_only_the_failed_task_of_an_array_is_restarted(stage: Stage) -> None:
    flag = stage.slurm.home("alice") / "array-flag"
    script = (
        "#!/bin/bash\n"
        f'if [ "$SLURM_ARRAY_TASK_ID" = 2 ] && [ ! -e {flag} ]; then touch {flag}; sleep 2; exit 7; fi\n'
        "sleep 12\n"
    )
    array = stage.slurm.submit("alice", script, "--array=1-3", comment="relight", name="array")
    stage.until(lambda: flag.exists(), "task 2 fails")
    stage.until(lambda: stage.events(f"{array}_2", EventKind.OUTCOME, kind="restarted"), "task 2 is restarted")
    restarts = {task: stage.slurm.show(f"{array}_{task}")["Restarts"] for task in (1, 2, 3)}
    assert restarts == {1: "0", 2: "1", 3: "0"}


def test_endings_that_are_no_fault_are_left_alone(stage: Stage) -> None:
    ends = stage.slurm.home("alice") / "done-ends"
    script = f"#!/bin/bash\nuntil [ -e {ends} ]; do sleep 0.2; done\n"
    done = stage.slurm.submit("alice", script, comment="relight", name="done")
    cancelled = stage.slurm.submit("alice", "#!/bin/bash\nsleep 300\n", comment="relight", name="cancelled")
    for job in (done, cancelled):
        stage.until(lambda job=job: stage.events(job, EventKind.STATE, state="RUNNING"), f"relight sees job {job} run")
    ends.touch()
    stage.slurm.run("scancel", str(cancelled), user="alice")
    for job, state in ((done, "COMPLETED"), (cancelled, "CANCELLED")):
        stage.until(lambda job=job, state=state: stage.events(job, EventKind.STATE, state=state), f"{state} is seen")
        stage.until(lambda job=job: stage.events(job, EventKind.ADVICE), "the advice is on record")
        assert stage.events(job, EventKind.ADVICE)[-1].body["action"] == "leave_alone"
        assert stage.slurm.state(job) == state
        assert not stage.events(job, EventKind.STEP)


def test_a_bad_directive_is_told_and_the_job_runs_untouched(stage: Stage) -> None:
    job = stage.slurm.submit(
        "alice", "#!/bin/bash\nsleep 4\nexit 3\n", comment='{"relight": {"max_restart": 8}}', name="typo"
    )
    stage.until(lambda: stage.events(job, EventKind.DIRECTIVE), "the bad directive is on record")
    assert "max_restart" in stage.events(job, EventKind.DIRECTIVE)[0].summary
    stage.until(lambda: stage.events(job, EventKind.STATE, state="FAILED"), "its end is seen")
    stage.until(lambda: stage.events(job, EventKind.ADVICE), "the advice is on record")
    assert stage.events(job, EventKind.ADVICE)[-1].body["action"] == "leave_alone"
    assert stage.slurm.show(job)["Restarts"] == "0"


def test_interactive_and_heterogeneous_jobs_are_recorded_as_not_restartable(stage: Stage) -> None:
    het = stage.slurm.submit(
        "alice", "#!/bin/bash\nsleep 3\nexit 5\n", "--nodes=1", ":", "--nodes=1", comment="relight", name="het"
    )
    stage.until(lambda: stage.events(het, EventKind.STATE, state="FAILED"), "the het job's end is seen")
    stage.until(lambda: stage.events(het, EventKind.ADVICE), "the advice is on record")
    advice = stage.events(het, EventKind.ADVICE)[-1]
    assert advice.body["action"] == "leave_alone"
    assert "het" in advice.summary.lower()
    assert stage.slurm.show(het)["Restarts"] == "0"


def test_hostile_names_and_comments_stay_text(stage: Stage) -> None:
    name = "x\n   JobState=COMPLETED Restarts=9 Requeue=0\nJobId=1 | ~ = \u2028"
    comment = '{"relight": {"max_restarts": 1}, "note": "a|b=c\\n999|FAILED"}'
    job = stage.slurm.submit("alice", "#!/bin/bash\nsleep 2\nexit 9\n", comment=comment, name=name)
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="restarted"), "it is restarted once")
    stage.until(
        lambda: any(event.body["action"] == "stop" for event in stage.events(job, EventKind.ADVICE)), "then stopped"
    )
    assert stage.restarts(job) == 1


def test_a_log_that_cannot_be_read_is_blind_time_and_not_the_end(stage: Stage) -> None:
    home = stage.slurm.home("alice")
    jobs = {}
    for kind in ("deleted", "stolen"):
        target = home / f"{kind}.out"
        flag = home / f"{kind}.flag"
        remove = f"rm -f {target}" if kind == "deleted" else f"rm -f {target}; ln -s /etc/shadow {target}"
        script = (
            f"#!/bin/bash\nif [ ! -e {flag} ]; then touch {flag}; sleep 3; {remove}; sleep 1; exit 6; fi\nsleep 20\n"
        )
        jobs[kind] = stage.slurm.submit("alice", script, f"--output={target}", comment="relight", name=kind)
    for kind, job in jobs.items():
        stage.until(
            lambda job=job: stage.events(job, EventKind.OUTCOME, kind="restarted"),
            f"the job with the {kind} log is back",
        )
        told = [event.summary for event in stage.events(job, EventKind.WATCHDOG)]
        assert any("blind" in text for text in told), told
    assert "root:" not in str([event.body for event in stage.events(jobs["stolen"])])
