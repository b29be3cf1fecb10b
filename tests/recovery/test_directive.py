"""What a job's comment asks for, and what happens to comments that are not ours, broken, or hostile."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.directive import Directive, parse_comment, what_to_do
from recovery.records import JobState, JobView, Mode


def test_the_object_form_is_read() -> None:
    asked = {
        "policy": "pretraining",
        "mode": "approve",
        "max_restarts": 8,
        "checkpoint_dir": "/ckpt/run 7",
        "progress": r"step (?P<step>\d+)",
        "paused": True,
        "stop_codes": [42, 93],
    }
    read = parse_comment(json.dumps({"relight": asked}))
    assert read.opted_in
    assert read.error == ""
    assert read.directive == Directive(
        policy="pretraining",
        mode=Mode.APPROVE,
        max_restarts=8,
        checkpoint_dir="/ckpt/run 7",
        progress=r"step (?P<step>\d+)",
        paused=True,
        stop_codes=(42, 93),
    )


@pytest.mark.parametrize(
    "comment",
    [
        "relight",
        "  relight\n",
        "relight wandb:run7",
        "team=llm, relight",
        "a;relight;b",
        '"relight"',
        '{"relight": true}',
        '{"relight": {}}',
        'relight {"other": 1}',
    ],
)
def test_short_forms_opt_in_with_all_defaults(comment: str) -> None:
    read = parse_comment(comment)
    assert (read.opted_in, read.error, read.directive) == (True, "", Directive())


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "   ",
        "relights",
        "prelight",
        "no-relight",
        "relight=1",
        "Relight",
        "the text relight.",
        "{}",
        '{"other": {"relight": {}}}',
        '{"other": ["relight"], "x": 1}',
        '{"broken": ',
        "{not json, relight",
        "[1, 2]",
        '"another"',
    ],
)
def test_comments_that_do_not_speak_to_relight_are_ignored(comment: str) -> None:
    read = parse_comment(comment)
    assert (read.opted_in, read.error) == (False, "")


def test_what_belongs_to_other_tools_is_ignored_beside_ours() -> None:
    comment = '{"wandb": {"policy": 7, "policy": NaN}, "relight": {"max_restarts": 2}, "max_restarts": "many"}'
    read = parse_comment(comment)
    assert read.error == ""
    assert read.directive == Directive(max_restarts=2)


def test_no_means_no() -> None:
    assert parse_comment('{"relight": false}').opted_out
    assert not parse_comment('{"relight": false}').opted_in
    assert not parse_comment("").opted_out


@pytest.mark.parametrize(
    ("comment", "named", "expected"),
    [
        ('{"relight": {"max_restart": 8}}', "relight.max_restart", "expected one of policy, mode, max_restarts"),
        ('{"relight": {"max_restarts": "8"}}', 'relight.max_restarts is "8"', "a whole number from 0 to 1000"),
        ('{"relight": {"max_restarts": true}}', "relight.max_restarts is true", "a whole number"),
        ('{"relight": {"max_restarts": -1}}', "relight.max_restarts is -1", "a whole number"),
        ('{"relight": {"max_restarts": NaN}}', "relight.max_restarts is NaN", "a whole number"),
        ('{"relight": {"max_restarts": 1e999}}', "relight.max_restarts is Infinity", "a whole number"),
        ('{"relight": {"max_restarts": ' + "9" * 400 + "}}", "a very large number", "a whole number"),
        ('{"relight": {"mode": "aggressive"}}', 'relight.mode is "aggressive"', "monitor, approve or act"),
        ('{"relight": {"paused": 1}}', "relight.paused is 1", "true or false"),
        ('{"relight": {"checkpoint_dir": "run7"}}', "relight.checkpoint_dir", "an absolute path"),
        ('{"relight": {"checkpoint_dir": "/a\\nb"}}', "relight.checkpoint_dir", "an absolute path"),
        ('{"relight": {"checkpoint_dir": "/\\ud800"}}', "relight.checkpoint_dir", "an absolute path"),
        ('{"relight": {"policy": "../etc"}}', "relight.policy", "the name of a policy"),
        ('{"relight": {"stop_codes": [0]}}', "relight.stop_codes", "exit codes from 1 to 255"),
        ('{"relight": {"stop_codes": 93}}', "relight.stop_codes is 93", "a list"),
        ('{"relight": {"paused": true, "paused": false}}', "relight.paused stands more than once", "once"),
        ('{"relight": {}, "relight": {}}', "relight stands 2 times", "once"),
        ('{"relight": null}', "relight is null", "an object"),
        ('{"relight": "pretraining"}', 'relight is "pretraining"', "an object"),
        ('["relight"]', "a JSON list", "an object"),
        ('{"relight": {"max_restarts": 8}', "not valid JSON", ""),
        ('note {"relight": {}}', "text before its JSON object", "the object alone"),
    ],
)
def test_a_bad_directive_is_told_with_what_was_expected(comment: str, named: str, expected: str) -> None:
    read = parse_comment(comment)
    assert read.opted_in
    assert named in read.error
    assert expected in read.error
    assert read.directive == Directive()


@pytest.mark.parametrize(
    ("job", "move"),
    [
        ({"state": JobState.RUNNING}, "until its owner corrects the comment: scontrol update jobid=7 comment="),
        ({"state": JobState.PENDING}, "until its owner corrects the comment: scontrol update jobid=7 comment="),
        (
            {"state": JobState.FAILED},
            "submit it anew with a corrected comment, or scontrol requeue 7 and, while it waits",
        ),
        (
            {"state": JobState.FAILED, "requeue": False},
            "it has ended and stays as it is: submit it anew with a corrected",
        ),
        ({"state": JobState.COMPLETED}, "it has finished, so there is nothing to do"),
        ({"state": JobState.CANCELLED}, "it was cancelled, so there is nothing to do"),
    ],
)
def test_what_can_be_done_about_a_bad_directive_depends_on_where_the_job_is(job: dict[str, Any], move: str) -> None:
    view = JobView(cluster="prod", job_id="7", raw_id=7, looked_at=datetime.now(UTC), **job)
    assert move in what_to_do(view)
    if not view.requeue:
        assert "scontrol" not in what_to_do(view)


def test_broken_json_of_1024_bytes_and_deep_nesting_do_no_harm() -> None:
    cut = ('{"relight": {"checkpoint_dir": "/' + "x" * 2000)[:1024]
    assert "not valid JSON" in parse_comment(cut).error
    assert "not valid JSON" in parse_comment('{"relight": ' + "[" * 100_00).error
    assert parse_comment("[" * 1024) == parse_comment("")
    assert "not valid JSON" in parse_comment('{"relight": true, "x": ' + "9" * 5000 + "}").error
    assert "characters" in parse_comment('{"relight": "' + "x" * 100_000 + '"}').error


def test_errors_are_printable_ascii_even_when_the_comment_is_not() -> None:
    read = parse_comment('{"relight": {"m\udcffx\x1b[2J": 1, "mode": "\udce4"}}')
    assert read.error
    assert read.error.isascii()
    assert read.error.isprintable()
    read.model_dump_json()


@pytest.mark.parametrize(
    ("alias", "opted_in", "directive"),
    [
        ({"auto_resume_mode": "requeue", "max_requeue_times": 3}, True, Directive(max_restarts=3)),
        ({"auto_resume_mode": "requeue"}, True, Directive()),
        ({"auto_resume_mode": "requeue", "whatever": [1]}, True, Directive()),
        # Its own chain of singleton jobs restarts it: relight only watches.
        ({"auto_resume_mode": "singleton_dependency"}, True, Directive(mode=Mode.MONITOR)),
        ({"auto_resume_mode": "none"}, False, Directive()),
        ({"auto_resume_mode": None}, False, Directive()),
        ({"something_else": 1}, False, Directive()),
    ],
)
def test_the_aps_alias(alias: dict[str, object], opted_in: bool, directive: Directive) -> None:
    read = parse_comment(json.dumps({"APS": alias}))
    assert (read.opted_in, read.error, read.directive) == (opted_in, "", directive)


@pytest.mark.parametrize(
    "alias",
    [
        '"requeue"',
        '{"auto_resume_mode": "magic"}',
        '{"auto_resume_mode": [1]}',
        '{"auto_resume_mode": "requeue", "max_requeue_times": "3"}',
    ],
)
def test_a_bad_alias_is_told(alias: str) -> None:
    read = parse_comment('{"APS": ' + alias + "}")
    assert read.opted_in
    assert "APS" in read.error


def test_our_own_key_outweighs_the_alias() -> None:
    read = parse_comment('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 9}, "relight": false}')
    assert not read.opted_in


_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(codec=None), max_size=8)
)
_inner = st.lists(_leaves, max_size=3) | st.dictionaries(st.sampled_from(["", "a", "mode", "é"]), _leaves, max_size=3)
_values = st.one_of(_leaves, _inner, st.lists(_inner, max_size=2))
_keys = st.sampled_from(["policy", "mode", "max_restarts", "checkpoint_dir", "progress", "paused", "stop_codes", "x"])


@settings(max_examples=2000, deadline=None)
@given(st.dictionaries(_keys, _values, max_size=4), st.integers(0, 200), st.integers(0, 200))
def test_no_comment_makes_the_parser_raise(asked: dict[str, object], cut: int, drop: int) -> None:
    whole = json.dumps({"relight": asked})
    for comment in (whole, whole[: len(whole) - cut], whole[:drop] + whole[drop + 1 :]):
        read = parse_comment(comment)
        # What is not understood leaves no half directive behind.
        assert not read.error or (read.opted_in and read.directive == Directive())
        read.model_dump_json()


@settings(max_examples=2000, deadline=None)
@given(st.text(st.characters(codec=None), max_size=60))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    parse_comment(text)
    parse_comment("{" + text)
    parse_comment('{"relight": ' + text)
