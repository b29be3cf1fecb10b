"""Restarting a job on a real cluster: requeue and lease in one step, and every reason not to."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.slurm.client import SlurmClient
from activities.slurm.errors import RefusalKind, Refused
from activities.slurm.placement import usable_exclusions
from activities.slurm.transport import GATE, LocalGate
from recovery.records import JobState
from tests.activities.slurm.conftest import Site, gate_env, soon
from tests.cluster import ENDED
from tests.cluster.waiting import until


async def refusal(site: Site, job: str, count: int = 0, **words: object) -> RefusalKind:
    """Tries a restart that must be refused and must leave the restart count alone."""
    before = site.restarts(job)
    with pytest.raises(Refused) as refused:
        await site.client.restart(job, count, **{"deadline": soon(), "start_in_s": 60, **words})  # type: ignore[arg-type]
    assert site.restarts(job) == before
    return refused.value.kind


async def test_a_failed_job_comes_back_on_other_nodes_by_itself(site: Site) -> None:
    job = site.ended('[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600; exit 7', "-N2", "--exclude=n04")
    assert (await site.view(job)).nodes == ("n01", "n02")
    union = ["n01", "n04", "n77", "gpu-9.cluster"]
    done = await site.client.restart(job, 0, deadline=soon(), start_in_s=5, exclude=union)
    assert (done.done, done.leased, done.already) == (True, True, False)
    assert done.unknown == ("gpu-9.cluster", "n77")
    assert done.view is not None
    assert (done.view.state, done.view.restarts, done.view.excluded) == (JobState.PENDING, 1, ("n01", "n04"))
    assert done.view.eligible_time is not None
    assert done.acted_at is not None
    assert 3 <= (done.view.eligible_time - done.acted_at).total_seconds() <= 9
    site.cluster.wait_state(job, {"RUNNING"})
    view = await site.view(job)
    assert (view.nodes, view.restarts) == (("n02", "n03"), 1)
    rows = await site.client.attempts(job)
    assert rows is not None
    assert [row.nodes for row in rows] == [("n01", "n02"), ("n02", "n03")]


async def test_a_running_job_is_restarted_with_its_lease_while_it_completes(site: Site) -> None:
    with site.slow_epilog(3):
        job = site.running()
        done = await site.client.restart(job, 0, deadline=soon(), start_in_s=90, exclude=["n01"])
        assert done.view is not None
        assert (done.view.state, done.view.completing, done.view.excluded) == (JobState.PENDING, True, ("n01",))
        until(lambda: site.cluster.state(job) == "PENDING", "the epilog is done", timeout_s=60)
    view = await site.view(job)
    assert view.excluded == ("n01",)
    assert view.eligible_time is not None
    assert done.acted_at is not None
    assert (view.eligible_time - done.acted_at).total_seconds() > 80


async def test_a_restart_done_twice_requeues_once(site: Site) -> None:
    job = site.ended("exit 1")
    for turn in range(3):
        done = await site.client.restart(job, 0, deadline=soon(), start_in_s=90, exclude=["n01"], again=turn > 0)
        assert (done.done, done.leased, done.already) == (True, True, turn > 0)
        assert site.restarts(job) == 1
    assert await refusal(site, job) is RefusalKind.STALE
    await site.client.lease(job, 1, deadline=soon(), start_in_s=5)
    site.cluster.wait_state(job, ENDED)
    done = await site.client.restart(job, 0, deadline=soon(), start_in_s=90, exclude=["n02"], again=True)
    assert (done.done, done.already) == (False, True)
    assert (site.restarts(job), site.cluster.state(job)) == (1, "FAILED")


async def test_two_restarts_at_the_same_time_requeue_once(site: Site) -> None:
    job = site.running()
    both = [site.client.restart(job, 0, deadline=soon(), start_in_s=90, again=True) for _ in range(2)]
    answers = await asyncio.gather(*both)
    assert sorted(answer.already for answer in answers) == [False, True]
    assert site.restarts(job) == 1


async def test_each_fence_refuses_and_changes_nothing(site: Site) -> None:
    job = site.ended("exit 1")
    assert await refusal(site, job, count=1) is RefusalKind.STALE
    assert await refusal(site, job, deadline=soon(-1)) is RefusalKind.LATE
    with pytest.raises(Refused) as refused:
        await site.client.restart("999999", 0, deadline=soon(), start_in_s=60)
    assert refused.value.kind is RefusalKind.UNKNOWN_JOB
    stop = site.gate_dir / "STOP"
    stop.write_text("storage maintenance\n")
    with pytest.raises(Refused, match=r"STOP exists \(storage maintenance\): remove it") as refused:
        await site.client.restart(job, 0, deadline=soon(), start_in_s=60)
    assert refused.value.kind is RefusalKind.STOPPED
    stop.unlink()
    low = SlurmClient("prod", LocalGate(env=gate_env(site.cluster, site.gate_dir, RELIGHT_GATE_CEILING="1")))
    await low.restart(job, 0, deadline=soon(), start_in_s=60)
    with pytest.raises(Refused, match="made 1 changes within the hour") as refused:
        await low.stop(job, 1, deadline=soon())
    assert refused.value.kind is RefusalKind.CEILING
    assert 3500 < int(str(refused.value.detail["retry_in_s"])) <= 3601
    assert (site.restarts(job), site.cluster.state(job)) == (1, "PENDING")


async def test_a_job_that_ends_between_look_and_act_is_not_restarted(site: Site, tmp_path: Path) -> None:
    job = site.running("-n1")
    # Stands in for squeue: right before the gate's last, short look the owner cancels the job.
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(
        "#!/bin/sh\n"
        f"is_running() {{ scontrol show job {job} | grep -q State=RUNNING; }}\n"
        f'case "$*" in *Comment*) ;; *) scancel {job}; while is_running; do :; done;; esac\n'
        'PATH=${PATH#*:} exec squeue "$@"\n'
    )
    squeue.chmod(0o755)
    env = gate_env(site.cluster, site.gate_dir)
    hasty = SlurmClient("prod", LocalGate(env={**env, "PATH": f"{squeue.parent}:{env['PATH']}"}))
    with pytest.raises(Refused, match=r"changed while it was checked \(RUNNING, now C") as refused:
        await hasty.restart(job, 0, deadline=soon(), start_in_s=60)
    assert refused.value.kind is RefusalKind.CHANGED
    assert site.cluster.wait_state(job, ENDED) == "CANCELLED"
    assert site.restarts(job) == 0


async def test_without_its_folder_the_gate_reads_and_changes_nothing(site: Site) -> None:
    job = site.ended("exit 1")
    lost = SlurmClient("prod", LocalGate(env=gate_env(site.cluster, Path("/nonexistent/gate"))))
    assert (await lost.job(job)) is not None
    with pytest.raises(Refused, match="/nonexistent/gate is missing or not writable") as refused:
        await lost.restart(job, 0, deadline=soon(), start_in_s=60)
    assert refused.value.kind is RefusalKind.BAD_CONFIG
    (site.gate_dir / "changes.json").write_text("[not json")
    with pytest.raises(Refused, match=r"changes.json is damaged: remove it"):
        await site.client.restart(job, 0, deadline=soon(), start_in_s=60)
    assert site.restarts(job) == 0


async def test_a_dry_run_stops_right_before_the_change(site: Site) -> None:
    job = site.ended("exit 1")
    done = await site.client.restart(job, 0, deadline=soon(), start_in_s=60, exclude=["n01"], dry_run=True)
    assert (done.dry_run, done.done, done.leased) == (True, False, False)
    assert (site.restarts(job), site.cluster.state(job)) == (0, "FAILED")
    assert not (site.gate_dir / "changes.json").exists()
    running = site.running()
    assert not (await site.client.stop(running, 0, deadline=soon(), dry_run=True)).done
    assert site.cluster.state(running) == "RUNNING"


async def test_a_job_cancelled_during_its_epilog_is_not_revived_and_a_failed_one_is(site: Site) -> None:
    with site.slow_epilog(10):
        cancelled, failed = site.running("-n1"), site.submit("exit 5", "-n1", name="other")
        site.cluster.run("scancel", cancelled, user="alice", check=True)
        for job in (cancelled, failed):
            site.cluster.wait_state(job, {"COMPLETING"})

        async def told(job: str) -> JobState:
            return (await site.view(job)).state

        for job, state in ((cancelled, JobState.CANCELLED), (failed, JobState.FAILED)):
            for _ in range(100):
                if await told(job) is state:
                    break
            assert (await told(job), site.cluster.state(job)) == (state, "COMPLETING")
        assert await refusal(site, cancelled) is RefusalKind.CANCELLED
        assert (await site.client.restart(failed, 0, deadline=soon(), start_in_s=60)).leased
        site.cluster.wait_state(cancelled, {"CANCELLED"})
        site.cluster.wait_state(failed, {"PENDING"})
    assert await refusal(site, cancelled) is RefusalKind.CANCELLED


async def test_jobs_that_ended_well_rest_or_are_held_are_left_alone(site: Site) -> None:
    finished = site.ended("true", state="COMPLETED")
    assert await refusal(site, finished) is RefusalKind.FINISHED
    suspended = site.running("-n1", name="resting")
    site.cluster.run("scontrol", "suspend", suspended, check=True)
    assert await refusal(site, suspended) is RefusalKind.SUSPENDED
    held = site.submit("true", "--hold", name="held")
    assert await refusal(site, held) is RefusalKind.HELD
    waiting = site.submit("true", "--begin=now+600", name="waiting")
    assert await refusal(site, waiting) is RefusalKind.PENDING
    unrepeatable = site.ended("exit 1", "--no-requeue", name="once")
    assert await refusal(site, unrepeatable) is RefusalKind.NOT_RESTARTABLE
    site.cluster.run("scontrol", "resume", suspended, check=True)


@pytest.mark.parametrize(("kind", "name"), [("afternotok", "next"), ("afterany", "next"), ("singleton", "job")])
async def test_a_dependent_that_started_keeps_the_restart_away(site: Site, kind: str, name: str) -> None:
    job = site.doomed("-n1")
    wish = kind if kind == "singleton" else f"{kind}:{job}"
    child = site.submit("sleep 600", "-n1", f"--dependency={wish}", name=name)
    waiting = await site.client.relatives(job)
    assert [(entry.job_id, entry.kind, entry.started) for entry in waiting.dependents] == [(child, kind, False)]
    assert waiting.twins == ()
    site.fail(job)
    site.cluster.wait_state(child, {"RUNNING"})
    assert (await site.client.relatives(job)).started == (child,)
    assert await refusal(site, job) is RefusalKind.DEPENDENT
    assert (await site.client.restart(job, 0, deadline=soon(), start_in_s=60, allow=["dependent"])).done


async def test_a_dependent_known_from_before_keeps_the_restart_away(site: Site) -> None:
    job = site.doomed("-n1")
    words = ("-n1", f"--dependency=afterany:{job}", "--chdir=/tmp", "--output=/dev/null")
    child = site.submit("exec sleep 600", *words, name="unlike")
    site.fail(job)
    site.cluster.wait_state(child, {"RUNNING"})
    assert (await site.client.relatives(job)).started == ()
    assert await refusal(site, job, children=[child]) is RefusalKind.DEPENDENT


async def test_a_resubmitted_copy_keeps_the_restart_away(site: Site) -> None:
    job = site.ended("exit 1", name="train")
    other = site.submit("sleep 600", "-n1", name="another")
    twin = site.submit("sleep 600", "-n1", name="train")
    found = await site.client.relatives(job)
    assert [entry.job_id for entry in found.twins] == [twin]
    told = f"copies of job {job} that were submitted since it failed live: {twin}"
    with pytest.raises(Refused, match=told) as refused:
        await site.client.restart(job, 0, deadline=soon(), start_in_s=60)
    assert refused.value.kind is RefusalKind.TWIN
    assert refused.value.detail["jobs"] == [twin]
    site.cluster.run("scancel", twin, check=True)
    site.cluster.wait_state(twin, ENDED)
    assert (await site.client.restart(job, 0, deadline=soon(), start_in_s=60)).done
    site.cluster.wait_state(other, {"RUNNING"})


async def test_runs_that_were_submitted_side_by_side_are_no_copies_of_each_other(site: Site) -> None:
    job = site.doomed("-n1", name="sweep")
    sibling = site.submit("exec sleep 600", "-n1", name="sweep")
    site.fail(job)
    assert (await site.client.relatives(job)).twins == ()
    # It was submitted after this one had failed, though before it ended.
    submitted = (await site.view(sibling)).submit_time
    assert submitted is not None
    assert [one.job_id for one in (await site.client.relatives(job, failed_at=submitted)).twins] == [sibling]
    assert await refusal(site, job, failed_at=submitted) is RefusalKind.TWIN
    assert (await site.client.restart(job, 0, deadline=soon(), start_in_s=60)).done
    site.cluster.run("scancel", sibling, check=True)


async def test_a_sibling_that_was_itself_restarted_is_no_copy(site: Site) -> None:
    """A requeue sets a new time of submission; accounting knows the old one."""
    job = site.doomed("-n1", name="sweep2")
    sibling = site.running("-n1", name="sweep2")
    site.fail(job)
    site.cluster.run("scontrol", "requeue", sibling, check=True)
    site.cluster.wait_state(sibling, {"PENDING", "RUNNING"})
    view = await site.view(sibling)
    failed = await site.view(job)
    assert view.restarts == 1
    assert view.submit_time is not None
    assert failed.end_time is not None
    assert view.submit_time >= failed.end_time
    assert (await site.client.relatives(job)).twins == ()
    site.cluster.run("scancel", sibling, check=True)


@pytest.mark.parametrize(("mine", "theirs", "is_copy"), [("a", "a", True), ("a", "b", False)])
async def test_the_folder_for_checkpoints_tells_copies_from_others(
    site: Site, mine: str, theirs: str, is_copy: bool
) -> None:
    def comment(folder: str) -> str:
        return f'{{"relight": {{"checkpoint_dir": "/ckpt/{folder}"}}}}'

    job = site.submit("exit 1", "-n1", name="train", comment=comment(mine))
    site.cluster.wait_state(job, {"FAILED"})
    other = site.submit("exec sleep 600", "-n1", name="other" if is_copy else "train", comment=comment(theirs))
    assert [one.job_id for one in (await site.client.relatives(job)).twins] == ([other] if is_copy else [])
    site.cluster.run("scancel", other, check=True)


async def test_a_running_job_is_signalled_and_no_other(site: Site) -> None:
    heard = site.cluster.home("alice") / "heard"
    heard.unlink(missing_ok=True)
    script = f"trap 'echo yes > {heard}' USR1; while sleep 0.2; do :; done"
    job = site.submit(script, "-n1", name="listens")
    site.cluster.wait_state(job, {"RUNNING"})

    async def send() -> bool:
        return (await site.client.signal(job, 0, "USR1", deadline=soon(), to="batch")).done

    assert await send()
    until(heard.exists, "its script hears the signal", timeout_s=20)
    with pytest.raises(Refused) as refused:
        await site.client.signal(job, 1, "USR1", deadline=soon())
    assert refused.value.kind is RefusalKind.STALE
    waiting = site.submit("true", "--begin=now+600", name="waiting")
    with pytest.raises(Refused) as refused:
        await site.client.signal(waiting, 0, "USR1", deadline=soon())
    assert refused.value.kind is RefusalKind.STATE_NOT_ALLOWED
    site.cluster.run("scancel", job, waiting, check=True)


async def test_reservations_for_maintenance_are_told_and_others_are_not(site: Site) -> None:
    create = ("scontrol", "create", "reservation")
    when = ("starttime=now+3600", "duration=60", "users=root")
    site.cluster.run(*create, "reservationname=service", *when, "flags=maint,ignore_jobs", "nodes=n0[1-2]", check=True)
    site.cluster.run(*create, "reservationname=course", *when, "flags=ignore_jobs", "nodes=n03", check=True)
    (window,) = await site.client.maintenance()
    assert (window.nodes, window.reason) == (("n01", "n02"), "Slurm reservation service")
    assert (window.ends - window.begins).total_seconds() == 3600
    assert abs((window.begins - datetime.now(UTC)).total_seconds() - 3600) < 60
    for name in ("service", "course"):
        site.cluster.run("scontrol", "delete", f"reservationname={name}", check=True)
    assert await site.client.maintenance() == ()


async def test_one_array_task_is_restarted_and_its_siblings_run_on(site: Site) -> None:
    array = site.submit('[ "$SLURM_ARRAY_TASK_ID" = 2 ] && exit 1; exec sleep 600', "--array=1-3", "-n1")
    site.cluster.wait_state(f"{array}_2", {"FAILED"})
    done = await site.client.restart(f"{array}_2", 0, deadline=soon(), start_in_s=60, exclude=["n02"])
    assert done.view is not None
    assert (done.view.job_id, done.view.restarts, done.view.excluded) == (f"{array}_2", 1, ("n02",))
    for task in (1, 3):
        shown = site.cluster.show(f"{array}_{task}")
        assert (shown["JobState"], shown["Restarts"], shown["ExcNodeList"]) == ("RUNNING", "0", "(null)")


async def test_a_job_that_needs_every_node_is_not_stranded(site: Site) -> None:
    job = site.ended('[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600; exit 1', "-N4")
    view, nodes = await site.view(job), await site.client.nodes()
    chosen = usable_exclusions(view, nodes, wanted=["n02"], keep=view.excluded)
    assert (chosen.kept, chosen.dropped) == ((), ("n02",))
    assert "only 3 usable nodes would remain, the job needs 4" in chosen.reason
    await site.client.restart(job, 0, deadline=soon(), start_in_s=5, exclude=chosen.kept)
    site.cluster.wait_state(job, {"RUNNING"})
    assert (await site.view(job)).nodes == ("n01", "n02", "n03", "n04")


def client_as(site: Site, user: str, tmp_path: Path) -> SlurmClient:
    """A client whose gate runs under another account, with a folder of its own."""
    folder = site.cluster.home(user) / "gate"
    site.cluster.run("mkdir", "-p", "-m", "700", str(folder), user=user, check=True)
    script = site.cluster.dir / "gate.py"
    script.write_bytes(GATE.read_bytes())
    python = tmp_path / f"python-as-{user}"
    python.write_text(f'#!/bin/sh\nexec setpriv --reuid={user} --regid={user} --init-groups /usr/bin/python3 "$@"\n')
    python.chmod(0o755)
    return SlurmClient("prod", LocalGate(python=str(python), env=gate_env(site.cluster, folder), script=script))


async def test_another_users_account_is_denied_and_an_operator_is_not(site: Site, tmp_path: Path) -> None:
    job = site.running("-n1")
    with pytest.raises(Refused, match="Operator level") as refused:
        await client_as(site, "bob", tmp_path).restart(job, 0, deadline=soon(), start_in_s=60)
    assert refused.value.kind is RefusalKind.DENIED
    assert site.restarts(job) == 0
    operator = client_as(site, site.cluster.operator, tmp_path)
    done = await operator.restart(job, 0, deadline=soon(), start_in_s=60, exclude=["n03"])
    assert (done.done, done.leased) == (True, True)
    site.cluster.wait_state(job, {"PENDING"})
    assert (await operator.stop(job, 1, deadline=soon())).done
    rows = await operator.attempts(job)
    assert rows is not None
    assert len(rows) >= 1


async def test_a_gate_folder_that_everybody_may_write_is_refused(site: Site) -> None:
    job = site.running("-n1")
    site.gate_dir.chmod(0o777)
    with pytest.raises(Refused, match="everybody may write"):
        await site.client.stop(job, 0, deadline=soon())
    assert site.cluster.state(job) == "RUNNING"
