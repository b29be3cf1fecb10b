"""Which nodes a failure keeps which jobs off, on a real cluster: only by what may be believed, and not for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from activities.contracts import EventKind
from tests.integration.story import told_on_failure
from tests.stage import Stage

POLICY = {"drain": True, "max_drained_share": 0.2, "max_restarts_unknown": 3, "max_excluded_share": 1.0,
          "permit_wait_s": 10}  # fmt: skip

DIES_ON_ITS_SECOND_NODE = """
export FAILS={fails}
exec srun --kill-on-bad-exit=1 bash -c '
  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt "$FAILS" ] && [ "$SLURM_PROCID" = 1 ]; then sleep 2; exit 5; fi
  exec sleep {sleep}'
"""
"""Nothing tells why: the node is merely where it happened."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    # ReturnToService=2: a node that was down comes back by itself, as on many sites.
    with Stage(nodes=6, kill_wait_s=2, cred_expire_s=20, policy=POLICY, extra_conf="ReturnToService=2") as made:
        made.start_worker()
        yield made


def _break_one(stage: Stage, job: int, faults: str, after_step: int) -> str:
    """Breaks a node of the running job for ever; gives the node."""
    stage.until(lambda: stage.trained(job, after_step), f"step {after_step}")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    (stage.faults(faults) / victim).write_text("gpu")
    return victim


def _excluded(stage: Stage, job: int) -> list[str]:
    return stage.hosts(stage.slurm.show(job)["ExcNodeList"])


def _nodes(stage: Stage) -> dict[str, dict[str, list[dict[str, object]]]]:
    """What `relight nodes` tells, by node."""
    told = stage.relight("nodes", "--json")
    assert told.returncode == 0, told.stderr
    return {entry["node"]: entry for entry in json.loads(told.stdout)}


def test_two_nodes_fail_in_turn_and_the_job_finishes_on_the_rest(stage: Stage) -> None:
    faults = stage.faults("turn")
    job = stage.train("alice", "turn", nodes=2, steps=40, comment="relight", faults=faults, step_time=0.2)
    with told_on_failure(stage, job):
        first = _break_one(stage, job, "turn", 5)
        stage.until(lambda: stage.restarts(job) == 1 and stage.slurm.state(job) == "RUNNING", "it runs again")
        second = _break_one(stage, job, "turn", 20)
        stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
        assert first != second
        assert _excluded(stage, job) == sorted((first, second))
        last = stage.slurm.settled_attempts(job)[-1]
        assert not {first, second} & set(stage.hosts(last["NodeList"]))
        assert _nodes(stage)[first]["suspicions"][0]["job_id"] == str(job)
        assert not any(stage.store.drains_of("prod", node) for node in (first, second))  # its own word drains nothing


def test_a_weak_suspect_is_excluded_at_its_second_offence_only(stage: Stage) -> None:
    script = DIES_ON_ITS_SECOND_NODE.format(fails=1, sleep=1)
    pinned = ("--nodes=2", "--exclusive", "--open-mode=append")
    alice = stage.slurm.submit("alice", script, *pinned, name="weak", comment="relight")
    with told_on_failure(stage, alice):
        stage.until(lambda: stage.slurm.state(alice) == "COMPLETED", "it finishes at its second attempt")
        attempts = stage.slurm.settled_attempts(alice)
        where = stage.hosts(attempts[0]["NodeList"])
        assert (stage.restarts(alice), _excluded(stage, alice)) == (1, [])
        suspicion = next(one for one in stage.store.suspicions("prod", where) if one.job_id == str(alice))
        assert (suspicion.node, suspicion.confidence, suspicion.trusted) == (where[1], "low", False)
    bob = stage.slurm.submit("bob", script, *pinned, name="weak", comment="relight")
    with told_on_failure(stage, bob):
        stage.until(lambda: stage.slurm.state(bob) == "COMPLETED", "bob's finishes as well")
        assert stage.hosts(stage.slurm.settled_attempts(bob)[0]["NodeList"]) == where
        assert _excluded(stage, bob) == [where[1]]
        verdict = stage.events(bob, EventKind.VERDICT)[0].body
        assert f"by job {alice} of alice" in str(verdict["suspects"])


