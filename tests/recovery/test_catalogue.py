"""The fault catalogue: what it holds, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from recovery.faults.catalogue import BUILT_IN, Catalogue, CatalogueError, Signature, schema
from recovery.faults.scanner import Scanner
from recovery.records import FaultClass, Retry, Role

BUILT_IN_CATALOGUE = Catalogue.built_in()

GOOD = """
version: 1
signatures:
  - id: site.switch
    title: The switch agent complains
    pattern: 'switch agent: port (?:down|flapping)'
    class: interconnect
    role: root
    retry: yes
    node: reporter
    extract: ['on (?P<node>[a-z0-9]+)']
    examples: ["switch agent: port down on n07"]
    near_misses: ["switch agent: port up on n07"]
"""


def ids(catalogue: Catalogue) -> list[str]:
    return [one.id for one in catalogue.signatures]


def matches(signature: Signature, line: str) -> bool:
    """Whether the scanner, as it is used, finds this signature in the line."""
    scanner = Scanner(BUILT_IN_CATALOGUE)
    found = [hit.signature.id for hit in [*scanner.feed(line.encode() + b"\n"), *scanner.finish()]]
    return any(name == signature.id or name.startswith(f"{signature.id}.") for name in found)


@pytest.mark.parametrize("signature", BUILT_IN_CATALOGUE.signatures, ids=ids(BUILT_IN_CATALOGUE))
def test_an_entry_is_found_in_its_examples_and_not_in_its_near_misses(signature: Signature) -> None:
    assert [line for line in signature.examples if not matches(signature, line)] == []
    assert [line for line in signature.near_misses if matches(signature, line)] == []


def test_start_up_settings_and_advice_are_no_fault() -> None:
    lines = [
        "distributed_timeout_minutes ..................... 10",
        "error_injection_rate ............................ 0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        " number of nan iterations:   0 |",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "n01:12:14 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
        "libcudart.so.12: cannot open shared object file",
        "mlx5_0 Got async event : client reregistration",
        "[W] process group has NOT been destroyed before we destruct ProcessGroupNCCL",
        "CUDA kernel errors might be asynchronously reported at some other API call",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "INFO:hypercorn.error:Running on http://0.0.0.0:8000",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "NVRM: Port: 1 Link INIT",
        "epoch 3: loss 1.2e-3, inf check passed",
    ]
    scanner = Scanner(BUILT_IN_CATALOGUE)
    found = scanner.feed("".join(f"{line}\n" for line in lines).encode())
    assert [(hit.signature.id, hit.text) for hit in found] == []


def test_the_number_of_an_xid_decides_its_class() -> None:
    xid = BUILT_IN_CATALOGUE["xid"]
    assert (xid.variant("79").id, xid.variant("79").fault_class) == ("xid.79", FaultClass.HARDWARE)
    assert (xid.variant("13").fault_class, xid.variant("13").retry) == (FaultClass.APPLICATION, Retry.ONCE)
    assert xid.variant("74").fault_class is FaultClass.INTERCONNECT
    assert xid.variant("45").role is Role.CASCADE
    assert xid.variant("63").role is Role.BENIGN
    assert (xid.variant("999").id, xid.variant("999").role) == ("xid.999", Role.SYMPTOM)


def test_every_class_that_a_policy_decides_on_is_there() -> None:
    classes = {one.fault_class for one in BUILT_IN_CATALOGUE.signatures}
    assert classes >= set(FaultClass) - {FaultClass.SCHEDULER} - {FaultClass.NONE}
    assert len(BUILT_IN_CATALOGUE.signatures) >= 20


def test_a_site_adds_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(GOOD)
    catalogue = Catalogue.built_in(path)
    assert ids(catalogue)[-1] == "site.switch"
    assert catalogue["site.switch"].retry is Retry.YES  # the word, not YAML's boolean
    (hit,) = Scanner(catalogue).feed(b"switch agent: port flapping on n07\n")
    assert (hit.signature.id, hit.fields["node"]) == ("site.switch", "n07")


def test_the_hash_is_of_the_content_and_not_of_its_layout(tmp_path: Path) -> None:
    first, second, third = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "c.yaml"
    first.write_text(GOOD)
    second.write_text("# another layout\n" + GOOD.replace("class: interconnect", "class:   interconnect  # same"))
    third.write_text(GOOD.replace("retry: yes", "retry: once"))
    assert Catalogue.load([first]).hash == Catalogue.load([second]).hash != Catalogue.load([third]).hash


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("'switch agent: port (?:down|flapping)'", "'agent(?=: port)'", "pattern: invalid perl operator"),
        ("'switch agent: port (?:down|flapping)'", "'(agent) \\1'", "pattern: invalid escape"),
        ("'switch agent: port (?:down|flapping)'", "'switch (agent'", "missing )"),
        ("'switch agent: port (?:down|flapping)'", "'switch agent: port.*'", "ends in * or +"),
        ("'switch agent: port (?:down|flapping)'", "'switch agent: port [a-z]{2,}'", "ends in * or +"),
        ("'switch agent: port (?:down|flapping)'", "'\\Aswitch agent: port (?:down|flapping)'", "write ^ and $"),
        ("'switch agent: port (?:down|flapping)'", "'(?:port)?'", "matches the empty line"),
        ("'switch agent: port (?:down|flapping)'", "'switch agent: plug'", "does not match its own example"),
        ("'switch agent: port (?:down|flapping)'", "'switch agent: port'", "matches its own near miss"),
        ("'on (?P<node>[a-z0-9]+)'", "'on (?P<machine>[a-z0-9]+)'", "group 'machine' is not one of"),
        ("'on (?P<node>[a-z0-9]+)'", "'on ([a-z0-9]+)'", "no named group"),
        ("class: interconnect", "class: cosmic", "class: Input should be"),
        ("node: reporter", "nodes: reporter", "nodes: Extra inputs"),
        ("role: root", "role: culprit", "role: Input should be"),
        ('examples: ["switch agent: port down on n07"]', "examples: []", "examples: Tuple should have at least 1"),
        ('    near_misses: ["switch agent: port up on n07"]\n', "", "near_misses: Field required"),
        ("id: site.switch", "id: Site Switch", "id: String should match"),
        ("node: reporter", "node: reporter\n    by: xid", "no extract captures 'xid'"),
    ],
)
def test_a_wrong_entry_is_refused_with_file_entry_and_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "site.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(CatalogueError) as refused:
        Catalogue.load([path])
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert "site.switch" in message or "Site Switch" in message


def test_a_pattern_that_only_hyperscan_refuses_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(GOOD.replace("pattern: '", "pattern: '(?U)"))
    with pytest.raises(CatalogueError, match=r"site\.yaml: site\.switch: pattern: Hyperscan refuses it: "):
        Catalogue.built_in(path)


@pytest.mark.parametrize(
    "text", ["", "signatures: []", "version: 1\nsignatures: {}\n", "- a\n", "a: [", "version: 7\n"]
)
def test_a_file_without_usable_signatures_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(CatalogueError):
        Catalogue.load([path])


def test_an_id_stands_only_once(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(GOOD.replace("site.switch", "cuda.ecc"))
    with pytest.raises(CatalogueError, match=r"cuda\.ecc: the id is taken in .*catalogue\.yaml"):
        Catalogue.built_in(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"nothing\.yaml: cannot be read"):
        Catalogue.load([tmp_path / "nothing.yaml"])


def test_the_schema_takes_the_built_in_file_and_refuses_an_unknown_key() -> None:
    validator = Draft202012Validator(schema())
    content = yaml.load(BUILT_IN.read_bytes(), Loader=yaml.BaseLoader)
    content["version"] = 1
    for entry in content["signatures"]:
        if "ends" in entry:
            entry["ends"] = entry["ends"] == "true"
    assert list(validator.iter_errors(content)) == []
    content["signatures"][0]["colour"] = "red"
    assert [error.message for error in validator.iter_errors(content)] != []
