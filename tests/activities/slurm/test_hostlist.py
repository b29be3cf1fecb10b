"""Host lists: read as Slurm writes them, refused before they can hurt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.slurm.hostlist import BadHostlist, expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n01", ("n01",)),
        ("n[01-03]", ("n01", "n02", "n03")),
        ("n[01-02,07]", ("n01", "n02", "n07")),
        ("gpu-a[9-11],login.x", ("gpu-a10", "gpu-a11", "gpu-a9", "login.x")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n02,n01,n02", ("n01", "n02")),
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
    ],
)
def test_lists_as_slurm_writes_them(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "@all",
        "n[01-02],@gpu:all",
        "n[0-999999999]",
        "a[0-999]b[0-999]",
        "n[1-30000]",
        "n[01-",
        "n[a-b]",
        "n[1-10/2]",
        "n01 n02",
        "n01\nn02",
        "n*",
        "n01!n02",
        "x" * 70_000,
    ],
)
def test_groups_and_lists_too_large_are_refused(text: str) -> None:
    with pytest.raises(BadHostlist, match="host list"):
        expand(text)


@given(st.sets(st.from_regex(r"\A[a-z]{1,3}-?[0-9]{1,4}\Z"), max_size=30))
def test_folding_and_expanding_loses_nothing(names: set[str]) -> None:
    assert expand(fold(names)) == tuple(sorted(names))
