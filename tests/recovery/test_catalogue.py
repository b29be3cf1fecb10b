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


VARIANT = """node: reporter
    by: node
    variants: [{values: VALUES, title: x, examples: ["switch agent: port down on n07"]}]"""


def ids(catalogue: Catalogue) -> list[str]:
    return [one.id for one in catalogue.signatures]


SCANNER = Scanner(BUILT_IN_CATALOGUE)


def found_in(text: str, scanner: Scanner = SCANNER) -> list[str]:
    """The ids that a scan for all entries finds in the last line of a text."""
    last = text.count("\n") + 1
    return [hit.signature.id for hit in scanner.text(text.encode()) if hit.line == last]


def shows(signature: Signature, text: str) -> bool:
    ids_found = found_in(text)
    return any(name == signature.id or (signature.by and name.startswith(f"{signature.id}.")) for name in ids_found)


@pytest.mark.parametrize("signature", BUILT_IN_CATALOGUE.signatures, ids=ids(BUILT_IN_CATALOGUE))
def test_an_entry_is_found_in_its_examples_and_not_in_its_near_misses(signature: Signature) -> None:
    assert [text for text in signature.examples if not shows(signature, text)] == []
    assert [text for text in signature.near_misses if shows(signature, text)] == []


@pytest.mark.parametrize(
    "signature", [one for one in BUILT_IN_CATALOGUE.signatures if one.variants], ids=lambda s: s.id
)
def test_a_variant_is_found_in_its_examples(signature: Signature) -> None:
    for row in signature.variants:
        found = {name for text in row.examples for name in found_in(text)}
        assert {signature.variant(value).id for value in row.values} <= found


ROWS: dict[int, tuple[str, ...]] = {
    1: ("nccl.watchdog_timeout",),
    2: ("nccl.watchdog_stuck",),
    3: ("nccl.watchdog_died",),
    4: ("net.connection_lost",),
    5: ("net.unreachable", "net.no_route"),
    6: ("ib.completion_error",),
    7: ("ib.flushed",),
    8: ("ib.local_error",),
    9: ("ib.port_error",),
    10: ("ib.adapter_failed",),
    11: ("ib.notice",),
    12: ("ofi.undeliverable",),
    13: ("net.carrier_lost", "net.carrier_lost_lan"),
    14: ("cuda.ecc",),
    15: ("cuda.nvlink",),
    16: ("cuda.launch_failure",),
    17: ("cuda.illegal_access",),
    18: ("cuda.device_assert",),
    19: ("cuda.out_of_memory", "cuda.fragmented"),
    20: ("cuda.busy",),
    21: ("slurm.oom_kill", "srun.out_of_memory"),
    22: ("kernel.oom_kill",),
    23: ("torchelastic.exit", "torchelastic.failed", "process.killed", "srun.killed"),
    24: ("process.shared_memory",),
    25: ("process.segfault", "kernel.segfault", "srun.segfault"),
    26: ("torchelastic.child_failed", "torchelastic.host", "torchelastic.rank", "torchelastic.exit"),
    27: ("rendezvous.timeout", "rendezvous.unreachable", "rendezvous.lost"),
    28: ("store.lost",),
    29: ("gloo.timeout_in_save",),
    30: ("checkpoint.write_failed", "checkpoint.short_write", "storage.io_error", "storage.full"),
    31: ("checkpoint.corrupt", "checkpoint.bad_metadata"),
    32: ("storage.stale_handle",),
    33: ("storage.server_away", "kernel.hung_task"),
    34: ("container.import_failed", "container.registry_busy", "container.image_refused", "container.downloading"),
    35: ("container.not_started",),
    36: ("slurm.launch_failed",),
    37: ("slurm.launch_aborted",),
    38: ("pmix.mismatch",),
    39: ("pmix.lost",),
    40: ("slurm.ended_by_node_failure", "slurm.node_failure"),
    41: ("slurm.ended_by_time_limit",),
    42: ("slurm.ended_by_preemption",),
    43: ("slurm.ended_by_requeue",),
    44: ("slurm.cancelled",),
    45: ("slurm.ended_by_task_failure",),
    46: ("slurm.unkillable",),
    47: ("slurm.controller_away",),
    48: ("training.nan",),
    49: ("training.rerun_elsewhere",),
    50: ("training.silent_nan",),
    51: ("training.loss_scale",),
    52: ("gpu.lost",),
    53: ("gpu.probe_hangs",),
    54: ("jax.lost", "jax.missing_task"),
    55: (
        "python.import_error",
        "python.exception",
        "python.bad_arguments",
        "python.syntax_error",
        "torch.shape_mismatch",
    ),
}
"""Known kinds of trouble by number, and the entries that stand for them. A hang without a text and a sustained slow
step (56, 57) are told by progress and not by a line: stopped.py, hang.py, straggler.py."""


@pytest.mark.parametrize("row", ROWS)
def test_every_known_kind_of_trouble_has_its_entries(row: int) -> None:
    assert set(ROWS[row]) <= set(ids(BUILT_IN_CATALOGUE))


XIDS = {
    Role.ROOT: {13, 31, 46, 48, 62, 64, 74, 79, 94, 95, 109, 110, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148, 149}
    | {150, 155, 156, 158},
    Role.SYMPTOM: {43, 68, 171, 172},
    Role.CASCADE: {45},
    Role.BENIGN: {63, 92, 154},
}


