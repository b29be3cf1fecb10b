"""The console beside a real worker: a person looks at a job and pauses it by the page's form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from activities.contracts import EventKind
from tests.services.console import ConsoleProcess
from tests.stage import Stage
from workers.console.tokens import Role, new

PATIENCE_S = 60


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(nodes=2, accounting=False) as made:
        made.start_worker()
        yield made


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Words for the console's environment, and the two tokens by role."""
    made = {role: new(f"a-{role.value}", role) for role in Role}
    env = {"RELIGHT_CONSOLE__TOKENS": "\n".join(line for _, line in made.values())}
    return env, {role.value: token for role, (token, _) in made.items()}


def _form(page: str, name: str = "form") -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


def test_an_operator_pauses_and_resumes_a_job_by_the_page(
    stage: Stage, tokens: tuple[dict[str, str], dict[str, str]]
) -> None:
    env, token = tokens
    job = stage.slurm.submit("alice", "#!/bin/bash\nexec sleep 600\n", comment="relight", name="looked-at")
    name = f"{stage.cluster_name}-{job}"
    stage.until(lambda: stage.events(job, EventKind.STATE, state="RUNNING"), f"relight has seen {job} run")
    with (
        ConsoleProcess(stage.config, {**os.environ, **env}) as console,
        httpx.Client(base_url=console.url, timeout=PATIENCE_S) as browser,
    ):
        form = _form(browser.get("/sign-in").text)
        done = browser.post("/sign-in", data={"form": form, "token": token["operator"], "back": f"/jobs/{name}"})
        assert (done.status_code, done.headers["location"]) == (303, f"/jobs/{name}")
        assert "looked-at" in browser.get(f"/jobs/{name}").text

        page = browser.get(f"/jobs/{name}/do/pause").text
        fields = {"form": _form(page), "once": _form(page, "once"), "reason": "looking at it"}
        for _ in range(2):  # a form that is sent twice is carried out once
            said = browser.post(f"/jobs/{name}/do/pause", data=fields)
            assert (said.status_code, "paused" in said.text) == (200, True), said.text
        assert stage.state(job)["paused"] is True
        stage.until(lambda: stage.events(job, EventKind.OPERATOR), "the pause stands in the record")
        page = browser.get(f"/jobs/{name}").text
        assert "paused by a-operator" in page

        viewer = {"Authorization": f"Bearer {token['viewer']}"}
        refused = httpx.post(f"{console.url}/api/v1/jobs/{name}/resume", json={"reason": "x"}, headers=viewer)
        assert refused.status_code == 403
        assert stage.state(job)["paused"] is True

        page = browser.get(f"/jobs/{name}/do/resume").text
        fields = {"form": _form(page), "once": _form(page, "once"), "reason": "done"}
        assert "resumed" in browser.post(f"/jobs/{name}/do/resume", data=fields).text
        assert stage.state(job)["paused"] is False
        stage.until(lambda: len(stage.events(job, EventKind.OPERATOR)) >= 2, "the resumption stands in the record")
        said_by = [(event.summary, event.by) for event in stage.events(job, EventKind.OPERATOR)]
        assert said_by == [("paused: looking at it", "a-operator"), ("resumed: done", "a-operator")]

        refused = browser.post("/jobs/prod-99/do/pause", data={**fields, "once": "other"})
        assert refused.status_code == 404
        age = re.search(
            r"^relight_sweep_age_seconds\S* (\S+)$", httpx.get(f"{console.url}/metrics", headers=viewer).text, re.M
        )
        assert age is not None, "the worker has left a sign of its sweeps"
    stage.slurm.run("scancel", str(job))
