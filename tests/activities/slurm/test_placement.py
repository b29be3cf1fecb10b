"""Exclusions only while the job can still be placed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from activities.slurm.placement import usable_exclusions
from recovery.records import JobState, JobView, NodeView

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = tuple(f"n{number:02d}" for number in range(1, 7))


def job(**fields: Any) -> JobView:
    words: dict[str, Any] = {"partition": "main", "min_nodes": 2, "num_cpus": 2, **fields}
    return JobView(cluster="c", job_id="1", raw_id=1, state=JobState.FAILED, looked_at=NOW, **words)


def node(name: str, **fields: Any) -> NodeView:
    words: dict[str, Any] = {"state": "IDLE", "partitions": ("main",), "cpus": 4, "memory_mb": 1000, **fields}
    return NodeView(name=name, **words)


FOUR = tuple(node(name) for name in NAMES[:4])


def test_an_exclusion_that_leaves_enough_nodes_is_kept_beside_the_users_own() -> None:
    chosen = usable_exclusions(job(), FOUR, wanted=["n02"], keep=["n04"])
    assert (chosen.kept, chosen.dropped, chosen.reason) == (("n02", "n04"), (), "")


def test_the_most_suspect_node_is_kept_when_not_all_can_be() -> None:
    chosen = usable_exclusions(job(min_nodes=3), FOUR, wanted=["n03", "n01"])
    assert (chosen.kept, chosen.dropped) == (("n03",), ("n01",))
    assert "without n01 only 2 usable nodes would remain, the job needs 3" in chosen.reason


def test_a_job_that_needs_every_node_gets_no_exclusion() -> None:
    assert usable_exclusions(job(min_nodes=4), FOUR, wanted=["n03"]).kept == ()


def test_nodes_that_are_drained_down_or_elsewhere_do_not_count() -> None:
    nodes = (
        node("n01"),
        node("n02"),
        node("n03", flags=("DRAIN",)),
        node("n04", state="DOWN"),
        node("n05", partitions=("other",)),
        node("n06", memory_mb=10),
    )
    wish = job(min_memory_mb=500)
    assert usable_exclusions(wish, nodes, wanted=["n01"]).kept == ()
    # A node that the job could not get anyway costs nothing.
    assert usable_exclusions(wish, nodes, wanted=["n03", "n05"]).kept == ("n03", "n05")


def test_busy_nodes_count_since_they_become_free() -> None:
    nodes = (*FOUR[:2], node("n03", state="ALLOCATED"))
    assert usable_exclusions(job(), nodes, wanted=["n01"]).kept == ("n01",)


def test_cpus_are_counted_as_well_as_nodes() -> None:
    assert usable_exclusions(job(min_nodes=1, num_cpus=16), FOUR, wanted=["n01"]).kept == ()
    assert usable_exclusions(job(min_nodes=1, num_cpus=12), FOUR, wanted=["n01"]).kept == ("n01",)


def test_unknown_and_required_nodes_are_left_out() -> None:
    chosen = usable_exclusions(job(required_nodes=("n01",)), FOUR, wanted=["n01", "n99"], keep=["n98"])
    assert (chosen.kept, chosen.dropped) == ((), ("n01", "n99"))
    assert "n01 is required by the job itself" in chosen.reason
    assert "n99 is no node of this cluster" in chosen.reason


def test_features_are_matched_or_not_judged() -> None:
    nodes = (*(node(name, features=("a100", "ib")) for name in NAMES[:3]), node("n04", features=("v100",)))
    assert usable_exclusions(job(features="a100&ib"), nodes, wanted=["n01", "n02"]).kept == ("n01",)
    assert usable_exclusions(job(features="a100|v100"), nodes, wanted=["n01", "n02"]).kept == ("n01", "n02")
    chosen = usable_exclusions(job(features="[a100*2&v100*1]"), nodes, wanted=["n01"], keep=["n02"])
    assert (chosen.kept, chosen.dropped) == (("n02",), ("n01",))
    assert "is not understood" in chosen.reason


def test_a_reservation_is_judged_only_when_its_nodes_are_known() -> None:
    inside = job(reservation="maint7", min_nodes=2)
    assert usable_exclusions(inside, FOUR, wanted=["n01"]).kept == ()
    assert usable_exclusions(inside, FOUR, wanted=["n01"], reservation_nodes=NAMES[:3]).kept == ("n01",)
    assert usable_exclusions(inside, FOUR, wanted=["n01"], reservation_nodes=NAMES[:2]).kept == ()
    assert usable_exclusions(job(), (), wanted=["n01"]).dropped == ("n01",)


@given(
    wanted=st.lists(st.sampled_from((*NAMES, "x1"))),
    keep=st.sets(st.sampled_from(NAMES), max_size=2),
    drained=st.sets(st.sampled_from(NAMES)),
    needs=st.integers(1, 6),
)
def test_our_exclusions_never_leave_fewer_nodes_than_needed(
    wanted: list[str], keep: set[str], drained: set[str], needs: int
) -> None:
    nodes = [node(name, flags=("DRAIN",) if name in drained else ()) for name in NAMES]
    chosen = usable_exclusions(job(min_nodes=needs, num_cpus=needs), nodes, wanted, keep)
    assert set(chosen.kept) | set(chosen.dropped) == (set(wanted) - keep) | keep
    assert keep <= set(chosen.kept)
    ours = set(chosen.kept) - keep
    left = set(NAMES) - drained - set(chosen.kept)
    assert len(left) >= needs or not ours - drained
