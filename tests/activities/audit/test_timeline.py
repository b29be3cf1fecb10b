"""The log of a job: written once, never changed, whatever stands in it."""

from datetime import timedelta, timezone

import pytest
from sqlalchemy import event as hooks

from activities.audit.records import Watched
from activities.audit.store import AuditStore, KeyTaken, UnknownLife
from activities.contracts import EventKind
from recovery.records import Attempt, ClusterFacts, FaultClass, JobState
from tests.activities.audit.samples import NOON, all_at_once, at, event, opened, request


@pytest.fixture
def life(store: AuditStore, cluster: str) -> int:
    return opened(store, cluster).life_id


def test_an_event_comes_back_as_it_was_written(store: AuditStore, cluster: str, life: int) -> None:
    tokyo = at(5).astimezone(timezone(timedelta(hours=9)))
    body = {"nodes": ["n07"], "deep": {"n": 1.5, "none": None, "yes": True}, "text": "naïve 漢字 😀"}
    written = event(f"{life}/0/x", EventKind.STEP, "requeue", at=tokyo, attempt=3, by="oncall", body=body)
    assert store.append(cluster, "12345", life, [written], workflow_id="w-1", run_id="r-1") == 1
    (read,) = store.events(cluster, "12345")
    assert (read.cluster, read.job_id, read.life_id, read.key) == (cluster, "12345", life, f"{life}/0/x")
    assert (read.kind, read.summary, read.attempt, read.by) == ("step", "requeue", 3, "oncall")
    assert (read.workflow_id, read.run_id, read.body, read.at) == ("w-1", "r-1", body, at(5))
    assert store.event(f"{life}/0/x") == read
    assert store.has(f"{life}/0/x")
    assert not store.has(f"{life}/0/X")


def test_an_event_written_twice_is_one_row_with_its_first_words(store: AuditStore, cluster: str, life: int) -> None:
    first, second = event(f"{life}/a", summary="first words"), event(f"{life}/b")
    assert store.append(cluster, "12345", life, [first, first]) == 1
    assert store.append(cluster, "12345", life, [event(f"{life}/a", summary="other words"), second]) == 1
    assert [row.summary for row in store.events(cluster, "12345")] == ["first words", second.summary]


def test_many_who_write_the_same_events_write_them_once(store: AuditStore, cluster: str, life: int) -> None:
    batch = [event(f"{life}/{number}") for number in range(5)]
    written = all_at_once([lambda: store.append(cluster, "12345", life, batch)] * 20)
    assert sum(written) == 5
    assert len(store.events(cluster, "12345")) == 5


def test_events_of_the_cluster_itself_belong_to_no_life(store: AuditStore, cluster: str) -> None:
    blind = event(f"{cluster}/blind", EventKind.WATCHDOG)
    written = all_at_once([lambda: store.append(cluster, "", None, [blind])] * 8)
    assert sum(written) == 1
    (read,) = store.events(cluster, "")
    assert read.life_id is None


def test_a_key_of_another_life_is_refused_and_nothing_is_written(store: AuditStore, cluster: str, life: int) -> None:
    other = opened(store, cluster, "777").life_id
    store.append(cluster, "12345", life, [event(f"{life}/a")])
    with pytest.raises(KeyTaken, match=f"{life}/a"):
        store.append(cluster, "777", other, [event(f"{other}/new"), event(f"{life}/a")], phase="recovering")
    assert store.events(cluster, "777") == []
    assert store.life(other).phase == ""


def test_a_life_of_another_job_is_refused(store: AuditStore, cluster: str, life: int) -> None:
    with pytest.raises(UnknownLife, match="12345"):
        store.append(cluster, "777", life, [event(f"{life}/a")])


def test_keys_are_told_apart_to_the_letter(store: AuditStore, cluster: str, life: int) -> None:
    keys = [f"{life}/key", f"{life}/KEY", f"{life}/key ", f"{life}/kéy", f"{life}/key\udc80",
            f"{life}/" + "x" * 400 + "1", f"{life}/" + "x" * 400 + "2"]  # fmt: skip
    assert store.append(cluster, "12345", life, [event(key) for key in keys]) == len(keys)
    assert store.append(cluster, "12345", life, [event(key) for key in keys]) == 0
    assert all(store.has(key) for key in keys)


