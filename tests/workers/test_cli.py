"""The `relight` command as a whole: help, versions, exit codes, checks of files, plain output on a pipe."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.workers.conftest import Relight
from workers import cli_run
from workers.cli import app
from workers.screen import clean, one_line


def command(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        **more,  # type: ignore[call-overload]
    )


def test_help_and_version_load_nothing_heavy() -> None:
    code = (
        "import sys; from workers.cli import main; assert main(['--version']) == 0; "
        "heavy = {'temporalio', 'sqlalchemy', 'pydantic', 'hyperscan', 'ClusterShell'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("relight ")


def test_help_is_plain_text_and_brings_nothing_to_draw_it_with() -> None:
    code = (
        "import sys; from workers.cli import main; assert main(['--help']) == 0; "
        "heavy = {'rich', 'markdown_it', 'pygments', 'pydantic'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert "Exit codes: 0 done; 1 refused" in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2].partition("Examples:")[0]


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    for child, one in children.items():
        yield from _commands(f"{name} {child}".strip(), one)
    if name and not (children and not command.invoke_without_command):
        yield name, command


COMMANDS = dict(_commands("", get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_examples_that_it_understands(relight: Relight, name: str) -> None:
    shown = relight(*name.split(), "--help")
    assert shown.code == 0
    examples = shown.out.partition("Examples:\n")[2].splitlines()
    assert any(f"relight {name}" in line for line in examples)
    options = {word for one in COMMANDS[name].params for word in (*one.opts, *one.secondary_opts)}
    for line in examples:
        words = shlex.split(line, comments=True)
        own = words[words.index("relight") + 1 :] if "relight" in words else []
        if " ".join(own).startswith(name) and name != "demo":
            given = {word for word in own if word.startswith("--")}
            assert given <= options, line
    assert name in {"worker", "demo", "console"} or "--json" in options


def test_the_shell_completes_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"_RELIGHT_COMPLETE": "complete_bash", "COMP_WORDS": "relight pol", "COMP_CWORD": "1"}
    done = command(env={**os.environ, **asked})
    assert done.stdout.split() == ["policy"]


def test_every_command_stands_in_the_help(relight: Relight) -> None:
    shown = relight("--help")
    assert shown.code == 0
    for name in (
        "demo",
        "worker",
        "jobs",
        "show",
        "pause",
        "resume",
        "force",
        "approve",
        "diagnose",
        "policy",
        "config",
    ):
        assert name in shown.out


@pytest.mark.parametrize(
    "words",
    [("nonsense",), ("show",), ("force", "prod-1"), ("jobs", "--limit", "0"), ("policy", "check")],
)
def test_wrong_usage_ends_with_2(relight: Relight, words: tuple[str, ...]) -> None:
    assert relight(*words).code == 2


def test_output_on_a_pipe_is_plain_and_errors_go_to_stderr(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {a: {max_restarts: 3}}\nclusters: {prod: {mode: act}}\n")
    done = command("policy", "check", str(policy))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "a        max_restarts 3" in done.stdout
    bad = command("policy", "check", str(tmp_path / "absent.yaml"))
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("relight: policy file ")


def test_a_reader_that_has_enough_is_no_error_worth_a_traceback() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m workers.cli policy schema | head -c 10"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert "Traceback" not in done.stderr


def test_a_wrong_policy_file_is_told_line_by_line(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("policies:\n  a: {max_restart: 3}\n")
    told = relight("policy", "check", str(path))
    assert told.code == 2
    assert f"{path}:2: policies.a.max_restart: is not known; did you mean max_restarts?" in told.err
    machine = relight("policy", "check", str(path), "--json")
    assert machine.code == 2
    assert "max_restarts?" in machine.json["error"]


def test_a_good_policy_file_is_shown_with_what_holds_where(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "policies: {a: {lease_s: 90}}\nclusters: {prod: {mode: act, partitions: {debug: {mode: monitor}}}}\n"
    )
    shown = relight("policy", "check", str(path))
    assert shown.code == 0
    assert "lease_s 90" in shown.out
    assert "partition debug: monitor" in shown.out
    machine = relight("policy", "check", str(path), "--json").json
    assert machine["ok"]
    assert machine["modes"] == {"prod": "act"}
    assert machine["policies"]["a"]["lease_s"] == 90


def test_what_a_job_would_get_is_told_and_an_ask_beyond_its_limits_refused(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("policies: {default: {max_restarts: 4}}\nclusters: {prod: {partitions: {gpu: {mode: act}}}}\n")
    where = ("--cluster", "prod", "--partition", "gpu")
    fine = relight("policy", "check", str(path), *where, "--comment", '{"relight": {"max_restarts": 2}}')
    assert (fine.code, fine.err) == (0, "")
    assert "mode act (set by partition gpu)" in fine.out
    beyond = relight("policy", "check", str(path), *where, "--comment", '{"relight": {"max_restarts": 50}}')
    assert beyond.code == 1
    assert f"refused: {path}: policies.default.max_restarts: the job asks for relight.max_restarts 50" in " ".join(
        beyond.out.split()
    )
    machine = relight("policy", "check", str(path), *where, "--comment", '{"relight": {"policy": "x"}}', "--json")
    assert machine.code == 1
    assert (machine.json["ok"], machine.json["values"]["max_restarts"]) == (False, 4)
    assert "policy 'x' is not one that a job may ask for" in machine.json["refused"][0]


def test_the_rules_and_the_schema_are_printed(relight: Relight) -> None:
    assert relight("policy", "table").out.startswith("| rule | situation | advice |")
    assert {"rule", "situation", "advice"} == set(relight("policy", "table", "--json").json[0])
    assert relight("policy", "schema").json["title"] == "relight policy file"


def test_the_effective_configuration_is_printed_without_secrets(
    relight: Relight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("clusters: {prod: {mode: approve}, gone: {mode: act}}\n")
    path = tmp_path / "own.yaml"
    path.write_text(f"database: {{url: 'mysql://u:sesame@h/db'}}\npolicy_file: {policy}\nclusters: {{prod: {{}}}}\n")
    monkeypatch.setenv("RELIGHT_SWEP__INTERVAL_S", "1")
    shown = relight("config", "check", "-c", str(path))
    assert shown.code == 0
    assert "mysql://u:***@h/db" in shown.out
    assert "# cluster prod: mode approve" in shown.out
    assert "sesame" not in shown.out + shown.err
    assert "RELIGHT_SWEP__INTERVAL_S is not read" in shown.err
    assert "cluster gone is not configured here" in shown.err
    assert "# job logs: the jobs' own output files" in shown.out
    machine = relight("config", "check", "-c", str(path), "--json").json
    assert machine["modes"] == {"prod": "approve"}
    assert len(machine["warnings"]) == 2
    assert "sesame" not in json.dumps(machine)


def test_what_everybody_can_read_is_told(relight: Relight, config: Path, tmp_path: Path) -> None:
    (tmp_path / "audit.db").touch(0o644)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
        if folder.name.startswith("pytest-of-"):
            break
    assert f"database.url: {tmp_path}/audit.db can be read by everybody" in relight("config", "check").err
    (tmp_path / "audit.db").chmod(0o640)
    assert f"{tmp_path}/audit.db can be read" not in relight("config", "check").err


def test_what_is_likely_a_mistake_about_the_log_store_is_told(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    logs = "{kind: loki, url: 'http://loki:3100', token_file: /nowhere/token}"
    path.write_text(f"clusters: {{a: {{}}, b: {{}}}}\ntelemetry: {{logs: {logs}}}\n")
    shown = relight("config", "check", "-c", str(path))
    assert shown.code == 0
    assert "# job logs: only loki at http://loki:3100 (telemetry.logs.prefer: store)" in shown.out
    assert "telemetry.logs.selector does not hold {cluster}" in shown.err
    assert "telemetry.logs.token_file: /nowhere/token cannot be read" in shown.err


def test_a_missing_configuration_shows_a_minimal_one(relight: Relight) -> None:
    for words in (("config", "check"), ("jobs",), ("show", "prod-1"), ("pause", "prod-1"), ("worker",)):
        told = relight(*words)
        assert told.code == 2
        assert "clusters:\n  prod:" in told.err


def test_outside_a_checkout_the_demo_says_where_it_is(relight: Relight, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_run, "checkout", lambda: None)
    told = relight("demo", "--keep")
    assert told.code == 2
    assert "./dev demo" in told.err


def test_in_a_checkout_the_demo_is_handed_over_with_its_options(
    relight: Relight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(cli_run, "checkout", lambda: tmp_path)
    monkeypatch.setattr(cli_run.os, "execv", lambda path, words: started.append([str(path), *words]))
    assert relight("demo", "--keep", "--json").code == 0
    assert started == [[str(tmp_path / "dev"), str(tmp_path / "dev"), "demo", "--keep", "--json"]]


def test_text_from_a_job_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2J\x07b\u202ec\nd") == "a\ufffd[2J\ufffdb\ufffdc\nd"
    assert one_line("a\nJob 1 finished\x1b") == "a\ufffdJob 1 finished\ufffd"