@pytest.mark.parametrize(("role", "number"), [(role, number) for role, them in XIDS.items() for number in sorted(them)])
def test_every_xid_has_its_meaning(role: Role, number: int) -> None:
    (hit,) = SCANNER.text(f"[88.1] NVRM: Xid (PCI:0000:9b:00): {number}, pid=4711, name=python".encode())
    assert (hit.signature.id, hit.signature.role) == (f"xid.{number}", role)
    assert (hit.fields["pci"], hit.fields["xid"]) == ("0000:9b:00", str(number))
    assert hit.signature.title != BUILT_IN_CATALOGUE["xid"].title
    (other,) = SCANNER.text(f"[88.1] NVRM: Xid (PCI:0000:9b:00): {number}9, pid=4711, name=python".encode())
    assert other.signature.id == f"xid.{number}9"


def test_what_nvlink_repairs_by_itself_is_no_fault() -> None:
    fatal, repaired = (
        f"NVRM: Xid (PCI:0004:01:00): 149, NETIR {word} XC0 i0 Link 07" for word in ("Fatal", "Nonfatal")
    )
    assert found_in(fatal) == ["xid.149"]
    assert found_in(repaired) == ["nvlink.repaired"]


def test_a_gpu_off_the_bus_is_told_over_three_lines() -> None:
    lines = [
        "Nov 12 03:14:15 n07 kernel: NVRM: The NVIDIA GPU 0000:9b:00.0",
        "Nov 12 03:14:15 n07 kernel: NVRM: (PCI ID: 10de:2330) installed in this system has",
        "Nov 12 03:14:15 n07 kernel: NVRM: fallen off the bus and is not responding to commands.",
    ]
    (hit,) = SCANNER.text("\n".join(lines).encode())
    assert (hit.signature.id, hit.line, hit.fields) == ("gpu.fallen_off", 3, {"pci": "0000:9b:00.0", "node": "n07"})
    assert found_in("\n".join([lines[0], *["something else"] * 3, lines[2]])) == []


def test_lines_before_are_found_in_the_block_before_too() -> None:
    text = BUILT_IN_CATALOGUE["gpu.fallen_off"].examples[0].encode() + b"\n"
    scanner = Scanner(BUILT_IN_CATALOGUE)
    hits = [hit for line in text.splitlines(keepends=True) for hit in scanner.feed(line)]
    assert [hit.signature.id for hit in hits] == ["gpu.fallen_off"]


def test_what_another_rank_wrote_does_not_stand_before_a_line() -> None:
    before, timeout = '  File "x.py", line 9, in save_checkpoint', "Timed out waiting 1800000ms for recv operation"
    assert found_in(f"[rank1]: {before}\n[rank1]: {timeout}") == ["gloo.timeout_in_save"]
    assert found_in(f"[rank1]: {before}\n[rank2]: {timeout}") == ["gloo.timeout"]


def test_a_line_that_the_program_tries_again_is_no_fault() -> None:
    lost = "wandb: Network error (ConnectionResetError: Connection reset by peer)"
    assert found_in(f"{lost}, entering retry loop.") == ["note.retried"]
    assert found_in(lost) == ["net.connection_lost"]


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
    found = SCANNER.text("".join(f"{line}\n" for line in lines).encode())
    assert [(hit.signature.id, hit.text) for hit in found if hit.signature.role is not Role.BENIGN] == []


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
    assert classes == set(FaultClass)
    assert len(BUILT_IN_CATALOGUE.signatures) >= 100


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
        ("node: reporter", "node: reporter\n    before: ['(unclosed']", "missing )"),
        ("node: reporter", "node: reporter\n    before: ['never (?P<host>there)']", "group 'host' is not one of"),
        (
            "node: reporter",
            "node: reporter\n    before: ['never there']",
            "before: none of the 3 lines before it matches",
        ),
        ("node: reporter", "node: reporter\n    within: 1000", "within: Input should be less than or equal to 200"),
        ("node: reporter", VARIANT.replace("VALUES", '["n08"]'), "shows 'n07', expected node n08"),
        ("node: reporter", VARIANT.replace("VALUES", '["n07", "n08"]'), "no example shows node n08"),
    ],
)
def test_a_wrong_entry_is_refused_with_file_entry_and_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "site.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(CatalogueError) as refused:
        Catalogue.load([path])
    message = str(refused.value)
    line = int(message.removeprefix(f"{path}:").split(":", 1)[0])
    first = GOOD[: GOOD.index(old)].count("\n") + 1
    lines = path.read_text().splitlines()
    told = {
        number for number, text in enumerate(lines, start=1) if text.strip().startswith(("- id", "examples", "near"))
    }
    assert line in {*range(first, first + new.count("\n") + 1), *told}
    assert reason in message
    assert "site.switch" in message or "Site Switch" in message


def test_a_pattern_that_only_hyperscan_refuses_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(GOOD.replace("pattern: '", "pattern: '(?U)"))
    with pytest.raises(CatalogueError, match=r"site\.yaml:6: site\.switch: pattern: Hyperscan refuses it: "):
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
        for key in {"ends", "starts", "hides"} & set(entry):
            entry[key] = entry[key] == "true"
        if "within" in entry:
            entry["within"] = int(entry["within"])
    assert list(validator.iter_errors(content)) == []
    content["signatures"][0]["colour"] = "red"
    assert [error.message for error in validator.iter_errors(content)] != []
