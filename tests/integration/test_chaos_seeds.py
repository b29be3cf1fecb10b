"""Scenarios of `./dev chaos` that are played with every test run: several jobs and several faults at once.

What must hold afterwards stands in tests/chaos/invariants.py. `./dev chaos --runs 1 --seed N` plays one alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.arena import Arena
from tests.chaos.plan import plan
from tests.chaos.play import Play


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena() as made:
        yield made


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 101, 103])
def test_whatever_breaks_nothing_is_lost_and_nothing_done_twice(arena: Arena, seed: int) -> None:
    arena.healthy()
    result = Play(arena, plan(seed)).run()
    assert not result.violations, "\n".join([result.told, *result.violations, *result.stories])
    assert result.verified["requeues"] >= 1
