"""Slurm out of reach: each way has its own error, comes quickly, and is never told as an unknown job."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.slurm.client import SlurmClient
from activities.slurm.errors import GateBroken, RefusalKind, Refused, SlurmctldAway, SlurmdbdAway, SlurmTimeout
from activities.slurm.transport import LocalGate
from recovery.records import JobState
from tests.activities.slurm.conftest import Site, gate_env, soon
from tests.cluster import ENDED, SlurmCluster
from tests.cluster.waiting import until


def client_of(cluster: SlurmCluster, gate_dir: Path, timeout_s: float = 60) -> SlurmClient:
    return SlurmClient("prod", LocalGate(env=gate_env(cluster, gate_dir), timeout_s=timeout_s))


async def test_slurmctld_away_is_its_own_error_for_every_question_and_change(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    client = client_of(slurm, tmp_path, timeout_s=5)  # Slurm's own commands would take 9 s to say so
    job = str(slurm.submit("alice", "sleep 600", comment="relight"))
    slurm.wait_state(job, {"RUNNING"})
    slurm.stop_slurmctld()
    try:
        for ask in (client.ping, client.sweep, client.nodes, client.config):
            with pytest.raises(SlurmctldAway, match="slurmctld does not answer") as away:
                await ask()
            assert not isinstance(away.value, SlurmTimeout)
        for about in (client.job, client.relatives):
            with pytest.raises(SlurmctldAway):
                await about(job)
        with pytest.raises(SlurmctldAway):
            await client.restart(job, 0, deadline=soon(), start_in_s=60)
        with pytest.raises(SlurmctldAway):
            await client.stop(job, 0, deadline=soon())
    finally:
        slurm.start_slurmctld()
    view = await client.job(job)
    assert view is not None
    assert (view.state, view.restarts) == (JobState.RUNNING, 0)
    assert not (tmp_path / "changes.json").exists()


async def test_a_hanging_slurmctld_is_away_and_a_gate_without_an_answer_times_out(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    slurm.hang_slurmctld()
    try:
        with pytest.raises(SlurmTimeout, match="did not answer 'job 1'") as late:
            await client_of(slurm, tmp_path, timeout_s=1).job("1")
        assert late.value.unsure
        with pytest.raises(SlurmctldAway) as away:
            await client_of(slurm, tmp_path).sweep()
        assert not isinstance(away.value, SlurmTimeout)
    finally:
        slurm.unhang_slurmctld()
    await client_of(slurm, tmp_path).ping()


async def test_without_accounting_a_completing_job_is_not_judged(tmp_path: Path) -> None:
    epilog = 'while [ -f "$(dirname "$0")/slow" ]; do sleep 0.2; done'
    with SlurmCluster(nodes=1, epilog=epilog) as cluster:
        client = client_of(cluster, tmp_path)
        slow = cluster.layout.etc / "slow"
        slow.write_text("")
        job = str(cluster.submit("alice", "exit 1"))
        cluster.wait_state(job, {"COMPLETING"})
        view = await client.job(job)
        assert view is not None
        assert (view.state, view.completing) == (JobState.COMPLETING, True)
        assert await client.attempts(job) is None
        with pytest.raises(Refused, match="accounting is off") as refused:
            await client.restart(job, 0, deadline=soon(), start_in_s=60)
        assert refused.value.kind is RefusalKind.COMPLETING
        slow.unlink()
        cluster.wait_state(job, {"FAILED"})
        assert (await client.restart(job, 0, deadline=soon(), start_in_s=60)).leased


async def test_accounting_away_is_its_own_error_and_judges_no_completing_job(site: Site) -> None:
    with site.slow_epilog(8):
        job = site.running("-n1")
        site.cluster.stop_slurmdbd()
        try:
            with pytest.raises(SlurmdbdAway, match="sacct: "):
                await site.client.attempts(job)
            site.cluster.run("scancel", job, check=True)
            site.cluster.wait_state(job, {"COMPLETING"})
            with pytest.raises(Refused, match="slurmdbd_away") as refused:
                await site.client.restart(job, 0, deadline=soon(), start_in_s=60)
            assert refused.value.kind is RefusalKind.COMPLETING
        finally:
            site.cluster.start_slurmdbd()
        site.cluster.wait_state(job, ENDED)
    until(
        lambda: site.cluster.attempts(job)[-1]["State"].startswith("CANCELLED"),
        "accounting has caught up",
        timeout_s=90,
    )


async def test_a_gate_that_cannot_run_or_speaks_otherwise_is_broken(slurm: SlurmCluster, tmp_path: Path) -> None:
    with pytest.raises(GateBroken, match=r"cannot run the gate .* with /nonexistent/python"):
        await SlurmClient("prod", LocalGate(python="/nonexistent/python")).ping()
    script = tmp_path / "other.py"
    for text, said in (
        ("import sys; sys.exit('no module')", "answered nothing to 'ping'.*no module"),
        ("print('hello')", "no document of its own"),
        ('print(\'{"v": 99, "ok": true}\')', "speaks version 99"),
    ):
        script.write_text(text)
        with pytest.raises(GateBroken, match=said):
            await SlurmClient("prod", LocalGate(script=script)).ping()
    lost = {**gate_env(slurm, tmp_path), "PATH": "/nonexistent"}
    with pytest.raises(Refused, match=r"cannot run scontrol \(PATH=/nonexistent\)"):
        await SlurmClient("prod", LocalGate(env=lost)).ping()
