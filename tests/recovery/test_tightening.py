"""What a job may ask of its policy: only what makes it tighter; the rest is refused with file, key and reason."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.directive import Directive, parse_comment
from recovery.policy_file import parse
from recovery.policy_numbers import BeforeRestart, OnStuck, Policy, RestartOn
from recovery.policy_scopes import MayAsk
from recovery.tightening import tighten

NUMBERS = (
    "max_restarts",
    "max_restarts_per_day",
    "max_restarts_same_cause",
    "max_restarts_no_new_checkpoint",
    "max_restarts_unknown",
    "max_node_hours_without_progress",
)


def asked(may: MayAsk | None = None, policy: Policy | None = None, **words: Any) -> tuple[Policy, tuple[str, ...]]:
    return tighten(policy or Policy(), Directive(**words), file="policy.yaml", name="default", may=may or MayAsk())


@pytest.mark.parametrize("key", NUMBERS)
def test_a_job_may_lower_a_number_but_not_raise_it(key: str) -> None:
    limit = getattr(Policy(), key)
    lower, cut = asked(**{key: 1})
    assert (getattr(lower, key), cut) == (1, ())
    higher, cut = asked(**{key: limit + 1})
    assert getattr(higher, key) == limit
    assert cut == (
        f"policy.yaml: policies.default.{key}: the job asks for relight.{key} {limit + 1:g}, "
        f"at most {limit:g} is allowed: it holds",
    )


def test_a_job_may_have_hangs_only_told_but_not_restarted_where_the_policy_only_tells() -> None:
    assert asked(hang=OnStuck.NOTIFY)[0].hang is OnStuck.NOTIFY
    policy, cut = asked(straggler=OnStuck.RESTART)
    assert policy.straggler is OnStuck.NOTIFY
    assert "relight.straggler restart, at most notify" in cut[0]


def test_endings_that_a_job_may_name_are_the_policys_and_those_the_operator_allows() -> None:
    both = (RestartOn.TIMEOUT, RestartOn.PREEMPTED)
    policy, cut = asked(restart_on=both)
    assert policy.restart_on == ()
    assert "may_ask.restart_on: the job asks for relight.restart_on TIMEOUT, PREEMPTED, at most none" in cut[0]
    assert asked(MayAsk(restart_on=both), restart_on=(RestartOn.TIMEOUT,)) == (
        Policy(restart_on=(RestartOn.TIMEOUT,)),
        (),
    )
    assert asked(policy=Policy(restart_on=both), restart_on=())[0].restart_on == ()


def test_a_code_that_says_stop_and_elsewhere_says_stop() -> None:
    policy, _ = asked(stop_codes=(16, 7), elsewhere_codes=(93, 8))
    assert policy.stop_codes == (93, 16, 7)
    assert policy.elsewhere_codes == (8,)


def test_the_signal_before_a_restart_comes_from_the_comment() -> None:
    told = parse_comment('{"relight": {"before_restart": {"signal": "USR1", "wait_s": 90, "to": "batch"}}}')
    assert told.error == ""
    assert told.directive.before_restart == BeforeRestart(signal="USR1", wait_s=90, to="batch")
    policy = parse("", "policy.yaml").resolve("prod", directive=told.directive).policy
    assert policy.before_restart == told.directive.before_restart


@pytest.mark.parametrize(
    "words",
    [
        '{"signal": "KILL"}',
        '{"signal": "USR1", "wait_s": 0}',
        '{"signal": "USR1", "signal": "USR2"}',
        '{"signal": "USR1", "to": "everybody"}',
        '"USR1"',
        "[]",
    ],
)
def test_a_signal_that_cannot_be_meant_is_told(words: str) -> None:
    told = parse_comment(f'{{"relight": {{"before_restart": {words}}}}}')
    assert "relight.before_restart is" in told.error
    assert 'such as {"signal": "USR1", "wait_s": 60}' in told.error


def test_an_ask_beyond_a_limit_does_not_cost_the_job_its_recovery() -> None:
    effective = parse("policies: {default: {max_restarts: 4}}", "policy.yaml").resolve(
        "prod", directive=Directive(max_restarts=50, max_restarts_unknown=0)
    )
    assert effective.refused == ""
    assert (effective.policy.max_restarts, effective.policy.max_restarts_unknown) == (4, 0)
    assert [line.split(":")[:2] for line in effective.cut] == [["policy.yaml", " policies.default.max_restarts"]]


@settings(max_examples=2500, deadline=None)
@given(st.integers(0, 2**40))
def test_whatever_a_job_asks_its_policy_only_becomes_tighter(seed: int) -> None:
    random = Random(seed)

    def codes() -> tuple[int, ...]:
        return tuple(random.randint(1, 255) for _ in range(random.randint(0, 3)))

    words = {key: random.randint(1, 40) for key in NUMBERS if random.random() < 0.5}
    policy = Policy(max_restarts=random.randint(0, 20), hang=random.choice(list(OnStuck)))
    directive = Directive(
        **words,
        hang=random.choice([None, *OnStuck]),
        straggler=random.choice([None, *OnStuck]),
        restart_on=random.choice([None, (), tuple(RestartOn)]),
        stop_codes=codes(),
        elsewhere_codes=codes(),
    )
    mine, cut = tighten(policy, directive, file="f", name="n", may=MayAsk())
    assert all(getattr(mine, key) <= getattr(policy, key) for key in NUMBERS)
    assert all(getattr(mine, key) is OnStuck.NOTIFY or getattr(policy, key) is OnStuck.RESTART for key in ("hang",))
    assert mine.straggler is OnStuck.NOTIFY
    assert set(mine.restart_on) <= set(policy.restart_on)
    assert set(mine.stop_codes) >= set(policy.stop_codes)
    assert not set(mine.stop_codes) & set(mine.elsewhere_codes)
    assert Policy.model_validate(mine.model_dump()) == mine
    beyond = [key for key in NUMBERS if words.get(key, 0) > getattr(policy, key)]
    assert len([line for line in cut if "max_" in line]) == len(beyond)
