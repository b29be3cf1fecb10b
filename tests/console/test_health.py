"""What the console tells machines that watch over it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from activities.contracts import EventKind, NewEvent
from recovery.records import OutcomeKind
from tests.console.conftest import Client, Grounds
from workers.console.metrics import Counted, exposition
from workers.console.reading import Source

ROOT = Path(__file__).parents[2]
RULES = ROOT / "compose" / "prometheus" / "relight-alerts.yaml"
RULES_TEST = ROOT / "compose" / "prometheus" / "relight-alerts-test.yaml"


def _samples(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(relight_\S+(?:\{[^}]*\})?) (\S+)$", text, re.M)}


def test_health_needs_no_sign_in_and_metrics_do(grounds: Grounds, client: Client) -> None:
    nobody = client()
    assert nobody.get("/healthz").text == "ok\n"
    assert nobody.get("/readyz").text == "ready\n"
    assert nobody.get("/metrics").status_code == 401
    assert client(grounds.viewer).get("/metrics").status_code == 200


def test_metrics_tell_what_the_store_knows(grounds: Grounds) -> None:
    life = grounds.story()
    grounds.job("7", cluster="lab", phase="waiting_approval")
    grounds.store.sweep_went_well("prod", grounds.ago(100))
    counted = Counted()
    events = grounds.store.events("prod", "12345", life_id=life)
    counted.count(events)
    told = _samples(exposition(Source(grounds.store, grounds.settings), counted).decode())
    assert told['relight_jobs{cluster="prod",phase="recovering"}'] == 1
    assert told['relight_jobs{cluster="lab",phase="waiting_approval"}'] == 1
    assert 100 <= told['relight_sweep_age_seconds{cluster="prod"}'] < 1000
    assert told['relight_blind_seconds{cluster="prod",source="scheduler"}'] >= 100
    assert told['relight_findings_total{certainty="confirmed",cluster="prod",fault_class="hardware"}'] == 1
    assert told['relight_advice_total{action="restart",cluster="prod",mode="act"}'] == 1
    assert told['relight_steps_total{action="restart",cluster="prod",result="done"}'] == 1
    assert told['relight_outcomes_total{cluster="prod",kind="restarted"}'] == 1
    assert told['relight_operator_words_total{cluster="prod"}'] == 1
    assert told['relight_detection_seconds_count{cluster="prod"}'] == 1


def test_no_text_of_a_job_becomes_a_label(grounds: Grounds) -> None:
    life = grounds.job("1")
    body: dict[str, object] = {"fault_class": 'x"} 1\nforged 2', "certainty": "<b>", "kind": "odd", "action": "odd"}
    kinds = (EventKind.FINDING, EventKind.ADVICE, EventKind.OUTCOME)
    made = [NewEvent(key=f"{life}:{kind}", kind=kind, at=grounds.now, summary="x", body=body) for kind in kinds]
    grounds.store.append("prod", "1", life, made)
    counted = Counted()
    counted.count(grounds.store.events("prod", "1"))
    text = exposition(Source(grounds.store, grounds.settings), counted).decode()
    assert "forged" not in text
    assert 'relight_findings_total{certainty="other",cluster="prod",fault_class="other"} 1.0' in text
    assert "odd" not in text
    assert OutcomeKind.RESTARTED.value not in text


def test_alert_rules_hold_and_name_metrics_that_exist(grounds: Grounds) -> None:
    grounds.story()
    grounds.store.sweep_went_well("prod")
    text = exposition(Source(grounds.store, grounds.settings), Counted()).decode()
    exported = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
    named = set(re.findall(r"\brelight_[a-z_]+[a-z]", " ".join(re.findall(r"expr: (.*)", RULES.read_text()))))
    assert named
    assert {name.removesuffix("_bucket").removesuffix("_count") for name in named} <= exported
    promtool = shutil.which("promtool")
    assert promtool is not None, "Debian's package prometheus brings promtool: run ./dev setup"
    for words in (("check", "rules", str(RULES)), ("test", "rules", str(RULES_TEST))):
        told = subprocess.run([promtool, *words], capture_output=True, text=True, check=False, timeout=120)
        assert told.returncode == 0, told.stdout + told.stderr
