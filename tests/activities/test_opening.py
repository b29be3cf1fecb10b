"""What is on record of a job from the moment that it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import contracts as c
from activities.audit.store import AuditStore
from activities.looking import LookingActivities
from activities.site import PolicySource, Site
from recovery.attempts import with_all_nodes
from recovery.faults.catalogue import Catalogue
from recovery.records import AttemptRow, ClusterFacts, JobState, JobView, NodeView

NODES = ("n01", "n02")


class Slurm:
    """Stands in for a client: one job, no accounting."""

    def __init__(self, **job: Any) -> None:
        usual: dict[str, Any] = {"state": JobState.RUNNING, "nodes": NODES, "restarts": 1}
        self.view = JobView(cluster="prod", job_id="7", raw_id=7, looked_at=datetime.now(UTC), **(usual | job))

    async def job(self, job_id: str) -> JobView:
        return self.view

    async def attempts(self, job_id: str) -> tuple[AttemptRow, ...]:
        return ()

    async def nodes(self) -> tuple[NodeView, ...]:
        return tuple(NodeView(name=name, state="IDLE") for name in NODES)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AuditStore]:
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as made:
        made.migrate()
        yield made


async def test_a_workflow_that_names_an_unknown_policy_is_refused_with_those_there_are(
    store: AuditStore, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text("policies: {pretraining: {}, tuning: {}}\n")
    clients: Any = {"prod": Slurm()}
    site = Site(store, clients, PolicySource(tmp_path / "policy.yaml"), Catalogue(()), tmp_path)
    names = {"cluster": "prod", "job_id": "7", "workflow_id": "prod-7", "run_id": "r", "by_hand": True}
    request = c.OpenJob(**names, overrides=c.JobOverrides(policy="pretrainig"))
    opening = await ActivityEnvironment().run(LookingActivities(site).open_job, request)
    assert opening.refused == "policy 'pretrainig' is not in the policy file; did you mean pretraining?"
    assert store.latest_life("prod", "7") is None


async def test_the_names_of_the_nodes_are_kept_for_those_who_ask_about_one(store: AuditStore, tmp_path: Path) -> None:
    clients: Any = {"prod": Slurm()}
    site = Site(store, clients, PolicySource(None), Catalogue(()), tmp_path)
    store.save_facts("prod", ClusterFacts(min_job_age_s=77))
    await site.nodes("prod")
    facts = store.facts("prod")
    assert facts is not None
    assert (facts.min_job_age_s, facts.nodes) == (77, NODES)


async def opened(store: AuditStore, tmp_path: Path, slurm: Slurm) -> int:
    clients: Any = {"prod": slurm}
    site = Site(store, clients, PolicySource(None), Catalogue(()), tmp_path)
    request = c.OpenJob(cluster="prod", job_id="7", workflow_id="prod-7", run_id="r")
    opening = await ActivityEnvironment().run(LookingActivities(site).open_job, request)
    assert opening.life_id is not None
    return opening.life_id


async def test_nodes_of_a_job_that_ends_right_after_it_was_opened_are_known(store: AuditStore, tmp_path: Path) -> None:
    slurm = Slurm()
    life_id = await opened(store, tmp_path, slurm)
    (attempt,) = store.attempts(life_id)
    assert (attempt.number, attempt.nodes, attempt.state) == (1, NODES, JobState.RUNNING)
    ending = slurm.view.model_copy(update={"state": JobState.FAILED, "completing": True, "nodes": ("n01",)})
    assert with_all_nodes(ending, store.attempts(life_id), None).nodes == NODES


@pytest.mark.parametrize("job", [{"completing": True, "nodes": ("n01",)}, {"state": JobState.PENDING, "nodes": ()}])
async def test_what_is_no_whole_allocation_is_not_taken_for_one(
    store: AuditStore, tmp_path: Path, job: dict[str, Any]
) -> None:
    assert store.attempts(await opened(store, tmp_path, Slurm(**job))) == ()
