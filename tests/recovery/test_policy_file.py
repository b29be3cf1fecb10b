"""Policy files: what they may say, what is told when they are wrong, and what holds for a job."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from recovery.directive import Directive
from recovery.policy import Policy
from recovery.policy_file import PolicyFile, PolicyFileError, json_schema, parse
from recovery.records import Mode

GOOD = """
default_policy: ordinary
policies:
  ordinary:
    max_restarts: 5
  pretraining:
    extends: ordinary
    max_restarts_per_day: 20
    restart_on: [TIMEOUT]
  long:
    extends: pretraining
    max_restarts: 50
clusters:
  prod:
    mode: act
    policy: pretraining
    partitions:
      debug: {mode: monitor}
      gpu: {policy: long, opt_in: true}
    accounts:
      careful: {mode: approve}
    qos:
      urgent: {opt_in: true}
  lab:
    policy: long
may_ask:
  policies: [ordinary, long]
  stop_codes: false
"""


@pytest.fixture(scope="module")
def good() -> PolicyFile:
    return parse(GOOD, "policy.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyFileError) as caught:
        parse(text, "policy.yaml")
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return str(caught.value).splitlines()


def test_a_policy_says_only_what_differs_from_the_one_it_extends(good: PolicyFile) -> None:
    assert good.names == ("default", "long", "ordinary", "pretraining")
    assert good.policy("long") == Policy.model_validate(
        {"max_restarts": 50, "max_restarts_per_day": 20, "restart_on": ["TIMEOUT"]}
    )
    assert good.policy("default") == Policy()


def test_an_empty_file_means_defaults_and_monitor_everywhere() -> None:
    for text in ("", "# nothing\n", "---\n", "{}"):
        effective = parse(text, "policy.yaml").resolve("prod")
        assert (effective.mode, effective.name, effective.policy) == (Mode.MONITOR, "default", Policy())


def test_a_cluster_that_is_not_named_is_in_monitor_mode(good: PolicyFile) -> None:
    assert good.resolve("elsewhere").mode is Mode.MONITOR
    assert good.resolve("lab").mode is Mode.MONITOR  # named, but without a mode


@pytest.mark.parametrize(
    ("job", "mode", "by"),
    [
        ({}, Mode.ACT, "cluster prod"),
        ({"partition": "debug"}, Mode.MONITOR, "partition debug"),
        ({"partition": "gpu,debug"}, Mode.MONITOR, "partition debug"),
        ({"account": "careful"}, Mode.APPROVE, "account careful"),
        ({"account": "careful", "partition": "debug"}, Mode.MONITOR, "partition debug"),
        ({"directive": Directive(mode=Mode.APPROVE)}, Mode.APPROVE, "the job's comment"),
        ({"mode": Mode.MONITOR}, Mode.MONITOR, "the workflow's start"),
        # Nobody gets more than the cluster allows.
        ({"directive": Directive(mode=Mode.ACT), "partition": "debug"}, Mode.MONITOR, "partition debug"),
    ],
)
def test_the_gentlest_mode_wins(good: PolicyFile, job: dict[str, object], mode: Mode, by: str) -> None:
    effective = good.resolve("prod", **job)  # type: ignore[arg-type]
    assert (effective.mode, effective.mode_from) == (mode, by)


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ({}, "pretraining"),
        ({"partition": "gpu"}, "long"),
        ({"directive": Directive(policy="ordinary"), "partition": "gpu"}, "ordinary"),
        ({"directive": Directive(policy="ordinary"), "policy": "long"}, "long"),
    ],
)
def test_the_closest_word_names_the_policy(good: PolicyFile, job: dict[str, object], name: str) -> None:
    effective = good.resolve("prod", **job)  # type: ignore[arg-type]
    assert (effective.name, effective.refused) == (name, "")
    assert effective.policy == good.policy(name)


def test_without_any_word_the_files_default_policy_holds(good: PolicyFile) -> None:
    assert good.resolve("elsewhere").name == "ordinary"


def test_a_site_can_opt_jobs_in(good: PolicyFile) -> None:
    assert not good.resolve("prod").opt_in
    assert good.resolve("prod", partition="gpu").opt_in
    assert good.resolve("prod", qos="urgent").opt_in


@pytest.mark.parametrize(
    "asked", [Directive(policy="pretraining"), Directive(policy="nonsense"), Directive(stop_codes=(42,))]
)
def test_what_a_job_may_not_ask_for_is_refused_with_the_reason(good: PolicyFile, asked: Directive) -> None:
    assert good.resolve("prod", directive=asked).refused
    assert good.resolve("prod", policy="pretraining").refused


def test_the_hash_tells_policies_names_and_modes_apart(good: PolicyFile) -> None:
    changed = parse(GOOD.replace("max_restarts: 50", "max_restarts: 51"), "policy.yaml")
    hashes = {
        good.resolve("prod").hash,
        good.resolve("prod", partition="gpu").hash,
        good.resolve("prod", account="careful").hash,
        changed.resolve("prod", partition="gpu").hash,
    }
    assert len(hashes) == 4
    assert good.resolve("prod").hash == changed.resolve("prod").hash
    assert good.hash != changed.hash


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "policies:\n  a:\n    max_restart: 3",
            "policy.yaml:3: policies.a.max_restart: is not known; did you mean max_restarts?",
        ),
        (
            "policies:\n  a:\n    max_restarts: -1",
            "policy.yaml:3: policies.a.max_restarts: is -1, expected greater than or equal to 0",
        ),
        (
            "policies:\n  a:\n    max_restarts: yes",
            "policy.yaml:3: policies.a.max_restarts: is True, expected a valid integer",
        ),
        ("policies:\n  a:\n    lease_s: '60'", "policy.yaml:3: policies.a.lease_s: is '60', expected a valid integer"),
        (
            "policies:\n  a:\n    start_delay_s: 4",
            "policy.yaml:3: policies.a.start_delay_s: is 4, expected greater than or equal to 5",
        ),
        ("policies:\n  a:\n    max_excluded_share: .nan", "policy.yaml:3: policies.a.max_excluded_share: is nan"),
        (
            "policies:\n  a:\n    restart_on: [FAILED]",
            "policy.yaml:3: policies.a.restart_on[0]: is 'FAILED', expected 'TIMEOUT' or 'PREEMPTED'",
        ),
        (
            "policies:\n  a: {stop_codes: [16]}",
            "policy.yaml:2: policies.a: exit code 16 stands in stop_codes and in elsewhere_codes",
        ),
        (
            "policies:\n  a: {lease_s: 10, start_delay_s: 10}",
            "policy.yaml:2: policies.a: lease_s is 10, expected more than start_delay_s",
        ),
        ("policies:\n  a: {extends: b}\n  b: {extends: c}\n  c: {extends: a}", "goes in a circle (a -> b -> c -> a)"),
        ("policies:\n  a: {extends: a}", "policy.yaml:2: policies.a.extends: goes in a circle (a -> a)"),
        (
            "policies:\n  a: {extends: pretrain}\n  pretraining: {}",
            "policy.yaml:2: policies.a.extends: 'pretrain' is not a policy of this file; did you mean pretraining?",
        ),
        (
            "default_policy: nope",
            "policy.yaml:1: default_policy: 'nope' is not a policy of this file, expected one of: default",
        ),
        (
            "clusters:\n  prod:\n    mode: acting",
            "policy.yaml:3: clusters.prod.mode: is 'acting', expected 'monitor', 'approve' or 'act'",
        ),
        ("clusters:\n  prod:\n    mode: on", "policy.yaml:3: clusters.prod.mode: is True"),
        (
            "clusters:\n  prod:\n    partitions:\n      gpu: {policy: nope}",
            "policy.yaml:4: clusters.prod.partitions.gpu.policy: 'nope' is not a policy",
        ),
        (
            "clusters:\n  prod:\n    patitions: {}",
            "policy.yaml:3: clusters.prod.patitions: is not known; did you mean partitions?",
        ),
        ("may_ask: {policies: [nope]}", "policy.yaml:1: may_ask.policies[0]: 'nope' is not a policy"),
        ("policies: [a]", "policy.yaml:1: policies: is ['a'], expected a mapping of keys to values"),
        ("- a", "policy.yaml:1: expected keys such as policies and clusters"),
        ("policies:\n  a: {}\n  a: {}", "policy.yaml:3: policies.a: stands twice, first on line 2"),
        ("policies:\n  1: {}", "policy.yaml:2: policies.1: expected a plain name as key"),
        ("a: &x 1\nb: *x", "policy.yaml:1: anchors and aliases"),
        ("policies: {a: ", "policy.yaml:1: not valid YAML"),
        ("\tpolicies: 1", "policy.yaml:1: not valid YAML"),
        ("policies: !!python/object:os.system {}", "policy.yaml:1: not valid YAML"),
        ("[" * 1200, "policy.yaml: nested too deeply"),
        ("x: " + "y" * 1_000_001, "policy.yaml: the file has 1000004 characters"),
    ],
)
def test_each_mistake_is_told_with_file_line_key_and_reason(text: str, told: str) -> None:
    assert any(told in line for line in problems(text)), problems(text)


def test_all_mistakes_are_told_at_once_and_each_once() -> None:
    text = "policies:\n  a: {max_restarts: -1}\n  b: {extends: a}\nclusters:\n  prod: {mode: x}\n"
    assert len(problems(text)) == 2


def test_the_published_schema_agrees_with_the_parser() -> None:
    import yaml

    Draft202012Validator.check_schema(json_schema())
    validator = Draft202012Validator(json_schema())
    assert not list(validator.iter_errors(yaml.safe_load(GOOD)))
    for bad in ({"policies": {"a": {"max_restart": 1}}}, {"clusters": {"prod": {"mode": "x"}}}, {"nonsense": 1}):
        assert list(validator.iter_errors(bad))
        assert problems(json.dumps(bad))


def test_every_number_of_a_policy_is_described_in_the_schema() -> None:
    described = json_schema()["$defs"]["PolicyEntry"]["properties"]
    assert set(described) == {"extends", *Policy.model_fields}
    assert [name for name, field in described.items() if not field.get("description")] == []


@settings(max_examples=2_000, deadline=None)
@given(st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_tell_what_is_wrong(text: str) -> None:
    for whole in (text, "policies:\n  a: " + text, "clusters: {prod: {mode: act}}\n" + text):
        with contextlib.suppress(PolicyFileError):
            parse(whole, "policy.yaml")


def test_the_parser_reads_no_file(tmp_path: Path) -> None:
    # The name is only for messages: it need not exist.
    assert parse("", str(tmp_path / "absent.yaml")).file.endswith("absent.yaml")
