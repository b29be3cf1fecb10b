"""Lives of a job id: a requeue goes on with its budgets, another job under the same id starts without them."""

from datetime import timedelta
from typing import Any

import pytest

from activities.audit.records import Watched
from activities.audit.store import AuditStore, UnknownLife
from recovery.records import Attempt, AttemptRow, JobState, JobView
from tests.activities.audit.samples import NOON, all_at_once, at, event, opened, row, view


def see(store: AuditStore, seen: JobView, *accounting: AttemptRow, run_id: str = "run-2") -> int:
    """Opens what was seen and returns the life it was taken for."""
    return store.open_life(seen, accounting=accounting, workflow_id="w", run_id=run_id, now=NOON).life_id


def test_a_job_seen_first_begins_a_life(store: AuditStore, cluster: str) -> None:
    life = opened(store, cluster)
    assert (life.cluster, life.job_id, life.user, life.name) == (cluster, "12345", "alice", "pretrain")
    assert life.first_seen == NOON
    assert not life.reopened
    assert (life.paused, life.stopped, life.closed_at) == (False, False, None)
    assert store.latest_life(cluster, "12345") == life
    assert store.latest_life(cluster, "12346") is None


def test_an_activity_that_opens_again_gets_the_same_answer(store: AuditStore, cluster: str) -> None:
    first = opened(store, cluster)
    again = opened(store, cluster)
    assert (again.life_id, again.reopened) == (first.life_id, False)
    later = opened(store, cluster, run_id="run-2")
    assert (later.life_id, later.reopened) == (first.life_id, True)
    assert opened(store, cluster, run_id="run-2").reopened


def test_a_requeue_goes_on_with_the_same_life(store: AuditStore, cluster: str) -> None:
    life = see(store, view(cluster))
    assert see(store, view(cluster, submit=100, restarts=1)) == life
    assert see(store, view(cluster, submit=300, restarts=3)) == life
    assert store.life(life).restarts == 3


def test_a_requeue_seen_while_its_nodes_are_not_free_yet_goes_on_with_the_same_life(
    store: AuditStore, cluster: str
) -> None:
    life = see(store, view(cluster))
    half_way = view(cluster, submit=0, restarts=1, state=JobState.PENDING, completing=True)
    assert see(store, half_way) == life
    assert see(store, view(cluster, submit=40, restarts=1)) == life
    assert see(store, view(cluster, submit=900, restarts=1)) != life


def test_a_job_first_seen_while_its_nodes_are_not_free_yet_is_known_again(store: AuditStore, cluster: str) -> None:
    life = see(store, view(cluster, submit=0, restarts=1, completing=True))
    assert see(store, view(cluster, submit=40, restarts=1)) == life
    assert see(store, view(cluster, submit=900, restarts=1)) != life


def test_an_unsettled_submit_time_is_settled_when_the_life_is_closed(store: AuditStore, cluster: str) -> None:
    life = see(store, view(cluster, completing=True))
    store.close_life(life, "purged")
    assert see(store, view(cluster, submit=900)) != life


def test_an_id_given_out_again_begins_a_new_life_and_ends_the_old_one(store: AuditStore, cluster: str) -> None:
    old = see(store, view(cluster))
    store.append(cluster, "12345", old, [event(f"{old}/x")], stopped=True, paused=True, paused_by="oncall")
    store.watch(Watched(cluster=cluster, job_id="12345", life_id=old))
    new = see(store, view(cluster, submit=500))
    assert new != old
    assert store.latest_life(cluster, "12345") == store.life(new)
    assert (store.life(new).stopped, store.life(new).paused) == (False, False)
    assert "another job" in store.life(old).close_reason
    assert store.watched(cluster) == []


def test_an_id_given_out_again_after_slurmctld_lost_a_requeued_job_begins_a_new_life(
    store: AuditStore, cluster: str
) -> None:
    old = see(store, view(cluster, submit=200, restarts=2))
    assert see(store, view(cluster, submit=900, restarts=0)) != old


def test_recorded_attempts_tell_an_older_job_from_a_newer_one_with_fewer_restarts(
    store: AuditStore, cluster: str
) -> None:
    old = see(store, view(cluster))
    attempts = [Attempt(number=number, submit_time=at(number * 100)) for number in range(4)]
    store.append(cluster, "12345", old, [], attempts=attempts)
    assert store.life(old).restarts == 3
    assert see(store, view(cluster, submit=5000, restarts=1)) != old


def test_slurmctld_that_forgot_a_requeue_still_shows_the_same_life(store: AuditStore, cluster: str) -> None:
    life = see(store, view(cluster))
    assert see(store, view(cluster, submit=100, restarts=1)) == life
    assert see(store, view(cluster, submit=0, restarts=0)) == life
    assert see(store, view(cluster, submit=160, restarts=1)) == life