def test_what_a_job_prints_of_other_jobs_nodes_changes_nothing_outside_it(stage: Stage) -> None:
    faults = stage.faults("victim")
    victim = stage.train(
        "alice", "victim", "--exclusive", nodes=2, steps=4000, comment="relight", faults=faults, step_time=0.2
    )
    with told_on_failure(stage, victim):
        stage.until(lambda: stage.trained(victim, 2), "alice's job trains")
        theirs = stage.hosts(stage.slurm.show(victim)["NodeList"])
        lies = "\n".join(
            f"echo '{line}'"
            for node in theirs
            for line in (
                f"{node} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
                f"{node} kernel: mlx5_core 0000:17:00.0: Port: 1 Link DOWN",
                f"{node}:1234:5678 [0] transport/net_ib.cc:123 NCCL WARN NET/IB : mlx5_0:1 async event : port error",
                f"slurmstepd: error: Node {node} has failed",
                f"srun: error: {node}: task 1: Exited with exit code 1",
            )
        )
        liar = stage.slurm.submit(
            "bob", f'{lies}\n[ -n "$SLURM_RESTART_COUNT" ] || exit 1\nexec sleep 1', "--nodes=1", comment="relight"
        )
        stage.until(lambda: stage.slurm.state(liar) == "COMPLETED", "bob's job fails, and comes back")
        own = stage.hosts(stage.slurm.settled_attempts(liar)[0]["NodeList"])
        assert not set(own) & set(theirs)
        assert not set(_excluded(stage, liar)) & set(theirs)
        assert not [one for one in stage.store.suspicions("prod", theirs) if one.job_id == str(liar)]
        assert not stage.store.drains("prod")
        assert (stage.slurm.state(victim), stage.restarts(victim), _excluded(stage, victim)) == ("RUNNING", 0, [])
        stage.slurm.run("scancel", str(victim))


def test_one_users_lying_logs_take_no_exclusion_from_others(stage: Stage) -> None:
    """Three of six nodes may be excluded on one user's word. The fourth job waits, then comes back without."""
    trip = stage.faults("lies") / "now"
    lies = (
        f'[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600\necho started\nuntil [ -e {trip} ]; do sleep 0.2; done\n'
        'echo "$(hostname) kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."\nexit 1\n'
    )
    pinned = ("--nodes=1", "--exclusive", "--open-mode=append")
    liars = [stage.slurm.submit("bob", lies, *pinned, name="liar", comment="relight") for _ in range(4)]
    with told_on_failure(stage, *liars):
        stage.until(lambda: all("started" in stage.log(job) for job in liars), "bob's jobs run")
        watched = stage.store.watched
        stage.until(lambda: {str(job) for job in liars} <= {row.job_id for row in watched("prod")}, "are watched")
        trip.touch()
        stage.until(
            lambda: all(stage.restarts(job) == 1 and stage.slurm.state(job) == "RUNNING" for job in liars),
            "all of bob's jobs come back",
        )
        assert sorted(len(_excluded(stage, job)) for job in liars) == [0, 1, 1, 1]
        told = [event.summary for job in liars for event in stage.events(job, EventKind.WATCHDOG)]
        assert len(told) == 1
        assert "not excluded: jobs of bob keep 3 nodes excluded" in told[0]
    honest = stage.slurm.submit("alice", lies, *pinned, name="honest", comment="relight")
    with told_on_failure(stage, honest):
        stage.until(lambda: stage.restarts(honest) == 1 and stage.slurm.state(honest) == "RUNNING", "alice's as well")
        first = stage.hosts(stage.slurm.attempts(honest)[0]["NodeList"])
        assert _excluded(stage, honest) == first
    stage.slurm.run("scancel", *(str(job) for job in (*liars, honest)))
    with told_on_failure(stage, *liars):
        stage.until(lambda: not stage.store.exclusions("prod"), "ended jobs keep nothing excluded")


def test_a_node_that_slurm_calls_failed_is_drained_and_comes_back_when_cleared(stage: Stage) -> None:
    job = stage.slurm.submit("alice", "exec sleep 600", "--nodes=1", name="sole", comment="relight")
    stage.slurm.wait_state(job, {"RUNNING"})
    node = stage.slurm.show(job)["NodeList"]
    with told_on_failure(stage, job):
        stage.until(lambda: stage.store.watched_job("prod", str(job)) is not None, "relight watches it")
        stage.slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test", check=True)
        stage.until(lambda: stage.slurm.node(node)["State"].startswith("IDLE+DRAIN"), "the node is drained")
        stage.until(lambda: _excluded(stage, job) == [node], "the job keeps off it")
        assert stage.slurm.node(node)["Reason"].startswith(f"relight: scheduler.node_fail job {job} until ")
        told = _nodes(stage)[node]
        assert (told["drains"][0]["job_id"], told["suspicions"][0]["trusted"]) == (str(job), True)
        assert stage.events(job, EventKind.STEP, action="drain", done=True)

        cleared = stage.relight("node", "clear", node, "--by", "ops", "--reason", "new board", "--json")
        assert cleared.returncode == 0, cleared.stderr
        assert json.loads(cleared.stdout)["returned"] is True
        assert "DRAIN" not in stage.slurm.node(node)["State"]
        assert not _nodes(stage).get(node, {"suspicions": []})["suspicions"]
        ended = stage.events(job, EventKind.OUTCOME, action="drain")
        assert [event.summary for event in ended] == [f"{node} is back in service: cleared by ops (new board)"]
        stage.slurm.run("scancel", str(job))
