"""The test cluster itself: what it promises to the tests that stand on it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import ENDED, ClusterError, SlurmCluster, processes
from tests.cluster.waiting import until

REPOSITORY = Path(__file__).parents[2]
TWO_RANKS = "srun --kill-on-bad-exit=1 bash -c 'echo rank on $(hostname); sleep 600'\n"


def running_job(cluster: SlurmCluster, script: str = TWO_RANKS, *args: str) -> int:
    job = cluster.submit("alice", script, "-N2", "--nodelist=n01,n02", *args)
    cluster.wait_state(job, {"RUNNING"})
    until(lambda: cluster.rank_pids(job, "n01") and cluster.rank_pids(job, "n02"), "both ranks run", timeout_s=60)
    return job


def test_a_job_runs_as_its_user_on_nodes_of_their_own(slurm: SlurmCluster) -> None:
    comment = '{"a": 1, "b": "x=y z=1"}'
    job = slurm.submit("bob", "id -un; pwd; srun -N4 hostname", "-N4", name="a b", comment=comment)
    assert slurm.wait_state(job, ENDED) == "COMPLETED"
    user, folder, *hosts = slurm.output(job).split()
    assert (user, folder, sorted(hosts)) == ("bob", str(slurm.home("bob")), list(slurm.nodes))
    shown = slurm.show(job)
    assert (shown["JobName"], shown["Comment"], shown["JobState"]) == ("a b", comment, "COMPLETED")


def test_one_rank_can_be_killed_without_its_batch_script(slurm: SlurmCluster) -> None:
    job = running_job(slurm, f"{TWO_RANKS}\necho srun ended with $?; exit 7")
    batch = set(slurm.job_pids(job, "n01")) - set(slurm.rank_pids(job, "n01"))
    assert batch, "the batch script and its srun run on the first node"
    for pid in slurm.rank_pids(job, "n02"):
        os.kill(pid, signal.SIGKILL)
    assert slurm.wait_state(job, ENDED) == "FAILED"
    assert slurm.show(job)["ExitCode"] == "7:0"
    assert "srun ended with" in slurm.output(job)


def test_a_node_hangs_and_goes_on_where_it_was(slurm: SlurmCluster) -> None:
    job = running_job(slurm)
    slurm.hang_node("n02")
    pids = slurm.node_pids("n02")
    assert {processes.state(pid) for pid in pids} == {"T"}
    slurm.unhang_node("n02")
    until(lambda: "T" not in {processes.state(pid) for pid in pids}, "n02 goes on", timeout_s=10)
    assert slurm.state(job) == "RUNNING"
    slurm.run("scancel", str(job), user="alice", check=True)
    slurm.wait_state(job, ENDED)


def test_power_loss_takes_every_process_of_the_node_and_a_boot_brings_it_back(slurm: SlurmCluster) -> None:
    job = running_job(slurm)
    pids = slurm.node_pids("n02")
    assert set(slurm.rank_pids(job, "n02")) < set(pids)
    slurm.kill_node("n02")
    assert not any(map(processes.alive, pids))
    assert slurm.node_pids("n02") == ()
    with pytest.raises(ClusterError, match="n02 is off"):
        slurm.kill_node("n02")
    slurm.start_node("n02")
    slurm.run("scancel", str(job), check=True)
    slurm.wait_node("n02", {"IDLE"})
    slurm.reboot_node("n03")
    assert slurm.node_pids("n03")


def test_slurmctld_is_killed_and_started_with_its_jobs(slurm: SlurmCluster) -> None:
    job = running_job(slurm)
    slurm.stop_slurmctld()  # saves its state; after a kill the job might be forgotten
    slurm.start_slurmctld()
    slurm.kill_slurmctld()
    slurm.start_slurmctld()
    assert slurm.state(job) == "RUNNING"
    slurm.run("scancel", str(job), check=True)


def test_attempts_and_the_operator_come_from_accounting(slurm_accounting: SlurmCluster) -> None:
    job = running_job(slurm_accounting)
    operator = slurm_accounting.operator
    assert slurm_accounting.run("scontrol", "requeue", str(job), user="bob").returncode != 0
    slurm_accounting.run("scontrol", "requeue", str(job), user=operator, check=True)
    slurm_accounting.wait_state(job, {"PENDING"})
    slurm_accounting.run("scancel", str(job), user=operator, check=True)
    until(lambda: len(slurm_accounting.attempts(job)) == 2, "two rows in accounting", timeout_s=30, every_s=0.2)
    first, second = slurm_accounting.attempts(job)
    assert (first["State"], first["NodeList"], first["User"]) == ("REQUEUED", "n[01-02]", "alice")
    assert second["State"].startswith("CANCELLED by")


def test_clusters_side_by_side_know_nothing_of_each_other(slurm: SlurmCluster) -> None:
    with SlurmCluster(nodes=1, name="other", first_job_id=12345, extra_conf="KillWait=7\nMessageTimeout=11") as other:
        assert other.submit("alice", "true") == 12345
        told = other.run("scontrol", "show", "config", check=True)
        assert told.stderr == ""
        assert {"KillWait                = 7 sec", "MessageTimeout          = 11 sec"} <= set(told.stdout.splitlines())
        assert slurm.run("scontrol", "show", "job", "12345").returncode != 0
        folder = other.dir
    assert not folder.exists()
    assert slurm.run("sinfo", "-h", "-o", "%D").stdout.split() == ["4"]


def test_epilog_runs_on_the_nodes(slurm: SlurmCluster) -> None:
    with SlurmCluster(nodes=1, epilog='touch "$(dirname "$SLURM_CONF")/../run/epilog-$SLURM_JOB_ID"') as other:
        job = other.submit("alice", "true")
        until((other.dir / "run" / f"epilog-{job}").exists, "the epilog ran", timeout_s=60)


def test_nothing_outlives_a_killed_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tests.cluster import SlurmCluster\n"
            "c = SlurmCluster(nodes=2).start()\n"
            "c.wait_state(c.submit('alice', 'sleep 600'), {'RUNNING'})\n"
            "print(c.dir, c.first_pid, flush=True)\n"
            "input()",
        ],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    folder, first_pid = owner.stdout.readline().split()
    mentioning = [pid for pid in processes.everyone() if any(folder in word for word in processes.command_line(pid))]
    assert len(mentioning) >= 5, "munged, slurmctld, two nodes and a job"
    owner.kill()
    owner.wait()
    until(lambda: not processes.alive(int(first_pid)), "the enclosure ended", timeout_s=60)
    until(lambda: not any(map(processes.alive, mentioning)), "all processes ended", timeout_s=60)
    assert not Path(folder).exists()


def test_a_person_starts_uses_and_ends_a_cluster_from_the_command_line(tmp_path: Path) -> None:
    folder = Path(f"/tmp/relight-person-{os.getpid()}")

    def cluster(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.cluster", *words, "--folder", str(folder)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    try:
        up = cluster("up", "--nodes", "2", "--no-accounting")
        assert up.returncode == 0, up.stderr
        assert f"export SLURM_CONF={folder}/etc/slurm.conf" in up.stdout
        attached = SlurmCluster.attach(folder)
        assert attached.wait_state(attached.submit("alice", "hostname"), ENDED) == "COMPLETED"
        attached.kill_node("n02")
        assert "already running" in cluster("up").stdout
        assert "n01" in cluster("status").stdout
        assert cluster("down").returncode == 0
        assert not attached.running
        again = cluster("down")
        assert (again.returncode, "not running any more" in again.stdout) == (0, True)
        assert cluster("status").returncode == 1
    finally:
        if (folder / "cluster.json").exists():
            with contextlib.suppress(ClusterError):  # ended above, as it should
                SlurmCluster.attach(folder).stop()
        shutil.rmtree(folder, ignore_errors=True)
