"""A console in this process, over an audit store that the store's own functions have filled."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from activities.audit.records import Watched
from activities.audit.store import AuditStore
from activities.contracts import EventKind, NewEvent
from recovery.records import (
    Action,
    Advice,
    Attempt,
    Budget,
    Confidence,
    FaultClass,
    Finding,
    JobState,
    JobView,
    Mode,
    Suspect,
    Verdict,
)
from workers.console.app import create
from workers.console.serve import access_of
from workers.console.tokens import Role, new
from workers.settings import Settings, load_settings

HOSTILE = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>\x1b[31m\x07‮{{7*7}}"

Client = Callable[..., TestClient]


class Grounds:
    """The configuration, its tokens, and the store."""

    def __init__(self, folder: Path, tables: Path) -> None:
        self.viewer, viewer = new("watcher", Role.VIEWER)
        self.operator, operator = new("oncall", Role.OPERATOR)
        self.tokens = folder / "tokens"
        self.tokens.write_text(f"{viewer}\n{operator}  # who has the pager\n")
        self.config = folder / "relight.yaml"
        self.write()
        shutil.copy(tables, folder / "audit.db")
        self.store = AuditStore(f"sqlite:///{folder}/audit.db")
        self.now = datetime.now(UTC)

    def write(self, console: str = "", temporal: str = "127.0.0.1:1") -> None:
        folder = self.config.parent
        self.config.write_text(
            f"database: {{url: 'sqlite:///{folder}/audit.db'}}\nclusters: {{prod: {{}}, lab: {{}}}}\n"
            f"temporal: {{address: '{temporal}'}}\n"
            f"console: {{tokens_file: '{self.tokens}'{console}}}\n"
        )

    @property
    def settings(self) -> Settings:
        return load_settings(self.config)

    def ago(self, seconds: float) -> datetime:
        return self.now - timedelta(seconds=seconds)

    def job(
        self,
        job_id: str,
        *,
        user: str = "alice",
        name: str = "llama",
        cluster: str = "prod",
        partition: str = "gpu",
        state: JobState = JobState.RUNNING,
        phase: str = "watching",
        mode: str = "act",
        fault: FaultClass | None = None,
    ) -> int:
        """One quiet job; gives its life."""
        view = JobView(
            cluster=cluster, job_id=job_id, raw_id=int(job_id.split("_")[0]), user=user, name=name, state=state,
            submit_time=self.ago(4000), partition=partition, nodes=("n01", "n02"), looked_at=self.now,
        )  # fmt: skip
        life = self.store.open_life(view, workflow_id=f"{cluster}-{job_id}", run_id="r1", now=self.ago(4000))
        attempt = Attempt(number=0, state=state, start_time=self.ago(3900), nodes=("n01", "n02"), fault_class=fault,
                          end_time=self.ago(60) if fault else None)  # fmt: skip
        self.store.append(cluster, job_id, life.life_id, [], phase=phase, mode=mode, attempts=[attempt])
        return life.life_id

    def story(self, job_id: str = "12345", *, words: str = "") -> int:
        """A job that lost a GPU on n02 and came back without it. `words` stand wherever its user could write."""
        life = self.job(job_id, name=f"llama{words}")
        finding = Finding(
            id="f1", attempt=0, detector="log", signature="xid.79", fault_class=FaultClass.HARDWARE, at=self.ago(602),
            seen_at=self.ago(600), nodes=("n02",), how="the line names it", summary=f"GPU fell off the bus{words}",
            evidence=f"NVRM: Xid 79 on n02{words}\nmore", source=f"/home/alice/llama{words}.out", line=881,
        )  # fmt: skip
        verdict = Verdict(
            fault_class=FaultClass.HARDWARE, signature="xid.79", reason="Xid 79",
            suspects=(Suspect(node="n02", how=f"named in the log{words}", confidence=Confidence.HIGH),),
        )  # fmt: skip
        advice = Advice(
            action=Action.RESTART, rule="suspect", reason="a suspect inside the allocation", exclude=("n02",),
            mode=Mode.ACT, policy="default", fault_class=FaultClass.HARDWARE, facts=(f"one suspect: n02{words}",),
            budgets=(Budget(name="restarts", used=1, limit=10),),
        )  # fmt: skip

        def event(
            key: str, kind: str, ago_s: float, summary: str, body: object = None, by: str = "relight"
        ) -> NewEvent:
            data = body.model_dump(mode="json") if hasattr(body, "model_dump") else body or {}
            number = 1 if kind in {EventKind.OUTCOME, EventKind.OPERATOR} else 0
            return NewEvent(
                key=f"{life}:{key}", kind=kind, at=self.ago(ago_s), summary=summary, body=data, by=by, attempt=number
            )

        self.store.append(
            "prod",
            job_id,
            life,
            [
                event("1", EventKind.FINDING, 602, finding.summary, finding),
                event("2", EventKind.VERDICT, 599, "hardware: Xid 79", verdict),
                event("3", EventKind.ADVICE, 599, f"restart without n02{words}", advice),
                event("4", EventKind.STEP, 597, "restart: accepted", {"action": "restart", "done": True, "a": words}),
                event("5", EventKind.OUTCOME, 580, "restarted on n01, n03", {"kind": "restarted", "nodes": ["n03"]}),
                event("6", EventKind.OPERATOR, 300, f"paused: debugging{words}", by=f"oncall{words}"),
            ],
            phase="recovering",
            mode="act",
            attempts=[
                Attempt(
                    number=0, state=JobState.FAILED, submit_time=self.ago(4000), start_time=self.ago(3900),
                    end_time=self.ago(601), nodes=("n01", "n02"), first_step=1, last_step=120, last_checkpoint=100,
                    fault_class=FaultClass.HARDWARE, signature="xid.79", suspects=("n02",), restarted_by="relight",
                    exit_code=1,
                ),
                Attempt(
                    number=1, state=JobState.RUNNING, submit_time=self.ago(597), start_time=self.ago(580),
                    nodes=("n01", "n03"), excluded=("n02",), first_step=101,
                ),
            ],
        )  # fmt: skip
        self.store.suspect(life, 0, verdict, self.ago(599), self.now + timedelta(days=7))
        self.store.watch(
            Watched(cluster="prod", job_id=job_id, life_id=life, user="alice", attempt=1, first_step=101,
                    first_step_at=self.ago(570), step=150, step_at=self.ago(2), total_steps=1000)
        )  # fmt: skip
        return life


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with empty tables, to be copied: making them takes longer than a test."""
    path = tmp_path_factory.mktemp("tables") / "audit.db"
    with AuditStore(f"sqlite:///{path}") as store:
        store.migrate()
    return path


@pytest.fixture
def grounds(tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Grounds]:
    for name in ("RELIGHT_CONFIG", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Grounds(tmp_path, tables)
    yield made
    made.store.close()


@pytest.fixture
def client(grounds: Grounds) -> Iterator[Client]:
    """Makes a client: with a token, as a browser that signed in with it (`browser`), or as nobody."""
    opened: list[TestClient] = []

    def make(token: str = "", *, browser: bool = False, open_to: Role | None = None) -> TestClient:
        settings = grounds.settings
        app = create(settings, grounds.store, access_of(settings, open_to=open_to))
        one = TestClient(app, follow_redirects=False, raise_server_exceptions=False)
        one.__enter__()
        opened.append(one)
        if browser:
            done = one.post("/sign-in", data={"form": form_of(one.get("/sign-in").text), "token": token, "back": "/"})
            assert done.status_code == 303, done.text
        elif token:
            one.headers["Authorization"] = f"Bearer {token}"
        return one

    yield make
    for one in opened:
        one.__exit__(None, None, None)


def form_of(page: str) -> str:
    """The form token of a page."""
    found = re.search(r'name="form" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]
