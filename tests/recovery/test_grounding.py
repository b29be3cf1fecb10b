"""What an outsider names counts only where the evidence or the allocation has it; the rest is told and dropped."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.grounding import Answer, NonsenseAnswer, answer_schema, grounded, read_answer
from recovery.records import Confidence, FaultClass
from tests.recovery.questions import question
from tests.recovery.situations import NODES

thorough = settings(max_examples=2_000, deadline=None)


def answer(*suspects: dict[str, Any], **more: Any) -> Answer:
    return read_answer(json.dumps({"category": "hardware", "suspects": list(suspects), **more}))


def nodes(told: Any) -> list[str]:
    return [one.node for one in told.suspects]


def test_hosts_of_the_allocation_are_kept_and_strangers_are_told() -> None:
    told = grounded(
        answer({"host": "n02"}, {"host": "n99"}, {"host": "\x1b[31mn02;rm -rf"}), question(), must_cite=False
    )
    assert nodes(told) == ["n02"]
    assert told.dropped[0] == "host 'n99': not part of the job's allocation"
    assert len(told.dropped) == 2
    assert all(word.isprintable() for word in told.dropped)


def test_a_full_name_means_the_node_and_an_ambiguous_one_nobody() -> None:
    asked = question(nodes=("n01", "n02.one.example", "n02.two.example", "n03"))
    told = grounded(answer({"host": "n01.one.example"}, {"host": "n02"}), asked, must_cite=False)
    assert nodes(told) == ["n01"]
    assert len(told.dropped) == 1


def test_a_rank_counts_only_where_the_evidence_shows_its_host() -> None:
    told = grounded(answer({"rank": 5}, {"rank": 1}, {"rank": 77}), question(), must_cite=False)
    assert nodes(told) == ["n02"]
    assert told.dropped == ("rank 1: the evidence does not show its host", "rank 77: not in the evidence")


def test_a_host_that_contradicts_its_rank_is_dropped() -> None:
    told = grounded(answer({"host": "n01", "rank": 5}), question(), must_cite=False)
    assert nodes(told) == []
    assert told.dropped == ("host 'n01': rank 5 was seen on n02",)


def test_lines_that_do_not_exist_are_dropped() -> None:
    told = grounded(answer(lines=["L1", "L9", "L1"]), question(), must_cite=False)
    assert told.lines == ("L1",)
    assert told.dropped == ("line 'L9': not in the evidence",)


@pytest.mark.parametrize(
    ("suspect", "kept"),
    [
        ({"host": "n02", "lines": ["L1"]}, True),  # derived from the line
        ({"host": "n03", "lines": ["L2", "L3"]}, True),  # the line names it
        ({"host": "n03", "lines": ["L1"]}, False),  # the line speaks of another
        ({"host": "n03"}, False),
        ({"host": "n03", "lines": ["L9"]}, False),
        ({"rank": 5, "lines": ["L1"]}, True),
    ],
)
def test_who_has_only_the_evidence_must_refer_to_it(suspect: dict[str, Any], kept: bool) -> None:
    assert bool(nodes(grounded(answer(suspect), question(), must_cite=True))) is kept


def test_who_names_most_hosts_names_none() -> None:
    told = grounded(answer(*({"host": node} for node in NODES)), question(), must_cite=False)
    assert nodes(told) == []
    assert "none of them stands out" in told.dropped[0]


def test_the_only_host_of_a_job_may_be_named() -> None:
    assert nodes(grounded(answer({"host": "n01"}), question(nodes=("n01",)), must_cite=False)) == ["n01"]


def test_long_words_are_cut_and_control_characters_go() -> None:
    told = grounded(answer(explanation="a\n\x00b" + "x" * 9_000, session_id="s\n1"), question(), must_cite=False)
    assert told.explanation.startswith("a bxx")
    assert len(told.explanation) == 500
    assert told.session == "s 1"


def test_very_many_strangers_are_counted_not_listed() -> None:
    told = grounded(answer(*({"host": f"x{at}"} for at in range(1_000))), question(), must_cite=False)
    assert len(told.dropped) == 21
    assert told.dropped[-1] == "and 980 more"


def test_an_answer_about_another_workload_is_nonsense() -> None:
    with pytest.raises(NonsenseAnswer, match="999"):
        grounded(answer(workload_id="999"), question(), must_cite=False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"hello",
        b"\xff\xfe",
        b'{"category": "gremlins"}',
        b'{"category": 7}',
        b'{"category": "hardware", "suspects": {"host": "n02"}}',
        b'{"category": "hardware", "suspects": ["n02"]}',
        b'{"category": "hardware", "suspects": [{"rank": "5"}]}',
        b'{"category": "hardware", "suspects": [{"rank": 1.5}]}',
        b'{"category": "hardware", "explanation": ' + json.dumps("x" * 30_000).encode() + b"}",
        b'{"category": "hardware", "suspects": [' + b'{"host": "n01"},' * 2_000 + b'{"host": "n01"}]}',
        b"[" * 100_000,
        b'{"category": "hardware", "lines": ' + b"[" * 100_000 + b"}",
    ],
    ids=range(16),
)
def test_what_does_not_keep_to_the_contract_is_nonsense(data: bytes) -> None:
    with pytest.raises(NonsenseAnswer) as refused:
        read_answer(data)
    assert len(str(refused.value)) < 300


def test_a_service_may_say_more_than_is_read() -> None:
    told = read_answer(b'{"category": "storage", "confidence": "high", "model": {"x": 1}}')
    assert (told.category, told.confidence) == (FaultClass.STORAGE, Confidence.HIGH)


def test_the_schema_asks_for_the_category_only() -> None:
    assert answer_schema()["required"] == ["category"]


def claim(random: Random) -> dict[str, Any]:
    """A claim of somebody who says anything."""
    told: dict[str, Any] = {}
    if random.random() < 0.8:
        told["host"] = random.choice((None, *NODES, *NODES, "n05", "n02.x", "N03", "", "n0", "\x00n01"))
    if random.random() < 0.4:
        told["rank"] = random.choice((None, -1, 1, 5, 9, 1 << 80))
    told["lines"] = random.sample(("L1", "L2", "L3", "L4"), random.randint(0, 3))
    return told


@given(st.integers(0, 2**40))
@thorough
def test_nothing_outside_the_allocation_ever_counts(seed: int) -> None:
    random = Random(seed)
    allocation = random.sample(NODES, random.randint(0, 4))
    asked = question(nodes=tuple(allocation))
    said = answer(*(claim(random) for _ in range(random.randint(0, 6))), lines=["L1", "L9"])
    told = grounded(said, asked, must_cite=random.random() < 0.5)
    assert set(nodes(told)) <= set(allocation)
    assert set(told.lines) <= {line.ref for line in asked.lines}
    assert len(told.suspects) <= max(1, len(allocation) / 2)
