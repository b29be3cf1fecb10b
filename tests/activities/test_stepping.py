"""What a step leaves behind in the audit store, beside its rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import contracts as c
from activities.audit.records import PermitRequest
from activities.audit.store import AuditStore
from activities.site import PolicySource, Site
from activities.slurm.answers import Changed
from activities.slurm.errors import RefusalKind, Refused
from activities.stepping import SteppingActivities
from recovery.faults.catalogue import Catalogue
from recovery.records import Action, JobState, JobView


class Slurm:
    """Stands in for a client: one job that Slurm holds after a failed launch."""

    view = JobView(cluster="prod", job_id="7", raw_id=7, state=JobState.PENDING, looked_at=datetime.now(UTC))

    def __init__(self, refused: Refused | None) -> None:
        self.refused = refused

    async def job(self, job_id: str) -> JobView:
        return self.view

    async def release(self, job_id: str, restart_count: int, *, deadline: datetime) -> Changed:
        if self.refused is not None:
            raise self.refused
        return Changed(done=True, before=self.view)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AuditStore]:
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as made:
        made.migrate()
        yield made


@pytest.mark.parametrize(
    "refused", [Refused(RefusalKind.BAD_CONFIG, "the gate's folder is full"), None], ids=["refused", "done"]
)
async def test_a_step_that_is_over_takes_no_place_among_the_restarts(
    store: AuditStore, tmp_path: Path, refused: Refused | None
) -> None:
    slurm, now = Slurm(refused), datetime.now(UTC)
    life = store.open_life(slurm.view, workflow_id="prod-7", run_id="r", now=now)
    asked = PermitRequest(
        cluster="prod", step_key="s", job_id="7", action=Action.RELEASE, now=now, max_restarts_at_once=1
    )
    another = asked.model_copy(update={"step_key": "t", "job_id": "8"})
    assert store.permit(asked).granted
    assert not store.permit(another).granted
    clients: Any = {"prod": slurm}
    stepping = SteppingActivities(Site(store, clients, PolicySource(None), Catalogue(()), tmp_path))
    request = c.StepRequest(
        cluster="prod",
        job_id="7",
        life_id=life.life_id,
        step_key="s",
        restart_count=0,
        deadline=now + timedelta(seconds=60),
        workflow_id="prod-7",
        run_id="r",
    )
    result = await ActivityEnvironment().run(stepping.release, request)
    assert result.done is (refused is None)
    assert store.permit(another).granted
