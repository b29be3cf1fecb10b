"""`relight nodes`, `relight node show` and `relight node clear`, on a real audit store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.audit.records import DrainGrant, PermitRequest
from activities.audit.store import AuditStore
from recovery.records import Action, Attempt, Confidence, FaultClass, JobState, JobView, Suspect, Verdict
from tests.workers.conftest import Relight

NOW = datetime.now(UTC)


@pytest.fixture
def store(config: Path, tmp_path: Path) -> Iterator[AuditStore]:
    """One job that suspects n02, is kept off it, and had it drained."""
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as opened:
        opened.migrate()
        view = JobView(cluster="prod", job_id="12345", raw_id=12345, user="alice", state=JobState.FAILED, looked_at=NOW)
        life = opened.open_life(view, workflow_id="prod-12345", run_id="r").life_id
        opened.append("prod", "12345", life, [], attempts=[Attempt(number=0, nodes=("n01", "n02"))])
        suspect = Suspect(node="n02", how="GPU 3 fell off the bus", confidence=Confidence.HIGH, trusted=True)
        verdict = Verdict(fault_class=FaultClass.HARDWARE, signature="xid.79", suspects=(suspect,), reason="lost")
        opened.suspect(life, 0, verdict, NOW - timedelta(minutes=5), NOW + timedelta(days=7))
        opened.permit(
            PermitRequest(cluster="prod", step_key="s", job_id="12345", action=Action.RESTART, nodes=("n02",), now=NOW)
        )
        grant = DrainGrant(
            cluster="prod",
            node="n02",
            step_key="s",
            life_id=life,
            job_id="12345",
            signature="xid.79",
            how="GPU 3 fell off the bus",
            expiry_s=3600,
            max_share=1,
            max_per_hour=10,
            cluster_nodes=4,
            now=NOW,
        )
        drain, _ = opened.grant_drain(grant)
        assert drain is not None
        opened.drain_carried_out(drain.drain_id, NOW)
        yield opened


def test_nodes_tells_what_is_held_against_them_and_until_when(
    relight: Relight, config: Path, store: AuditStore
) -> None:
    told = relight("nodes", "--config", str(config))
    assert told.code == 0
    drained, excluded, suspected = told.out.splitlines()[1:]
    assert "prod/n02  drained" in drained
    assert f"{NOW + timedelta(hours=1):%Y-%m-%d %H:%MZ}" in drained
    assert "excluded from job 12345" in excluded
    assert "suspected (high, trusted)" in suspected
    assert "xid.79, job 12345 of alice, attempt 0: GPU 3 fell off the bus" in suspected
    (entry,) = relight("nodes", "--json", "--config", str(config)).json
    assert (entry["node"], len(entry["suspicions"]), len(entry["exclusions"]), len(entry["drains"])) == ("n02", 1, 1, 1)


def test_a_node_without_a_record_says_so(relight: Relight, config: Path, store: AuditStore) -> None:
    assert "nothing is held against prod/n01" in relight("node", "show", "n01", "--config", str(config)).out


def test_clearing_ends_suspicions_and_asks_for_the_drains_end(
    relight: Relight, config: Path, store: AuditStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.cli_nodes.RETURN_WAIT_S", 0.0)  # no worker is there
    words = ("node", "clear", "n02", "--by", "ops", "--reason", "new cable", "--config", str(config))
    told = relight(*words)
    assert told.code == 0
    assert "the one suspicion counts no more" in told.out
    assert "still excluded from jobs 12345 until their next restart" in told.out
    assert "the worker returns it to service when it can" in told.out
    assert store.suspicions("prod") == ()
    (drain,) = store.drains("prod")
    assert (drain.cleared_by, drain.clear_reason) == ("ops", "new cable")
    store.end_drain(drain.drain_id, "ops", "cleared by ops")
    shown = relight("node", "show", "n02", "--config", str(config))
    assert "(xid.79): cleared by ops" in shown.out
    assert "by ops: new cable" in shown.out


def test_a_node_that_the_cluster_does_not_have_is_refused_and_nothing_written(
    relight: Relight, config: Path, store: AuditStore
) -> None:
    where = ("--config", str(config))
    assert relight("node", "show", "n99", *where).code == 0  # no worker has told which nodes there are
    store.save_nodes("prod", ("n03", "n04", "n11"))
    for words in (("show", "n13"), ("clear", "n13", "--reason", "x")):
        told = relight("node", *words, *where)
        assert (told.code, told.out) == (1, "")
        assert "cluster prod has no node 'n13'; did you mean n03 or n11?" in told.err
    assert store.cleared("prod") == {}
    assert "drained" in relight("node", "show", "n02", *where).out  # it has left the cluster; its record stays


def test_a_wrong_node_to_exclude_is_refused_before_anybody_is_asked(
    relight: Relight, config: Path, store: AuditStore
) -> None:
    store.save_nodes("prod", ("n01", "n02", "n03"))
    told = relight("force", "1", "--action", "restart", "--exclude", "n[01,99]", "--config", str(config))
    assert told.code == 1
    assert "cluster prod has no node 'n99'; known: n01, n02, n03" in told.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("node", "clear", "n02"), "say --reason"),
        (("node", "clear", "n[01-02]", "--reason", "x"), "is not one node's name"),
        (("node", "clear", "n02", "--reason", "x", "--cluster", "lab"), "cluster 'lab' is not configured"),
        (("nodes", "--cluster", "lab"), "cluster 'lab' is not configured"),
    ],
)
def test_wrong_words_change_nothing(
    relight: Relight, config: Path, store: AuditStore, words: tuple[str, ...], message: str
) -> None:
    told = relight(*words, "--config", str(config))
    assert told.code == 2
    assert message in told.err
    assert store.cleared("prod") == {}
