"""The gate over SSH: a real sshd in front of a real cluster, and each thing that can go wrong on the way."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.slurm.client import SlurmClient
from activities.slurm.errors import GateBroken, RefusalKind, Refused, SlurmctldAway, SlurmTimeout
from activities.slurm.ssh import SentGate, SshGate, SshHost
from activities.slurm.transport import GATE
from recovery.records import JobState
from tests.activities.slurm.conftest import Site, soon
from tests.cluster import SlurmCluster
from tests.cluster.waiting import until
from tests.services.sshd import SshServer

FORGED_FILE = Path("/tmp/relight-forged")  # what the name of the job would make a shell do
FORGED = f"x'; touch {FORGED_FILE}; '\n$(id) --all\t\u00e9"


@pytest.fixture(scope="module")
def server(lab: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    folder = tmp_path_factory.mktemp("far-gate")
    folder.chmod(0o700)
    settings = folder / "gate.json"
    settings.write_text(json.dumps({"dir": str(folder), "ceiling": 1000}))
    env = {"RELIGHT_GATE_CONFIG": str(settings), "SLURM_CONF": lab.env["SLURM_CONF"]}
    words = ["env", *(f"{name}={value}" for name, value in env.items())]
    forced = shlex.join([*words, sys.executable, "-I", "-S", str(GATE), "--forced"])
    with SshServer(forced=forced) as made:
        yield made


def reach(server: SshServer, **more: object) -> SshHost:
    usual = SshHost("127.0.0.1", "root", server.key, server.known_hosts, port=server.port)
    return dataclasses.replace(usual, **more)  # type: ignore[arg-type]


@pytest.fixture
async def gate(server: SshServer) -> AsyncIterator[SshGate]:
    made = SshGate(reach(server))
    yield made
    await made.close()


@pytest.fixture
def far(gate: SshGate) -> SlurmClient:
    return SlurmClient("prod", gate)


async def test_a_job_is_read_and_restarted_as_it_is_here(site: Site, far: SlurmClient) -> None:
    job = site.ended("sleep 1; exit 3", "-N2", name=FORGED)
    view = await far.job(job)
    assert view is not None
    assert (view.name, view.nodes, view.state) == (FORGED, ("n01", "n02"), JobState.FAILED)
    changed = await far.restart(job, 0, deadline=soon(), start_in_s=60, exclude=["n01"])
    assert changed.done
    assert site.restarts(job) == 1
    assert site.cluster.show(job)["ExcNodeList"] == "n01"
    with pytest.raises(Refused) as refused:
        await far.restart(job, 0, deadline=soon(), start_in_s=60)
    assert refused.value.kind is RefusalKind.STALE


async def test_calls_share_one_connection(site: Site, server: SshServer, far: SlurmClient) -> None:
    await far.ping()
    before = connections(server)
    rows = await asyncio.gather(*(far.sweep(everything=True) for _ in range(12)))
    assert all(row == rows[0] for row in rows)
    assert connections(server) == before


async def test_a_key_with_the_forced_command_runs_nothing_else(server: SshServer, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    gate = SshGate(reach(server))
    connection = await gate._connected()
    for words in (
        f"touch {mark}",
        f"relight-gate W10; touch {mark}",
        f"relight-gate $(touch {mark})",
        f"relight-gate\nW10\ntouch {mark}",
        "relight-gate W10= W10=",
        "relight-gate",
        "relight-gate AAAA",
        "relight-gate eyJhIjoxfQ==",
        "relight-gate WzFd",
        "relight-gate WyItLWVuY29kZWQiLCJXeUp3YVc1bklsMD0iXQ==",  # an encoded request within a request
        "",
    ):
        done = await connection.run(words or None, input="")
        told = json.loads(str(done.stdout))
        assert (told["ok"], told["error"]["kind"]) == (False, "bad_request"), words
    assert not mark.exists()
    await gate.close()


async def test_the_gate_travels_where_none_is_installed(site: Site, lab: SlurmCluster, tmp_path: Path) -> None:
    job = site.running(name=FORGED)
    env = {"RELIGHT_GATE_DIR": f"{tmp_path}", "SLURM_CONF": lab.env["SLURM_CONF"], "ODD": FORGED}
    with SshServer() as server:
        gate = SshGate(reach(server), sent=SentGate(python=sys.executable, env=env))
        view = await SlurmClient("prod", gate).job(job)
        assert view is not None
        assert (view.name, view.state) == (FORGED, JobState.RUNNING)
        with pytest.raises(GateBroken, match=r"exit status 127.*is python3 there"):
            await SlurmClient("prod", SshGate(reach(server), sent=SentGate(python="/no/python"))).ping()
        await gate.close()
    assert FORGED_FILE not in set(FORGED_FILE.parent.iterdir())


async def test_a_lost_connection_is_told_and_made_anew(server: SshServer, gate: SshGate) -> None:
    client = SlurmClient("prod", gate)
    await client.ping()
    server.kill()
    for _ in range(2):
        with pytest.raises(SlurmctldAway, match="cannot be reached over SSH") as away:
            await client.ping()
        assert not away.value.unsure, "nothing was asked"
    server.start()
    await client.ping()
    server.kill()
    server.start()
    await client.ping()


async def test_a_call_that_is_cut_off_may_have_been_made(server: SshServer, tmp_path: Path) -> None:
    forced, mark = server._forced, tmp_path / "mark"
    server.force(f"touch {mark}; sleep 30")
    gate = SshGate(reach(server))
    client = SlurmClient("prod", gate)
    try:
        asked = asyncio.create_task(client.ping())
        await asyncio.to_thread(until, mark.exists, "the call is under way", timeout_s=30)
        server.kill()
        with pytest.raises(SlurmTimeout, match=r"was lost during 'ping'|ended without an answer to 'ping'") as lost:
            await asked
        assert lost.value.unsure
        server.start()
        with pytest.raises(SlurmTimeout, match=r"did not answer 'ping' in 2 s"):
            await SlurmClient("prod", SshGate(reach(server), timeout_s=2)).ping()
    finally:
        server.force(forced)


async def test_what_is_wrong_on_the_way_is_named(server: SshServer, tmp_path: Path) -> None:
    async def told(**more: object) -> str:
        with pytest.raises((GateBroken, SlurmctldAway)) as broken:
            await SlurmClient("prod", SshGate(reach(server, **more))).ping()
        return f"{type(broken.value).__name__}: {broken.value}"

    other = tmp_path / "other"
    with SshServer() as stranger:
        other.write_bytes(stranger.key.read_bytes())
        assert "GateBroken: root@127.0.0.1" in await told(known_hosts=stranger.known_hosts)
        assert "its host key is not the one in" in await told(known_hosts=stranger.known_hosts)
        assert "does not take the key" in await told(key_file=other)
    assert "/no/key is no file" in await told(key_file=Path("/no/key"))
    assert "/no/hosts is no file" in await told(known_hosts=Path("/no/hosts"))
    garbage = tmp_path / "garbage"
    garbage.write_text("no key")
    assert "cannot be used" in await told(key_file=garbage)
    assert "SlurmctldAway: root@127.0.0.1:1 cannot be reached over SSH" in await told(port=1)
    forced = server._forced
    server.force("echo sorry >&2; exit 3")
    assert "answered nothing to 'ping' (exit status 3): sorry; is the gate" in await told()
    server.force(forced)
    server.kill()
    server.new_host_key()
    server.start()
    assert "its host key is not the one in" in await told()
    server.kill()
    server.learn_host_key()
    server.start()
    await SlurmClient("prod", SshGate(reach(server))).ping()


async def test_a_host_on_the_way(site: Site, server: SshServer) -> None:
    with SshServer() as jump:
        gate = SshGate(reach(server, jump=reach(jump)))
        assert (await SlurmClient("prod", gate).ping()) is None
        await gate.close()
        with pytest.raises(GateBroken, match="its host key is not the one in"):
            await SshGate(reach(server, jump=reach(jump, known_hosts=server.known_hosts))).call(["ping"])


def connections(server: SshServer) -> int:
    """Established connections to that sshd, as the kernel has them."""
    port = f":{server.port:04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)
