"""What a wrong name may have been meant to be."""

from __future__ import annotations

import pytest

from recovery.nearest import meant

NODES = tuple(f"gpu-{number:03d}" for number in range(1, 201))


@pytest.mark.parametrize(
    ("wrong", "known", "said"),
    [
        ("gpu-0012", NODES, "; did you mean gpu-001 or gpu-002 or gpu-012?"),
        ("gpu-12", ("gpu-012", "cpu-1"), "; did you mean cpu-1 or gpu-012?"),
        ("mars", NODES, "; known: gpu-001, gpu-002, gpu-003, gpu-004, gpu-005, gpu-006, gpu-007, gpu-008 and 192 more"),
        ("default", ("b", "a"), "; known: a, b"),
        ("x", (), ""),
    ],
)
def test_the_nearest_names_are_told_else_what_there_is(wrong: str, known: tuple[str, ...], said: str) -> None:
    assert meant(wrong, known) == said
