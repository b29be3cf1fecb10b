"""Many made-up logs: the diagnosis tells how each was made, and suspects nobody innocent."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recovery.records import Confidence
from tests.recovery.logs import told
from tests.recovery.lookalikes import STORIES, made

SEEDS = range(6)


@pytest.mark.parametrize("name", STORIES)
def test_a_log_is_diagnosed_as_it_was_made(name: str) -> None:
    for seed in SEEDS:
        lab, expected = made(name, seed)
        found = told(("job.log", lab.text), nodes=lab.nodes, now=lab.at + timedelta(minutes=3), complete=True)
        what = (found.fault, found.fault_class, found.retry, frozenset(found.exclude))
        wanted = (expected.fault, expected.fault_class, expected.retry, expected.exclude)
        assert what == wanted, f"seed {seed}: {found.signature}: {found.reason}"
        assert {one.host for one in found.suspects} <= expected.exclude | expected.happened_on, f"seed {seed}"
        assert (found.last_step, found.last_checkpoint) == (lab.highest, lab.saved)


@pytest.mark.parametrize("name", [name for name in STORIES if name != "handled_traceback"])  # it tells no time
def test_one_file_a_node_tells_the_same(name: str) -> None:
    for seed in (8, 9):
        lab, expected = made(name, seed)
        found = told(*lab.files, nodes=lab.nodes, now=lab.at + timedelta(minutes=3), complete=True)
        what = (found.fault, found.fault_class, found.retry, frozenset(found.exclude))
        wanted = (expected.fault, expected.fault_class, expected.retry, expected.exclude)
        assert what == wanted, f"seed {seed}: {found.signature}: {found.reason}"


@pytest.mark.parametrize("name", STORIES)
def test_without_an_allocation_nobody_innocent_is_excluded(name: str) -> None:
    for seed in (6, 7):
        lab, expected = made(name, seed)
        found = told(("job.log", lab.text), nodes=None, now=lab.at, complete=True)
        sure = {one.host for one in found.suspects if one.confidence is not Confidence.LOW}
        assert sure <= expected.exclude
        assert found.fault is expected.fault or name == "silent_end"  # read while it may still be written


@pytest.mark.parametrize("name", STORIES)
def test_nodes_of_other_jobs_are_never_suspected(name: str) -> None:
    lab, _ = made(name, 3)
    found = told(("job.log", lab.text), nodes=("other1", "other2"), now=lab.at, complete=True)
    assert {one.host for one in found.suspects} <= {"other1", "other2"}