@pytest.mark.parametrize("other", [{"uid": 1002, "user": "bob"}, {"name": "evaluate"}])
def test_a_requeued_job_of_another_user_or_name_begins_a_new_life(
    store: AuditStore, cluster: str, other: dict[str, Any]
) -> None:
    life = see(store, view(cluster))
    assert see(store, view(cluster, submit=100, restarts=1, **other)) != life


def test_a_renamed_job_stays_the_same_life(store: AuditStore, cluster: str) -> None:
    life = see(store, view(cluster))
    assert see(store, view(cluster, name="renamed by its owner")) == life
    assert see(store, view(cluster, submit=100, restarts=1, name="renamed by its owner")) == life


def test_accounting_shows_that_a_job_with_more_restarts_is_another_one(store: AuditStore, cluster: str) -> None:
    life = see(store, view(cluster))
    requeued = view(cluster, submit=900, restarts=1)
    assert see(store, requeued, row(0), row(900)) == life
    other = view(cluster, submit=5900, restarts=2)
    assert see(store, other, row(0), row(900), row(5000), row(5400), row(5900)) != life


def test_accounting_that_lacks_rows_proves_nothing(store: AuditStore, cluster: str) -> None:
    life = see(store, view(cluster))
    assert see(store, view(cluster, submit=900, restarts=2), row(900)) == life


def test_an_unknown_submit_time_does_not_end_a_life(store: AuditStore, cluster: str) -> None:
    life = see(store, view(cluster))
    assert see(store, view(cluster, submit=None)) == life
    assert see(store, view(cluster)) == life


def test_a_closed_life_that_slurm_still_knows_is_open_again(store: AuditStore, cluster: str) -> None:
    life = opened(store, cluster)
    store.close_life(life.life_id, "purged", at(60))
    store.close_life(life.life_id, "purged again", at(90))
    closed = store.life(life.life_id)
    assert (closed.closed_at, closed.close_reason) == (at(60), "purged")
    again = opened(store, cluster, run_id="run-2")
    assert (again.life_id, again.closed_at, again.close_reason) == (life.life_id, None, "")


def test_many_who_open_a_job_at_once_open_one_life(store: AuditStore, cluster: str) -> None:
    lives = all_at_once([lambda: opened(store, cluster).life_id] * 20)
    assert len(set(lives)) == 1


def test_lives_that_do_not_exist_are_named(store: AuditStore, cluster: str) -> None:
    for call in (
        lambda: store.life(987654321),
        lambda: store.close_life(987654321, "gone"),
        lambda: store.append(cluster, "12345", 987654321, []),
    ):
        with pytest.raises(UnknownLife, match="987654321"):
            call()


def test_the_list_shows_open_jobs_newest_first_with_their_progress(store: AuditStore, cluster: str) -> None:
    first, second, closed = (opened(store, cluster, job_id).life_id for job_id in ("1", "2_7", "3"))
    store.close_life(closed, "finished")
    store.append(
        cluster,
        "1",
        first,
        [event(f"{first}/f", summary="GPU lost"), event(f"{first}/a", "advice", "restart without n07")],
        phase="recovering",
        mode="act",
        attempts=[Attempt(number=0, last_step=40, last_checkpoint=30)],
    )
    store.watch(Watched(cluster=cluster, job_id="2_7", life_id=second, step=7, total_steps=9, step_at=NOON))
    newest, oldest = store.jobs(cluster)
    assert (newest.job_id, newest.step, newest.total_steps, newest.step_at) == ("2_7", 7, 9, NOON)
    assert (oldest.job_id, oldest.step, oldest.checkpoint) == ("1", 40, 30)
    assert (oldest.phase, oldest.mode) == ("recovering", "act")
    assert (oldest.last_finding, oldest.last_advice) == ("GPU lost", "restart without n07")
    assert [job.job_id for job in store.jobs(cluster, include_closed=True)] == ["3", "2_7", "1"]
    assert [job.job_id for job in store.jobs(cluster, include_closed=True, limit=1, offset=1)] == ["2_7"]
    assert [job.job_id for job in store.jobs(cluster, phase="recovering")] == ["1"]
    assert store.jobs(cluster, user="bob") == []
    assert len(store.jobs(cluster, user="alice")) == 2


def test_times_come_back_aware_and_to_the_microsecond(store: AuditStore, cluster: str) -> None:
    # The hour that summer time leaves out in Europe, seen from another zone.
    seen = view(cluster)
    life = store.open_life(seen, workflow_id="w", run_id="r", now=NOON.astimezone() - timedelta(hours=10))
    assert store.life(life.life_id).first_seen == NOON - timedelta(hours=10)
    assert store.life(life.life_id).first_seen.utcoffset() == timedelta(0)
