"""Which place of the policy file decides for a job: the closest; and what no closer place can loosen."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.directive import Directive
from recovery.policy_file import PolicyDocument, PolicyFile, parse
from recovery.policy_numbers import Policy
from recovery.policy_scopes import ClusterScope, Scope
from recovery.records import Mode


def file(**cluster: Any) -> PolicyFile:
    return parse(yaml.safe_dump({"clusters": {"prod": cluster}}), "policy.yaml")


PLACES: dict[str, Any] = {
    "mode": "monitor",
    "accounts": {"science": {"mode": "approve"}, "guests": {"mode": "monitor"}},
    "qos": {"urgent": {"mode": "act"}},
    "partitions": {"gpu": {"mode": "act"}, "debug": {"mode": "monitor"}},
    "users": {"trial": {"mode": "act"}, "careful": {"mode": "monitor"}},
}


@pytest.mark.parametrize(
    ("job", "mode", "by"),
    [
        ({}, Mode.MONITOR, "cluster prod"),
        ({"partition": "gpu"}, Mode.ACT, "partition gpu"),
        ({"account": "science"}, Mode.APPROVE, "account science"),
        ({"account": "science", "partition": "gpu"}, Mode.ACT, "partition gpu"),
        ({"account": "science", "qos": "urgent"}, Mode.ACT, "qos urgent"),
        ({"qos": "urgent", "partition": "debug"}, Mode.MONITOR, "partition debug"),
        ({"partition": "gpu", "user": "careful"}, Mode.MONITOR, "user careful"),
        ({"partition": "debug", "user": "trial"}, Mode.ACT, "user trial"),
        # All partitions are in question until the job runs: the gentlest; one that is not named is as the cluster.
        ({"partition": "gpu,debug"}, Mode.MONITOR, "partition debug"),
        ({"partition": "gpu,other"}, Mode.MONITOR, "cluster prod"),
        # The job and the person only ever make it gentler.
        ({"partition": "gpu", "directive": Directive(mode=Mode.MONITOR)}, Mode.MONITOR, "the job's comment"),
        ({"partition": "gpu", "mode": Mode.APPROVE}, Mode.APPROVE, "the workflow's start"),
        ({"directive": Directive(mode=Mode.ACT), "mode": Mode.ACT}, Mode.MONITOR, "cluster prod"),
    ],
)
def test_the_closest_place_that_says_a_mode_decides(job: dict[str, Any], mode: Mode, by: str) -> None:
    effective = file(**PLACES).resolve("prod", **job)
    assert (effective.mode, effective.mode_from) == (mode, by)


def test_acting_in_one_partition_needs_no_list_of_the_others() -> None:
    one = file(partitions={"gpu": {"mode": "act"}})
    assert one.resolve("prod", "gpu").mode is Mode.ACT
    assert {one.resolve("prod", other).mode for other in ("", "cpu", "debug")} == {Mode.MONITOR}


def test_the_brake_of_a_cluster_holds_everywhere_in_it() -> None:
    braked = file(**{**PLACES, "at_most": "approve"})
    assert braked.resolve("prod", "gpu", user="trial").mode is Mode.APPROVE
    assert braked.resolve("prod", "gpu").mode_from == "cluster prod (at_most)"
    assert braked.resolve("prod", "debug").mode_from == "partition debug"


@pytest.mark.parametrize(
    ("only", "job", "why"),
    [
        ({"accounts": ["science"]}, {"account": "guests"}, "the allow-list of cluster prod (accounts)"),
        ({"users": ["ada"]}, {"user": "bob"}, "the allow-list of cluster prod (users)"),
        ({"partitions": ["gpu"]}, {"partition": "gpu,cpu"}, "the allow-list of cluster prod (partitions)"),
        ({"qos": []}, {"qos": "normal"}, "the allow-list of cluster prod (qos)"),
        ({"accounts": ["science"]}, {"account": "science"}, "cluster prod"),
        ({"accounts": ["science"], "users": ["ada"]}, {"account": "science", "user": "ada"}, "cluster prod"),
    ],
)
def test_a_job_outside_an_allow_list_is_only_watched(only: dict[str, Any], job: dict[str, Any], why: str) -> None:
    effective = file(mode="act", only=only).resolve("prod", **job)
    assert effective.mode_from == why
    assert (effective.mode is Mode.MONITOR) == (why != "cluster prod")


def test_an_allow_list_of_a_partition_holds_there_whatever_a_closer_place_says() -> None:
    one = file(partitions={"gpu": {"mode": "act", "only": {"accounts": ["a"]}}}, users={"ada": {"mode": "act"}})
    assert one.resolve("prod", "gpu", "b", user="ada").mode is Mode.MONITOR
    assert one.resolve("prod", "gpu", "a", user="ada").mode is Mode.ACT


def test_what_jobs_may_ask_is_said_by_the_closest_place() -> None:
    one = file(accounts={"guests": {"may_ask": {"stop_codes": False}}}, users={"ada": {"may_ask": {}}})
    asked = Directive(stop_codes=(7,))
    assert one.resolve("prod", directive=asked).refused == ""
    assert "stop codes" in one.resolve("prod", account="guests", directive=asked).refused
    assert one.resolve("prod", account="guests", user="ada", directive=asked).refused == ""


@settings(max_examples=2500, deadline=None)
@given(st.integers(0, 2**40))
def test_the_job_and_the_person_can_only_make_the_operators_mode_gentler(seed: int) -> None:
    made = Random(seed)  # quicker by far than drawing every field

    def some() -> Mode | None:
        return made.choice([None, *Mode])

    kinds = ("accounts", "qos", "partitions", "users")
    scopes = {kind: {name: Scope(mode=some()) for name in made.sample("ab", made.randint(0, 2))} for kind in kinds}
    place = ClusterScope(mode=made.choice(list(Mode)), at_most=some(), **scopes)
    one = PolicyFile(PolicyDocument(clusters={"prod": place}), {"default": Policy()}, "policy.yaml")
    job = {name: made.choice(["", "a", "b", "c"]) for name in ("account", "qos", "partition", "user")}
    job["partition"] = made.choice([job["partition"], "a,b", "a,c"])
    asked, started = some(), some()

    operators = one.resolve("prod", **job).mode
    chosen = one.resolve("prod", **job, directive=Directive(mode=asked), mode=started).mode
    for limit in (operators, asked, started, place.at_most):
        assert limit is None or chosen.strength <= limit.strength
    assert chosen in {operators, asked, started}
    names = (job["account"], job["qos"], job["partition"], job["user"])
    said = [found.mode for kind, name in zip(kinds, names, strict=True) if (found := scopes[kind].get(name))]
    closest = [mode for mode in said if mode is not None] or [place.mode]
    if place.at_most is None and "," not in job["partition"]:
        assert operators is closest[-1]


@pytest.mark.parametrize("kind", ["accounts", "qos", "partitions", "users"])
def test_every_kind_of_place_in_a_cluster_counts(kind: str) -> None:
    opted_in = file(**{kind: {"here": {"opt_in": True, "mode": "act"}}})
    assert opted_in.opts_in_somewhere("prod")
    assert opted_in.mode_of("prod") is Mode.ACT
    silent = file(**{kind: {"here": {}}})
    assert not silent.opts_in_somewhere("prod")
    assert silent.mode_of("prod") is Mode.MONITOR
