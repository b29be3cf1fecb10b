"""Lists, counts and what is new, across jobs, on each kind of database."""

from datetime import timedelta

from activities.audit.records import JobFilter, Watched
from activities.audit.store import AuditStore
from activities.contracts import EventKind, NewEvent
from recovery.records import Attempt, Confidence, FaultClass, JobState, Suspect, Verdict
from tests.activities.audit.samples import NOON as T0
from tests.activities.audit.samples import view


def _open(store: AuditStore, cluster: str, job_id: str, *faults: FaultClass, phase: str = "watching") -> int:
    life = store.open_life(view(cluster, job_id), workflow_id=f"{cluster}-{job_id}", run_id="r", now=T0).life_id
    attempts = [
        Attempt(
            number=number, state=JobState.FAILED, fault_class=fault, signature="s", nodes=("n01",), start_time=T0,
            end_time=T0 + timedelta(hours=number + 1), restarted_by="relight",
        )
        for number, fault in enumerate(faults)
    ]  # fmt: skip
    store.append(cluster, job_id, life, [], phase=phase, attempts=attempts)
    return life


def test_a_list_is_filtered_counted_and_goes_on_where_it_ended(store: AuditStore, cluster: str) -> None:
    lives = [_open(store, cluster, str(number), FaultClass.STORAGE, FaultClass.HARDWARE) for number in (1, 2, 3)]
    _open(store, cluster, "4", phase="recovering")
    wanted = JobFilter(cluster=cluster, fault="storage")
    assert store.count(wanted) == 3
    first = store.listed(wanted, limit=2)
    assert [(row.job_id, row.fault_class) for row in first] == [("3", "hardware"), ("2", "hardware")]
    assert [row.job_id for row in store.listed(wanted, before=first[-1].life_id, limit=2)] == ["1"]
    assert [row.job_id for row in store.listed(JobFilter(cluster=cluster, state="recovering"))] == ["4"]
    assert store.listed(JobFilter(cluster=cluster, text="100%")) == []
    assert [row.fault_class for row in store.jobs(cluster)] == ["", "hardware", "hardware", "hardware"]
    store.close_life(lives[0], "purged")
    assert store.count(wanted) == 2
    assert store.count(wanted.model_copy(update={"closed": True})) == 3
    mine = [one for one in store.counts() if one.cluster == cluster]
    assert sorted((one.phase, one.jobs) for one in mine) == [("recovering", 1), ("watching", 2)]


def test_a_search_finds_names_ids_and_users(store: AuditStore, cluster: str) -> None:
    _open(store, cluster, "12345")
    name = view(cluster, "12345").name
    for text in (name.upper()[:4], "123", f"{cluster}-12345", view(cluster, "12345").user):
        found = store.listed(JobFilter(cluster=cluster, text=text))
        assert [row.job_id for row in found] == ["12345"], text
    for text in ("2345", f"{cluster}-2345", "nobody-of-that-name"):
        assert store.listed(JobFilter(cluster=cluster, text=text)) == [], text


def test_faults_and_suspects_are_told_across_jobs(store: AuditStore, cluster: str) -> None:
    for job_id in ("1", "2"):
        life = _open(store, cluster, job_id, FaultClass.STORAGE, FaultClass.NONE)
        suspect = Suspect(node="n01", how="told", confidence=Confidence.HIGH)
        verdict = Verdict(fault_class=FaultClass.HARDWARE, suspects=(suspect,), reason="r")
        store.suspect(life, 0, verdict, T0, T0 + timedelta(days=1))
    told = store.faults([cluster], T0)
    assert [(one.job_id, one.attempt, one.fault_class, one.by_relight) for one in told] == [
        ("2", 0, "storage", True),
        ("1", 0, "storage", True),
    ]
    assert store.faults([cluster], T0 + timedelta(days=1)) == []
    assert [(one.node, one.suspicions, one.jobs) for one in store.suspected_nodes([cluster], T0)] == [("n01", 2, 2)]


def test_what_is_new_is_found_by_id_and_by_time(store: AuditStore, cluster: str) -> None:
    life = _open(store, cluster, "1")
    before = store.newest_event()
    made = [
        NewEvent(key=f"{life}:{number}", kind=kind, at=T0 + timedelta(seconds=number), summary=kind)
        for number, kind in enumerate((EventKind.STEP, EventKind.FINDING, EventKind.OUTCOME))
    ]
    store.append(cluster, "1", life, made)
    mine = [event for event in store.events_after(before) if event.cluster == cluster]
    assert [event.kind for event in mine] == ["step", "finding", "outcome"]
    recent = store.recent([cluster], [EventKind.STEP, EventKind.OUTCOME], T0)
    assert [event.kind for event in recent] == ["outcome", "step"]
    assert store.recent([cluster], [EventKind.STEP], T0 + timedelta(seconds=1)) == []


def test_a_jobs_steps_are_news(store: AuditStore, cluster: str) -> None:
    life = _open(store, cluster, "1")
    at = T0 + timedelta(days=3650)  # later than what other tests write
    store.watch(Watched(cluster=cluster, job_id="1", life_id=life, step=7, step_at=at))
    assert (cluster, "1") in {(one.cluster, one.job_id) for one in store.moved(at - timedelta(seconds=1))}
    assert (cluster, "1") not in {(one.cluster, one.job_id) for one in store.moved(at)}


def test_a_sign_of_the_sweep_is_not_given_by_other_writers(store: AuditStore, cluster: str) -> None:
    assert store.swept_at(cluster) is None
    store.sweep_went_well(cluster, T0)
    store.save_nodes(cluster, ("n01",), T0 + timedelta(hours=1))
    assert store.swept_at(cluster) == T0
    facts = store.facts(cluster)
    assert facts is not None
    assert facts.nodes == ("n01",)
