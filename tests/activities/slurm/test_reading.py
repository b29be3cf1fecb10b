"""What the client reads from a real cluster, whatever people typed into it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from activities.slurm.errors import RefusalKind, Refused
from recovery.records import JobState
from tests.activities.slurm.conftest import Site, soon
from tests.cluster import ENDED
from tests.cluster.waiting import until

FORGED = "run=1 | x\n999|FAILED|mallory\nJobId=7 JobName=x\n   JobState=FAILED Reason=x ExcNodeList=n04\n   Restarts=9"


async def test_a_forged_row_in_name_and_comment_stays_text(site: Site) -> None:
    comment = f"a=b c | d\n   Comment=x \n   StdOut=/etc/passwd\n{FORGED}"
    job = site.submit("sleep 600", "--output=%x-%j.out", name=FORGED, comment=comment)
    view = await site.view(job)
    assert (view.name, view.comment) == (FORGED, comment)
    assert (view.restarts, view.excluded, view.user) == (0, (), "alice")
    assert view.state in {JobState.PENDING, JobState.RUNNING}
    assert view.stdout == f"{site.cluster.home('alice')}/{FORGED}-{job}.out"
    rows = [row for row in await site.client.sweep() if row.name == FORGED]
    assert [(row.job_id, row.comment) for row in rows] == [(job, comment)]
    assert "999" not in {row.job_id for row in await site.client.sweep(everything=True)}


async def test_bytes_that_are_no_text_stay_visible_and_are_not_lost(site: Site) -> None:
    job = site.submit("true", name="caf\udce9 \udcff", comment="\udcfe relight ü")
    view = await site.view(job)
    assert (view.name, view.comment) == ("caf\\xe9 \\xff", "\\xfe relight ü")
    json.dumps(view.model_dump(mode="json")).encode()


async def test_a_comment_of_1024_bytes_is_whole(site: Site) -> None:
    comment = '{"relight": {}, "x": "' + "|=\n~" * 250 + '"}'
    assert len(comment) == 1024
    job = site.submit("true", comment=comment)
    assert (await site.view(job)).comment == comment
    assert [row.comment for row in await site.client.sweep() if row.job_id == job] == [comment]


async def test_a_job_is_told_with_what_it_asked_for_and_got(site: Site) -> None:
    words = ("-N2", "--exclude=n03", "--mem=300", "--time=10", "--output=%x.%j.log", "--requeue")
    job = site.submit("exit 3", *words, name="train", comment='{"relight": {"policy": "p"}}')
    site.cluster.wait_state(job, ENDED)
    view = await site.view(job)
    assert (view.state, view.exit_code, view.exit_signal, view.completing) == (JobState.FAILED, 3, 0, False)
    assert (view.min_nodes, view.min_memory_mb, view.time_limit_s) == (2, 300, 600)
    assert (view.excluded, view.nodes, view.batch_host) == (("n03",), ("n01", "n02"), "n01")
    assert (view.requeue, view.batch, view.held, view.partition) == (True, True, False, "main")
    assert view.submit_time is not None
    assert view.start_time is not None
    assert view.end_time is not None
    assert view.submit_time <= view.start_time <= view.end_time
    assert Path(view.stdout) == site.cluster.home("alice") / f"train.{job}.log" == Path(view.stderr)


async def test_all_nodes_of_an_attempt_are_told_while_one_of_them_completes(site: Site) -> None:
    with site.slow_epilog(6, "n02"):
        job = site.submit("sleep 1; exit 3", "-N3")
        shown = ("NodeList", "n02")  # all that Slurm says in its usual place
        until(lambda: shown in site.cluster.show(job).items(), "only n02 is not done yet", timeout_s=30)
        view = await site.view(job)
    assert view.completing
    assert view.nodes == ("n01", "n02", "n03")
    site.cluster.wait_state(job, ENDED)
    assert (await site.view(job)).nodes == ("n01", "n02", "n03")


async def test_array_tasks_have_names_of_their_own(site: Site) -> None:
    array = site.submit("sleep 600", "--array=1-3%1", name="sweep")
    site.cluster.wait_state(f"{array}_1", {"RUNNING"})
    view = await site.view(f"{array}_1")
    assert (view.job_id, view.array_job_id, view.array_task_id) == (f"{array}_1", int(array), 1)
    assert (await site.view(str(view.raw_id))).job_id == f"{array}_1"
    assert (await site.view(f"{array}_3")).state is JobState.PENDING
    with pytest.raises(Refused, match="array of 3 tasks: name one of them") as refused:
        await site.client.job(array)
    assert refused.value.kind is RefusalKind.BAD_REQUEST
    rows = [row for row in await site.client.sweep() if row.array_job_id == int(array)]
    assert [(row.job_id, row.state) for row in rows] == [(f"{array}_1", JobState.RUNNING)]
    with pytest.raises(Refused, match=f"is array task {array}_1: name it so"):
        await site.client.stop(str(view.raw_id), 0, deadline=soon())


async def test_interactive_and_heterogeneous_jobs_are_told_as_such(site: Site) -> None:
    shell_itself = await asyncio.create_subprocess_exec(
        "salloc", "-J", "shell", "--comment=relight", "sleep", "600", env={**site.cluster.env, "USER": "root"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        leader = site.submit("sleep 600", "-n1", ":", "-n1", name="het")
        until(lambda: "shell" in site.cluster.run("squeue", "-h", "-o", "%j").stdout, "salloc is there", timeout_s=60)
        rows = await site.client.sweep()
        (shell,) = [row.job_id for row in rows if row.name == "shell"]
        assert not (await site.view(shell)).batch
        parts = sorted((row.job_id, row.het_job_id) for row in rows if row.name == "het")
        assert parts == sorted([(leader, int(leader)), (str(int(leader) + 1), int(leader))])
        for job in (shell, leader, str(int(leader) + 1)):
            with pytest.raises(Refused) as refused:
                await site.client.restart(job, 0, deadline=soon(), start_in_s=60)
            assert refused.value.kind is RefusalKind.NOT_RESTARTABLE
    finally:
        site.cluster.run("scancel", "--name=shell")
        os.killpg(shell_itself.pid, signal.SIGKILL)
        await shell_itself.wait()


async def test_a_job_that_slurm_does_not_know_is_none(site: Site) -> None:
    assert await site.client.job("999999") is None
    assert await site.client.job("999999_7") is None
    assert await site.client.attempts("999999") == ()


async def test_the_key_of_a_sweep_row_changes_with_state_and_comment_only(site: Site) -> None:
    job = site.submit("sleep 600", "--begin=now+600")

    async def key() -> str:
        return next(row.seen for row in await site.client.sweep() if row.job_id == job)

    first = await key()
    assert await key() == first
    site.cluster.run("scontrol", "update", f"jobid={job}", 'comment={"relight":{"paused":true}}', check=True)
    paused = await key()
    assert paused != first
    site.cluster.run("scontrol", "hold", job, check=True)
    assert await key() != paused


async def test_the_sweep_tells_who_waits_for_a_job(site: Site) -> None:
    parent = site.running()
    child = site.submit("true", f"--dependency=afternotok:{parent}", comment="")
    last = site.submit("true", f"--dependency=afterany:{parent}:{child}", comment="")
    site.submit("true", f"--dependency=after:{parent}+600", comment="")  # runs beside its parent, not instead of it
    (row,) = [row for row in await site.client.sweep() if row.job_id == parent]
    assert sorted((link.child, link.kind) for link in row.dependents) == [(child, "afternotok"), (last, "afterany")]


async def test_attempts_tell_who_cancelled_a_job(site: Site) -> None:
    job = site.running(name="a|b\nc")
    site.cluster.run("scancel", job, user="alice", check=True)
    site.cluster.wait_state(job, ENDED)
    rows = await site.client.attempts(job)
    assert rows is not None
    (row,) = rows
    alice = int(site.cluster.run("id", "-u", "alice").stdout)
    assert (row.state, row.cancelled_by, row.raw_id) == (JobState.CANCELLED, alice, int(job))
    assert row.nodes == ("n01",)


async def test_nodes_and_settings_of_the_cluster(site: Site) -> None:
    site.cluster.run("scontrol", "update", "nodename=n04", "state=drain", "reason=xid 79: [GPU] fell off", check=True)
    try:
        nodes = await site.client.nodes()
    finally:
        site.cluster.run("scontrol", "update", "nodename=n04", "state=resume", check=True)
    assert [node.name for node in nodes] == ["n01", "n02", "n03", "n04"]
    assert [node.is_usable for node in nodes] == [True, True, True, False]
    assert (nodes[3].state, nodes[3].flags, nodes[3].reason) == ("IDLE", ("DRAIN",), "xid 79: [GPU] fell off")
    assert (nodes[0].cpus, nodes[0].memory_mb, nodes[0].partitions) == (4, 1000, ("main",))
    assert nodes[0].boot_time is not None
    assert nodes[0].slurmd_start_time is not None
    facts = await site.client.config()
    assert (facts.cluster_name, facts.min_job_age_s, facts.cred_expire_s, facts.kill_wait_s) == ("prod", 300, 5, 2)
    assert (facts.accounting, facts.stores_comment, facts.job_requeue) == (True, True, True)
    assert facts.slurm_version.count(".") == 2
