"""The gate's words: what it takes, what it refuses before it runs anything, and that old Pythons can run it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from activities.slurm import gate
from activities.slurm.transport import GATE

FENCE = ("12", "0", "1795990100")
# Written after 3.6 and easily added by a formatter or a linter: keyword -> functions that took it up later.
LATER_KEYWORDS = {"strict": {"zip"}, "capture_output": {"run"}, "text": {"run", "Popen"}, "missing_ok": {"unlink"}}


def ask(*words: str, env: dict[str, str] | None = None) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(GATE), *words],
        env=env or {"PATH": "/nonexistent"},
        capture_output=True,
        check=False,
    )
    answer: dict[str, object] = json.loads(done.stdout)
    assert done.returncode == (0 if answer["ok"] else 1)
    assert done.stderr == b""
    return answer


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("squeue",),
        ("job",),
        ("job", "1", "2"),
        ("job", "0"),
        ("job", "-1"),
        ("job", "1;id"),
        ("job", "1,2"),
        ("job", "12_"),
        ("job", "12_3\n"),
        ("job", "12_[1-3]"),
        ("job", "99999999999"),
        ("job", "1", "--exclude", "n01"),
        ("stop", "12", "0"),
        ("stop", "12", "-1", "1795990100"),
        ("stop", "12", "0", "soon"),
        ("stop", "12", "0", "1e9"),
        ("stop", *FENCE, "--signal"),
        ("signal", *FENCE),
        ("signal", *FENCE, "--signal", "STOP"),
        ("signal", *FENCE, "--signal", "9"),
        ("signal", *FENCE, "--signal", "USR1", "--to", "everybody"),
        ("relatives", "12", "--failed-at", "now"),
        ("reservations", "12"),
        ("restart", *FENCE),
        ("restart", *FENCE, "--start-in"),
        ("restart", *FENCE, "--start-in", "now"),
        ("restart", *FENCE, "--start-in", "4"),
        ("restart", *FENCE, "--start-in", "99999999"),
        ("restart", *FENCE, "--start-in", "5", "--exclude", "n[01-04]"),
        ("restart", *FENCE, "--start-in", "5", "--exclude", "@all"),
        ("restart", *FENCE, "--start-in", "5", "--exclude", "n01 StartTime=now"),
        ("restart", *FENCE, "--start-in", "5", "--exclude", "-n01"),
        ("restart", *FENCE, "--start-in", "5", "--exclude", "n01,,n02"),
        ("restart", *FENCE, "--start-in", "5", "--allow", "everything"),
        ("restart", *FENCE, "--start-in", "5", "--state-ok", "FAILED;COMPLETED"),
        ("restart", *FENCE, "--start-in", "5", "--children", "1 2"),
        ("lease", *FENCE),
        ("rearm", "12", "13"),
        ("drain", "n01", "12", "1795990100"),
        ("drain", "n01", "12", "1795990100", "--why", "xid 79", "--until", "1795990100", "--leave", "1"),
        ("drain", "n01", "12", "1795990100", "--why", "xid.79;id", "--until", "1795990100", "--leave", "1"),
        ("drain", "n01", "12", "1795990100", "--why", "xid.79", "--until", "1795990100", "--leave", "0"),
        ("drain", "n[01-02]", "12", "1795990100", "--why", "xid.79", "--until", "1795990100", "--leave", "1"),
        ("drain", "ALL,n01", "12", "1795990100", "--why", "xid.79", "--until", "1795990100", "--leave", "1"),
        ("undrain", "n01", "12", "1795990100"),
        ("undrain", "n01", "12", "1795990100", "--leave", "1"),
        ("hold", *FENCE),
        ("hold", *FENCE, "--nodes", "n01", "--minutes", "0", "--most", "1"),
        ("hold", *FENCE, "--nodes", "n01", "--minutes", "61", "--most", "1"),
        ("hold", *FENCE, "--nodes", "all", "--minutes", "5"),
        ("unhold", "12", "1795990100"),
    ],
)
def test_a_request_that_is_not_understood_runs_nothing(words: tuple[str, ...]) -> None:
    answer = ask(*words)
    assert answer["ok"] is False
    error = answer["error"]
    assert isinstance(error, dict)
    assert error["kind"] == "bad_request"
    assert len(str(error["message"])) > 10


def test_options_are_read_by_their_meaning() -> None:
    words = gate.parse(["restart", "12_3", "1", "1795990100", "--exclude", "n02,n01", "--start-in", "60", "--again"])
    assert (words.job(), words.number("COUNT"), words.names("--exclude")) == ("12_3", 1, ["n01", "n02"])
    assert (words.flag("--again"), words.flag("--dry-run")) == (True, False)
    assert gate.lease_words(words, ["n01", "n02"]) == ["ExcNodeList=n01,n02", "StartTime=now+60"]
    cleared = gate.parse(["lease", *FENCE, "--exclude", ""])
    assert gate.lease_words(cleared, []) == ["ExcNodeList="]


def test_settings_come_from_the_file_and_the_environment_wins(tmp_path: Path) -> None:
    config = tmp_path / "gate.json"
    config.write_text(json.dumps({"dir": str(tmp_path / "a"), "ceiling": 7}))
    env = {"PATH": "/nonexistent", "RELIGHT_GATE_CONFIG": str(config)}
    assert f"{tmp_path}/a is missing" in str(ask("stop", *FENCE, env=env)["error"])
    env["RELIGHT_GATE_DIR"] = str(tmp_path / "b")
    assert f"{tmp_path}/b is missing" in str(ask("stop", *FENCE, env=env)["error"])
    env["RELIGHT_GATE_CEILING"] = "many"
    assert "ceiling is 'many': expected a number" in str(ask("ping", env=env)["error"])
    for content, said in (
        ("{", "is not valid"),
        ("[]", "not a JSON object"),
        (None, "cannot read the gate's settings"),
    ):
        config.unlink() if content is None else config.write_text(content)
        assert said in str(ask("ping", env=env)["error"])


def test_only_its_own_environment_reaches_slurm(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n/usr/bin/env > "${0%/*}/seen"\necho "Slurmctld(primary) at x is UP"\n')
    program.chmod(0o755)
    env = {"PATH": str(tmp_path), "SLURM_CONF": "/x/slurm.conf", "SQUEUE_FORMAT": "%i", "SLURM_CLUSTERS": "other",
           "SACCT_FORMAT": "jobid", "SCONTROL_ALL": "1", "HOME": "/root"}  # fmt: skip
    assert ask("ping", env=env)["ok"] is True
    seen = {line.split("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {"PATH", "LC_ALL", "SLURM_TIME_FORMAT", "SLURM_CONF"} <= seen
    assert not {name for name in seen if name.startswith(("SQUEUE_", "SACCT_", "SCONTROL_"))}
    assert {name for name in seen if name.startswith("SLURM_")} == {"SLURM_TIME_FORMAT", "SLURM_CONF"}


def test_dependencies_are_taken_over_as_an_update_wants_them() -> None:
    parent = {"JobID": b"5", "ArrayJobID": b"5", "ArrayTaskID": b"N/A"}
    assert gate.rearmed("afterok:5(failed)", parent) == ("afterok:5", True)
    told = "afterok:5(failed),afterany:7(unfulfilled),after:8+10(unfulfilled),singleton(unfulfilled)"
    assert gate.rearmed(told, parent) == ("afterok:5,afterany:7,after:8+10,singleton", True)
    assert gate.rearmed("afterok:5(failed)?afterok:6_*(unfulfilled)", parent) == ("afterok:5?afterok:6", True)
    assert gate.rearmed("afterany:5(unfulfilled)", parent) == ("afterany:5", False)
    for strange in ("afterok:5(failed),expand:9", "afterok:5(failed)?afterok:6,afterok:7", "whatever"):
        with pytest.raises(gate.Refusal):
            gate.rearmed(strange, parent)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "slurmctld_away"),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", "slurmctld_away"),
        ("Unexpected message received for job 1", "slurmctld_away"),
        ("slurm_load_jobs error: Zero Bytes were transmitted or received", "slurmctld_away"),
        ("slurm_load_jobs error: Protocol authentication error", "slurmctld_away"),
        ("slurm_load_jobs error: Invalid job id specified", "unknown_job"),
        ("Job 12_9 not found", "unknown_job"),
        ("Access/permission denied for job 2", "denied"),
        ("Invalid user id for job 2", "denied"),
        ("Only batch jobs are accepted or processed for job 17", "not_restartable"),
        ("Job not heterogeneous job leader for job 16", "not_restartable"),
        ("Requested operation is presently disabled for job 3", "not_restartable"),
        ("Job has already finished for job 2", "finished"),
        ("Job is pending execution for job 9", "not_pending"),
        ("Invalid node name specified for job 11", "unknown_node"),
        ("something nobody has seen before", "slurm_error"),
    ],
)
def test_slurms_own_words_have_a_kind(said: str, kind: str) -> None:
    refusal = gate.failure(["scontrol", "requeue", "1"], said)
    assert (refusal.kind, said in refusal.message) == (kind, True)


def test_the_script_is_valid_for_python_3_6_and_imports_the_standard_library_only() -> None:
    tree = ast.parse(GATE.read_text(encoding="utf-8"), feature_version=(3, 6))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= {"base64", "errno", "fcntl", "json", "os", "re", "subprocess", "sys", "time", "typing", "zlib"}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        for keyword in call.keywords:
            assert name not in LATER_KEYWORDS.get(str(keyword.arg), set()), (
                f"line {call.lineno}: {name}({keyword.arg}=)"
            )
    methods = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not methods & {"removeprefix", "removesuffix", "run_in_executor", "shell"}
    assert not any(
        keyword.arg == "shell" for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords
    )
