"""Draining within the caps; drained nodes come back by time, by a person, by a check, and never those of others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import contracts as c
from activities import draining
from activities.audit.store import AuditStore
from activities.draining import DrainingActivities, NodeCare, run_check
from activities.site import NodeCheck, PolicySource, Site
from activities.slurm.answers import NodeChanged
from activities.slurm.errors import RefusalKind, Refused
from recovery.faults.catalogue import Catalogue
from recovery.records import Attempt, JobState, JobView, NodeView

NODES = tuple(NodeView(name=f"n{number:02d}", state="IDLE") for number in range(1, 41))
POLICY = """
clusters: {prod: {mode: act}}
policies: {default: {drain: true, max_drained_share: 0.05, max_drains_per_hour: 10, drain_expiry_s: 3600}}
"""


class Slurm:
    """Stands in for a client: which nodes are drained, and by whom."""

    def __init__(self) -> None:
        self.drained: dict[str, str] = {}
        self.refuses: RefusalKind | None = None

    async def nodes(self) -> tuple[NodeView, ...]:
        return NODES

    async def drain(self, node: str, job_id: str, **words: Any) -> NodeChanged:
        if self.refuses is not None:
            raise Refused(self.refuses, "no")
        already = node in self.drained
        self.drained[node] = f"{words['why']} {words['until']}"
        return NodeChanged(done=not already, already=already, before=NODES[0], acted_at=datetime.now(UTC))

    async def undrain(self, node: str, job_id: str, **words: Any) -> NodeChanged:
        if self.refuses is not None:
            raise Refused(self.refuses, "no")
        if node not in self.drained:
            raise Refused(RefusalKind.NOT_DRAINED, "not drained")
        if self.drained[node] != f"{words['why']} {words['until']}":
            raise Refused(RefusalKind.NODE_TAKEN, "drained by others now")
        del self.drained[node]
        return NodeChanged(done=True, before=NODES[0])


class Lab:
    def __init__(self, store: AuditStore, folder: Path) -> None:
        self.slurm = Slurm()
        self.store = store
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        clients: Any = {"prod": self.slurm}
        self.site = Site(store, clients, PolicySource(policy), Catalogue(()), folder)
        view = JobView(
            cluster="prod", job_id="7", raw_id=7, user="alice", state=JobState.FAILED, looked_at=datetime.now(UTC)
        )
        self.life_id = store.open_life(view, workflow_id="prod-7", run_id="r").life_id
        store.append("prod", "7", self.life_id, [], attempts=[Attempt(number=0, nodes=("n01", "n02", "n03"))])
        self.care = NodeCare(self.site)

    async def drain(self, *nodes: str, step: str = "s") -> c.DrainResult:
        request = c.DrainRequest(
            cluster="prod",
            job_id="7",
            life_id=self.life_id,
            step_key=step,
            nodes=nodes,
            signature="xid.79",
            how="GPU lost",
            policy="default",
            deadline=datetime.now(UTC) + timedelta(seconds=60),
        )
        result: c.DrainResult = await ActivityEnvironment().run(DrainingActivities(self.site).drain, request)
        return result

    async def tend(self) -> None:
        await self.care._tend("prod")

    def told(self) -> list[str]:
        return [event.summary for event in self.store.events("prod", "7")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as store:
        store.migrate()
        yield Lab(store, tmp_path)


async def test_nodes_are_drained_within_the_caps_and_each_is_told(lab: Lab) -> None:
    result = await lab.drain("n01", "n02", "n03")
    assert (result.drained, set(result.refused)) == (("n01", "n02"), {"n03"})
    assert "max_drained_share" in result.refused["n03"]
    assert set(lab.slurm.drained) == {"n01", "n02"}
    assert [text.split(" until")[0] for text in lab.told()[:2]] == ["n01 drained", "n02 drained"]
    again = await lab.drain("n01", "n02", "n03")
    assert again == result
    assert len(lab.told()) == 3


async def test_a_refused_drain_takes_no_place(lab: Lab) -> None:
    lab.slurm.refuses = RefusalKind.DENIED
    assert (await lab.drain("n01", "n02")).drained == ()
    assert lab.store.drains("prod") == []
    repeated = await lab.drain("n01")
    assert "not drained: denied" in repeated.refused["n01"]
    lab.slurm.refuses = None
    assert (await lab.drain("n01", "n02", step="later")).drained == ("n01", "n02")


async def test_a_node_comes_back_when_its_time_is_over(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.drain("n01")
    await lab.tend()
    assert set(lab.slurm.drained) == {"n01"}
    later = datetime.now(UTC) + timedelta(seconds=3601)
    monkeypatch.setattr(draining, "_now", lambda: later)
    await lab.tend()
    await lab.tend()
    assert lab.slurm.drained == {}
    assert lab.told()[-1] == "n01 is back in service: its time is over"
    assert lab.store.drains("prod") == []


async def test_in_monitor_mode_only_a_person_brings_a_node_back(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.drain("n01", "n02")
    (tmp_path / "policy.yaml").write_text("clusters: {prod: {mode: monitor}}\n")
    lab.store.clear_node("prod", "n02", "ops", "new cable")
    later = datetime.now(UTC) + timedelta(seconds=3601)
    monkeypatch.setattr(draining, "_now", lambda: later)
    await lab.tend()
    assert set(lab.slurm.drained) == {"n01"}


async def test_a_node_comes_back_when_a_person_clears_it_as_soon_as_slurm_lets_it(lab: Lab) -> None:
    await lab.drain("n01", "n02")
    lab.store.clear_node("prod", "n01", "ops", "new cable")
    lab.slurm.refuses = RefusalKind.STOPPED
    for _ in range(3):
        await lab.tend()
    assert [text for text in lab.told() if "not returned to service yet" in text] == [
        "n01 is not returned to service yet: stopped: no"
    ]
    lab.slurm.refuses = None
    await lab.tend()
    assert set(lab.slurm.drained) == {"n02"}
    assert lab.told()[-1] == "n01 is back in service: cleared by ops (new cable)"


async def test_nodes_that_others_took_over_are_forgotten_and_not_touched(lab: Lab) -> None:
    await lab.drain("n01", "n02")
    lab.slurm.drained["n01"] = "sent to repair"
    del lab.slurm.drained["n02"]
    for node in ("n01", "n02"):
        lab.store.clear_node("prod", node, "ops", "seen to")
    await lab.tend()
    assert lab.slurm.drained == {"n01": "sent to repair"}
    assert lab.store.drains("prod") == []
    assert sorted(lab.told()[-2:]) == [
        "n01 is no longer drained by relight: somebody else has taken it over: theirs to return",
        "n02 is no longer drained by relight: somebody else has returned it to service",
    ]


async def test_a_node_comes_back_when_it_passes_the_sites_check(lab: Lab, tmp_path: Path) -> None:
    well = tmp_path / "well"
    script = f"import pathlib, sys; sys.exit(sys.argv[1] not in pathlib.Path({str(well)!r}).read_text())"
    check = NodeCheck(command=(sys.executable, "-c", script), timeout_s=30, every_s=0)
    lab.site.node_checks = {"prod": check}
    await lab.drain("n01", "n02")
    well.write_text("n02")
    await lab.tend()
    assert set(lab.slurm.drained) == {"n01"}
    assert lab.told()[-1] == "n02 is back in service: it passes the site's node check"
    assert lab.store.cleared("prod")["n02"].by == "node check"


async def test_a_check_that_cannot_run_or_does_not_end_is_not_passed() -> None:
    passed, said = await run_check(NodeCheck(command=("/nonexistent/check",), timeout_s=5, every_s=1), "n01")
    assert (passed, said) == (False, "/nonexistent/check cannot be run: No such file or directory")
    endless = NodeCheck(command=(sys.executable, "-c", "import time; time.sleep(600)"), timeout_s=0.2, every_s=1)
    assert await run_check(endless, "n01") == (False, "no answer within 0.2 s")