@pytest.mark.parametrize(
    "hostile",
    [
        "NUL \0 inside",
        b"not utf-8: \xff\xfe\xe9".decode("utf-8", "surrogateescape"),
        "\ud800\udfff\ud83d",
        "\x1b]0;owned\x07\x1b[2J",
        "'); DROP TABLE events; --",
        "%s %(key)s :bind {json} \\",
        "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 😀👩‍👩‍👧",
        "line\nfeed\r\nand \u2028 separators",
        "x" * 100_000,
        "😀" * 100_000,
    ],
)
def test_whatever_a_job_prints_can_be_recorded(store: AuditStore, cluster: str, hostile: str) -> None:
    life = opened(store, cluster, job_id=hostile[:70]).life_id
    job_id = store.life(life).job_id
    written = event(f"{life}/{hostile}", summary=hostile, by=hostile, body={hostile[:50]: [hostile], "n": 10**400})
    count = store.append(
        cluster,
        hostile[:70],
        life,
        [written],
        workflow_id=hostile,
        phase=hostile,
        paused_by=hostile,
        attempts=[Attempt(number=0, signature=hostile, last_step=10**30)],
    )
    assert count == 1
    (read,) = store.events(cluster, hostile[:70])
    assert "\0" not in read.summary
    assert len(read.summary) <= 2000
    assert read.job_id == job_id
    (attempt,) = store.attempts(life)
    assert attempt.last_step == 10**30
    (job,) = store.jobs(cluster)
    assert job.step == 2**63 - 1


def test_a_body_beyond_all_measure_is_shortened(store: AuditStore, cluster: str, life: int) -> None:
    huge = {"evidence": "x" * 2_000_000, "node": "n07"}
    assert store.append(cluster, "12345", life, [event(f"{life}/{n}", body=huge) for n in range(3)]) == 3
    assert {row.body["node"] for row in store.events(cluster, "12345")} == {"n07"}


def test_the_log_is_read_on_from_an_id_and_life_by_life(store: AuditStore, cluster: str, life: int) -> None:
    for number in range(7):
        store.append(cluster, "12345", life, [event(f"{life}/{number}")])
    page = store.events(cluster, "12345", limit=4)
    rest = store.events(cluster, "12345", after_id=page[-1].id)
    assert [row.key for row in page + rest] == [f"{life}/{number}" for number in range(7)]
    assert store.events(cluster, "12345", life_id=life) == page + rest
    assert store.events(cluster, "12345", life_id=life + 1_000_000) == []
    assert store.events("another cluster", "12345") == []


def test_what_is_appended_changes_the_life_and_what_is_not_stays(store: AuditStore, cluster: str, life: int) -> None:
    store.append(cluster, "12345", life, [], phase="paused", mode="act", paused=True, paused_by="oncall", stopped=True)
    store.append(cluster, "12345", life, [], phase="watching")
    now = store.life(life)
    assert (now.phase, now.mode, now.paused, now.paused_by, now.stopped) == ("watching", "act", True, "oncall", True)
    store.append(cluster, "12345", life, [], paused=False, paused_by="", stopped=False)
    now = store.life(life)
    assert (now.paused, now.paused_by, now.stopped) == (False, "", False)


def test_attempts_are_replaced_by_number_and_read_oldest_first(store: AuditStore, cluster: str, life: int) -> None:
    many = tuple(f"node{number:05}" for number in range(10_000))
    second = Attempt(number=1, state=JobState.RUNNING, start_time=NOON, nodes=many, excluded=many, suspects=many)
    ended = Attempt(number=0, state=JobState.FAILED, fault_class=FaultClass.HARDWARE, last_step=9, suspects=("n07",))
    store.append(cluster, "12345", life, [], attempts=[second, Attempt(number=0, state=JobState.RUNNING)])
    store.append(cluster, "12345", life, [], attempts=[ended])
    assert store.attempts(life) == (ended, second)
    assert (store.life(life).restarts, store.life(life).state) == (1, "RUNNING")


def test_nothing_ever_changes_or_removes_an_event(store: AuditStore, cluster: str) -> None:
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        statements.append(statement.lower().replace("`", "").replace('"', ""))

    hooks.listen(store._database.engine, "before_cursor_execute", note)
    try:
        store.migrate()
        life = opened(store, cluster).life_id
        step = request(cluster, "1", nodes=("n07",))
        for _ in range(2):
            store.append(cluster, "12345", life, [event(f"{life}/a")], phase="x", attempts=[Attempt(number=0)])
            store.watch(Watched(cluster=cluster, job_id="12345", life_id=life))
            store.save_cursors(cluster, store.watched(cluster))
            store.permit(step)
            store.release_permit(step.step_key)
            store.save_facts(cluster, ClusterFacts(min_job_age_s=20))
        store.unwatch(cluster, "12345")
        store.close_life(life, "done")
        store.jobs(cluster)
    finally:
        hooks.remove(store._database.engine, "before_cursor_execute", note)
    touching = [statement for statement in statements if " events" in statement and "select" not in statement]
    assert touching
    assert all(statement.startswith("insert into events (") for statement in touching)
    assert all("on duplicate" not in statement and "on conflict" not in statement for statement in touching)


def test_facts_of_a_cluster_are_kept(store: AuditStore, cluster: str) -> None:
    assert store.facts(cluster) is None
    store.save_facts(cluster, ClusterFacts(min_job_age_s=20, requeue_exit=(7, 9)))
    store.save_nodes(cluster, ("n01", "n02"))
    store.save_facts(cluster, ClusterFacts(min_job_age_s=30, requeue_exit=(7, 9)))
    assert store.facts(cluster) == ClusterFacts(min_job_age_s=30, requeue_exit=(7, 9), nodes=("n01", "n02"))
