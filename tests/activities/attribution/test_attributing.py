"""When somebody outside is asked, what the activity hands on and writes down, and what late suspects are worth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities import contracts as c
from activities.attributing import AttributingActivities
from activities.attribution.asking import Access
from activities.attribution.chat import ChatModel
from activities.attribution.provider import Attributors, Terms
from activities.attribution.service import AttributionService
from activities.attribution.wanted import wanted
from activities.audit.store import AuditStore
from activities.site import PolicySource, Site
from recovery.attribution import About, AskedPhase, evidence_lines
from recovery.faults.catalogue import Catalogue
from recovery.hang import Hang, Stage
from recovery.records import Attempt, FaultClass, JobState, Role
from tests.recovery.situations import T0, attempt, finding, row, suspect, verdict, view
from tests.services.attribution_double import AttributionDouble, error

LINE = finding(
    signature="scheduler.failed", fault_class=FaultClass.UNKNOWN, role=Role.SYMPTOM, evidence="rank 5: vendor error"
)
CLEAR = finding(nodes=("n02",), confidence=None)


@pytest.fixture
def double() -> Iterator[AttributionDouble]:
    with AttributionDouble() as running:
        yield running


def asking(url: str = "http://127.0.0.1:9", **more: Any) -> Attributors:
    service = AttributionService(
        Terms(name="http"), Access(key="attribution.http", url=url), send_evidence=more.pop("send_evidence", False)
    )
    return Attributors(**{"providers": (service,), "fast_s": 2.0, "slow_s": 60.0, **more})


def seen(job: Any = None, *findings: Any, **more: Any) -> c.Examination:
    return c.Examination(view=job or view(), findings=findings or (LINE,), **more)


def test_where_the_rules_cannot_tell_an_answer_is_waited_for() -> None:
    asked = wanted(asking(), seen(), paused=False)
    assert asked is not None
    assert (asked.wait_s, asked.slow_s, asked.counts) == (2.0, 60.0, True)
    assert (asked.about, asked.signal, asked.key) == (About.ENDED, "failed", "0:ended")


def test_where_they_can_it_is_asked_beside() -> None:
    asked = wanted(asking(), seen(None, CLEAR), paused=False)
    assert asked is not None
    assert (asked.wait_s, asked.slow_s, asked.counts) == (0.0, 60.0, False)
    assert wanted(asking(slow_s=0.0), seen(None, CLEAR), paused=False) is None


def test_nobody_is_asked_about_what_is_no_fault_or_none_of_their_business() -> None:
    started = T0
    for one in (
        seen(view(JobState.RUNNING)),
        seen(view(JobState.COMPLETED)),
        seen(view(JobState.CANCELLED)),
        seen(view(JobState.TIMEOUT)),
        seen(view(JobState.PENDING)),
        seen(view(), rows=(row(JobState.CANCELLED, submit_time=started),)),
        seen(view(), opted_out=True),
        seen(view(), attempts=(attempt(0, own_fault=True),)),
        c.Examination(view=None),
    ):
        assert wanted(asking(), one, paused=False) is None
    assert wanted(asking(), seen(), paused=True) is None
    assert wanted(None, seen(), paused=False) is None
    assert wanted(asking(providers=()), seen(), paused=False) is None


def test_while_completing_accounting_tells_the_ending() -> None:
    completing = view(JobState.COMPLETING, completing=True)
    assert wanted(asking(), seen(completing), paused=False) is None
    asked = wanted(asking(), seen(completing, rows=(row(JobState.FAILED),)), paused=False)
    assert asked is not None
    assert asked.signal == "failed"


def test_a_hang_is_asked_about_for_the_record_only() -> None:
    hang = Hang(attempt=0, stage=Stage.CONFIRMED, step=70, since=T0, limit_s=300)
    asked = wanted(asking(), seen(view(JobState.RUNNING), hang=hang), paused=False)
    assert asked is not None
    assert (asked.about, asked.wait_s, asked.counts) == (About.HANG, 0.0, False)
    suspected = hang.model_copy(update={"stage": Stage.SUSPECTED})
    assert wanted(asking(), seen(view(JobState.RUNNING), hang=suspected), paused=False) is None


# ------------------------------------------------------------------------------------------------ the activity


class Desk:
    """The activity with a real audit store and one life in it."""

    def __init__(self, folder: Path) -> None:
        self.store = AuditStore(f"sqlite:///{folder}/audit.db")
        self.store.migrate()
        self.job = view(uid=os.getuid(), stdout=str(folder / "job.out"), stderr=str(folder / "job.out"))
        life = self.store.open_life(self.job, workflow_id="prod-12345", run_id="r", now=T0)
        self.life_id = life.life_id
        self.folder = folder

    def activities(self, attributors: Attributors | None) -> AttributingActivities:
        site = Site(
            store=self.store,
            clients={},
            policies=PolicySource(None),
            catalogue=Catalogue.built_in(),
            evidence_dir=self.folder,
            attributors=attributors,
        )
        return AttributingActivities(site)

    def request(self, phase: AskedPhase = AskedPhase.FAST, **more: Any) -> c.AttributeJob:
        usual: dict[str, Any] = {
            "cluster": "prod",
            "job_id": "12345",
            "life_id": self.life_id,
            "phase": phase,
            "wanted": c.AttributionWanted(signal="failed", subject=self.job, wait_s=2, slow_s=60, counts=True),
            "lines": evidence_lines([LINE]),
            "deadline_s": 10.0,
        }
        return c.AttributeJob(**{**usual, **more})

    def print(self, text: str) -> None:
        Path(self.job.stdout).write_text(text)

    def rows(self) -> list[Any]:
        return [one for one in self.store.events("prod", "12345") if one.kind == c.EventKind.ATTRIBUTION]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.store.close()


async def test_what_is_said_is_on_record_once(desk: Desk, double: AttributionDouble) -> None:
    double.say = lambda call: call.send({"category": "hardware", "suspects": [{"host": "n02"}, {"host": "n99"}]})
    run = desk.activities(asking(double.url))
    answers = await run.attribute(desk.request())
    await run.attribute(desk.request())
    (told,) = answers.attributions
    assert [one.node for one in told.suspects] == ["n02"]
    (event,) = desk.rows()
    assert event.by == "http"
    assert event.attempt == 0
    assert event.body["dropped"] == ["host 'n99': not part of the job's allocation"]
    assert "1 claims dropped" in event.summary


async def test_no_answer_is_on_record_too(desk: Desk, double: AttributionDouble) -> None:
    double.say = error
    await desk.activities(asking(double.url)).attribute(desk.request())
    (event,) = desk.rows()
    assert event.body["status"] == "failed"
    assert "HTTP 500" in event.summary


async def test_every_provider_is_asked_and_one_cannot_spoil_another(desk: Desk, double: AttributionDouble) -> None:
    desk.print("begins\n" * 500 + "token=hush-hush\nSegmentation fault on n03\n")

    def say(call: Any) -> None:
        if "messages" in call.body:
            assert "Segmentation fault" in str(call.body)
            call.chat({"category": "hardware", "suspects": [{"host": "n03", "lines": ["L3"]}]})
        else:
            call.send(b"nonsense")

    double.say = say
    model = ChatModel(
        Terms(name="chat", log_lines=2),
        Access(key="attribution.chat", url=f"{double.url}/v1"),
        model="m",
        structured="none",
    )
    both = asking(double.url)
    both = Attributors((*both.providers, model), fast_s=2, slow_s=60)
    answers = await desk.activities(both).attribute(desk.request())
    assert [one.status.value for one in answers.attributions] == ["nonsense", "answered"]
    assert [one.node for one in answers.attributions[1].suspects] == ["n03"], answers.attributions[1].dropped
    assert "hush" not in str(double.asked)
    assert "begins" not in str(double.asked)
    assert len(desk.rows()) == 2


async def test_a_late_answers_suspects_are_weak_ones_of_that_attempt(desk: Desk, double: AttributionDouble) -> None:
    double.say = lambda call: call.send({"category": "hardware", "suspects": [{"host": "n03"}]})
    desk.store.append("prod", "12345", desk.life_id, [], attempts=[Attempt(number=0, suspects=("n01",))])
    unknown = verdict(FaultClass.UNKNOWN, signature="scheduler.failed")
    await desk.activities(asking(double.url)).attribute(desk.request(AskedPhase.SLOW, verdict=unknown))
    assert desk.store.attempts(desk.life_id)[0].suspects == ("n01", "n03")


@pytest.mark.parametrize("counts", [True, False])
async def test_a_late_answer_adds_nothing_to_what_is_known(desk: Desk, double: AttributionDouble, counts: bool) -> None:
    double.say = lambda call: call.send({"category": "hardware", "suspects": [{"host": "n03"}]})
    sure = verdict(FaultClass.HARDWARE, suspect("n01")) if counts else verdict(FaultClass.UNKNOWN)
    asked = c.AttributionWanted(signal="failed", subject=desk.job, slow_s=60, counts=counts)
    request = desk.request(AskedPhase.SLOW, verdict=sure, wanted=asked)
    await desk.activities(asking(double.url)).attribute(request)
    assert len(desk.rows()) == 1
    assert all(one.suspects == () for one in desk.store.attempts(desk.life_id))


async def test_a_configuration_taken_away_meanwhile_asks_nobody(desk: Desk) -> None:
    assert (await desk.activities(None).attribute(desk.request())).attributions == ()
