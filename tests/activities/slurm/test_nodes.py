"""Taking nodes out of service and back, and holding nodes for a restarted job, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.slurm.answers import NodeChanged
from activities.slurm.client import SlurmClient
from activities.slurm.errors import RefusalKind, Refused
from activities.slurm.transport import LocalGate
from tests.activities.slurm.conftest import Site, gate_env, soon
from tests.activities.slurm.test_restart import client_as
from tests.cluster.waiting import until

UNTIL = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
WORDS = "relight: xid.79 job 12 until 2030-01-02T03:04:00Z"


@pytest.fixture(autouse=True)
def whole(site: Site) -> Iterator[None]:
    """Ends with every node in service and nothing reserved."""
    yield
    site.resume_drained()
    for line in site.cluster.run("scontrol", "-o", "show", "reservation").stdout.splitlines():
        if line.startswith("ReservationName="):
            site.cluster.run("scontrol", "delete", line.split()[0].lower())


def _reservations(site: Site) -> str:
    return site.cluster.run("scontrol", "-o", "show", "reservation").stdout


async def drain(site: Site, node: str = "n01", *, client: SlurmClient | None = None, leave: int = 1) -> NodeChanged:
    return await (client or site.client).drain(node, "12", why="xid.79", until=UNTIL, leave=leave, deadline=soon())


async def undrain(site: Site, node: str = "n01", why: str = "xid.79") -> NodeChanged:
    return await site.client.undrain(node, "12", why=why, until=UNTIL, deadline=soon())


def shown(site: Site, node: str = "n01") -> tuple[bool, str]:
    told = site.cluster.node(node)
    return "DRAIN" in told["State"], told.get("Reason", "").split(" [")[0]


def by_others(site: Site, node: str, reason: str = "bad DIMM") -> None:
    site.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}", check=True)


async def test_a_drained_node_comes_back_by_the_same_words_only(site: Site) -> None:
    done = await drain(site)
    assert (done.done, done.already) == (True, False)
    assert done.view is not None
    assert "DRAIN" in done.view.flags
    assert shown(site) == (True, WORDS)
    again = await drain(site)
    assert (again.done, again.already) == (False, True)
    with pytest.raises(Refused, match="drained by others now") as refused:
        await undrain(site, why="xid.48")
    assert refused.value.kind is RefusalKind.NODE_TAKEN
    assert shown(site) == (True, WORDS)
    assert (await undrain(site)).done
    assert not shown(site)[0]
    with pytest.raises(Refused) as twice:
        await undrain(site)
    assert twice.value.kind is RefusalKind.NOT_DRAINED


async def test_nodes_that_others_took_out_of_service_are_never_touched(site: Site) -> None:
    by_others(site, "n01")
    with pytest.raises(Refused, match=r"out of service already \(IDLE\+DRAIN, bad DIMM\)") as refused:
        await drain(site)
    assert refused.value.kind is RefusalKind.NODE_TAKEN
    assert shown(site) == (True, "bad DIMM")
    await drain(site, "n02")
    by_others(site, "n02", "sent to repair")  # a person takes over what relight had drained
    with pytest.raises(Refused, match="drained by others now"):
        await undrain(site, "n02")
    assert shown(site, "n02") == (True, "sent to repair")


async def test_the_last_nodes_of_a_partition_stay(site: Site) -> None:
    by_others(site, "n03")
    with pytest.raises(Refused, match="without n01 partition main has 2 usable nodes, 3 must stay") as refused:
        await drain(site, leave=3)
    assert refused.value.kind is RefusalKind.LAST_NODES
    assert not shown(site)[0]
    assert (await drain(site, leave=2)).done


async def test_the_gate_has_a_ceiling_of_its_own_for_drains(site: Site) -> None:
    env = gate_env(site.cluster, site.gate_dir, RELIGHT_GATE_DRAIN_CEILING="1")
    low = SlurmClient("prod", LocalGate(env=env))
    await drain(site, "n01", client=low)
    with pytest.raises(Refused, match="made 1 drains within the hour") as refused:
        await drain(site, "n02", client=low)
    assert refused.value.kind is RefusalKind.CEILING
    assert not shown(site, "n02")[0]
    assert (await undrain(site)).done  # bringing back is no drain


async def test_fences_hold_for_nodes_too(site: Site) -> None:
    with pytest.raises(Refused) as late:
        await site.client.drain("n01", "12", why="xid.79", until=UNTIL, leave=1, deadline=soon(-1))
    assert late.value.kind is RefusalKind.LATE
    with pytest.raises(Refused) as unknown:
        await drain(site, "n77")
    assert unknown.value.kind is RefusalKind.UNKNOWN_NODE
    (site.gate_dir / "STOP").write_text("maintenance")
    with pytest.raises(Refused) as stopped:
        await drain(site)
    assert stopped.value.kind is RefusalKind.STOPPED
    (site.gate_dir / "STOP").unlink()
    dry = await site.client.drain("n01", "12", why="xid.79", until=UNTIL, leave=1, deadline=soon(), dry_run=True)
    assert (dry.done, dry.dry_run) == (False, True)
    assert not shown(site)[0]


async def test_an_operator_may_hold_nodes_but_not_drain_them(site: Site, tmp_path: Path) -> None:
    operator = client_as(site, site.cluster.operator, tmp_path)
    with pytest.raises(Refused) as refused:
        await drain(site, client=operator)
    assert refused.value.kind is RefusalKind.DENIED
    job = site.running("-N2")
    held = await operator.hold(job, 0, nodes=("n01", "n02"), minutes=1, most=2, deadline=soon())
    assert held.held == ("n01", "n02")
    assert await operator.unhold(job, 0, deadline=soon())


async def test_a_restarted_job_gets_held_nodes_before_those_who_waited_longer(site: Site) -> None:
    job = site.running("-N3", "--exclusive")
    fourth = site.submit("sleep 600", "-N1", "--exclusive", name="fourth", user="bob")
    site.cluster.wait_state(fourth, {"RUNNING"})
    waiting = [site.submit("sleep 600", "-N1", "--exclusive", name=f"w{n}", user="bob") for n in range(3)]
    nodes = (await site.view(job)).nodes
    held = await site.client.hold(job, 0, nodes=nodes, minutes=1, most=3, deadline=soon())
    assert held.held == nodes
    again = await site.client.hold(job, 0, nodes=nodes, minutes=1, most=3, deadline=soon())
    assert (again.done, again.already) == (False, True)
    with pytest.raises(Refused, match="holds 3 nodes already, 1 more would be above 3") as refused:
        await site.client.hold(fourth, 0, nodes=["n04"], minutes=1, most=3, deadline=soon())
    assert refused.value.kind is RefusalKind.CAP
    await site.client.restart(job, 0, deadline=soon(), start_in_s=5, exclude=())
    until(lambda: site.cluster.state(job) == "RUNNING", "it runs again on the held nodes", timeout_s=60)
    assert (await site.view(job)).nodes == nodes
    assert all(site.cluster.state(other) == "PENDING" for other in waiting)
    assert (await site.view(job)).reservation == ""  # it binds nothing, so it is not told
    assert not await site.client.unhold(job, 0, deadline=soon())  # the job is in it
    # The job outlives the reservation, and is not stranded by it when it is requeued later.
    site.cluster.run("scancel", *waiting, check=True)
    until(lambda: f"relight_{job}_0" not in _reservations(site), "the reservation ends by itself", timeout_s=90)
    assert site.cluster.state(job) == "RUNNING"
    await site.client.restart(job, 1, deadline=soon(), start_in_s=5)
    until(lambda: site.restarts(job) == 2 and site.cluster.state(job) == "RUNNING", "it runs again", timeout_s=60)


async def test_only_healthy_nodes_are_held(site: Site) -> None:
    by_others(site, "n02")
    job = site.ended("exit 1", "-N2")
    held = await site.client.hold(job, 0, nodes=("n01", "n02", "n77"), minutes=1, most=4, deadline=soon())
    assert held.held == ("n01",)
    assert not await site.client.unhold(job, 5, deadline=soon() + timedelta(seconds=1))
