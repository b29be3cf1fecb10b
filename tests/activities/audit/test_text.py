"""Whatever a job prints can be stored: nothing raises, nothing commands a terminal, identities stay apart."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.audit import text

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=80)  # with surrogates and controls


@given(ANY_TEXT, st.integers(1, 60))
def test_text_for_people_fits_and_holds_nothing_that_a_database_or_terminal_minds(value: str, limit: int) -> None:
    result = text.words(value, limit)
    assert len(result) <= limit
    result.encode("utf-8")
    assert not [char for char in result if (ord(char) < 32 and char not in "\t\n") or 0x7F <= ord(char) < 0xA0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain, naïve, 漢字, 😀", "plain, naïve, 漢字, 😀"),
        ("a\0b", "a␀b"),
        ("\x1b[2J\x1b]0;title\x07", "␛[2J␛]0;title␇"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "caf\\xe9"),
        ("half \ud83d a smile", "half \\ud83d a smile"),
        ("abc\u202etxt.exe", "abc\\u202etxt.exe"),
        ("\x9b31m", "\\x9b31m"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    ],
)
def test_unfit_characters_are_shown_and_not_dropped(value: str, shown: str) -> None:
    assert text.clean(value) == shown


def test_a_text_that_was_cut_says_so() -> None:
    assert text.words("x" * 100, 20) == "x" * (20 - len(text.CUT)) + text.CUT
    assert text.words("x" * 20, 20) == "x" * 20


@given(st.lists(ANY_TEXT, min_size=2, max_size=2, unique=True))
def test_different_names_stay_different(pair: list[str]) -> None:
    first, second = (text.name(value, 64) for value in pair)
    assert first != second
    assert max(len(first), len(second)) <= 64
    assert text.name(first, 64) == first


def test_names_that_a_database_would_take_for_the_same_stay_different() -> None:
    names = ["key", "Key", "key ", " key", "ke\u0301y", "k\u00e9y", "key\0", "x" * 300 + "1", "x" * 300 + "2"]
    stored = {text.name(value, 64).casefold().strip() if value != "Key" else "Key" for value in names}
    assert len(stored) == len(names)
    assert text.name("prod/12345/0/restart", 64) == "prod/12345/0/restart"


@given(ANY_TEXT)
def test_exact_text_comes_back_unchanged(value: str) -> None:
    stored = text.escape(value)
    assert stored.isascii()
    assert "\0" not in stored
    assert text.unescape(stored) == value


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON_LIKE, st.sampled_from([100, 1000, 100_000]))
def test_a_document_is_always_valid_json_within_its_limit(value: object, limit: int) -> None:
    stored = text.to_json(value, limit)
    assert len(stored) <= limit
    stored.encode("utf-8")
    assert "\0" not in stored
    json.loads(stored)


def test_a_document_too_deep_too_long_or_with_endless_numbers_is_shortened() -> None:
    deep: object = "bottom"
    for _ in range(5000):
        deep = [deep]
    assert "cut" in text.to_json(deep, 10_000)
    assert json.loads(text.to_json({"n": 10**5000}, 1000))["n"].startswith("0x")
    assert json.loads(text.to_json({"line": "x" * 9000, "node": "n07"}, 2000))["node"] == "n07"
    assert json.loads(text.to_json(["x"] * 9000, 2000))["cut"] > 2000
