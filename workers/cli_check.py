"""Commands that check files and print what holds: policy files, the table of rules, the configuration."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from workers.naming import settings_of
from workers.screen import UNUSABLE, Trouble, print_json, say, table


def read_policy(path: Path) -> Any:
    """The checked policy file. Ends the command with every problem in it."""
    from recovery.policy_file import PolicyFileError, parse

    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except PolicyFileError as error:
        raise Trouble(f"{path} cannot be used:\n{error}", UNUSABLE) from None
    except UnicodeDecodeError:
        raise Trouble(f"policy file {path} is not UTF-8 text", UNUSABLE) from None
    except OSError as error:
        raise Trouble(f"policy file {path} cannot be read: {error.strerror}", UNUSABLE) from None


class JobWords(NamedTuple):
    """A job to check a policy file with, as a person describes it."""

    comment: str | None
    cluster: str
    partition: str
    account: str
    qos: str
    user: str

    @property
    def asked(self) -> bool:
        return self.comment is not None or any(self[1:])


def check_policy(path: Path, job: JobWords | None = None, *, as_json: bool) -> None:
    policies = read_policy(path)
    if job is not None:
        _check_job(policies, path, job, as_json=as_json)
        return
    modes = {name: policies.resolve(name).mode.value for name in sorted(policies.document.clusters)}
    if as_json:
        values = {name: policies.policy(name) for name in policies.names}
        print_json({"file": str(path), "ok": True, "hash": policies.hash, "policies": values, "modes": modes})
        return
    say(f"{path} is fine (hash {policies.hash})")
    usual = {name: field.default for name, field in type(policies.policy("")).model_fields.items()}
    rows = []
    for name in policies.names:
        values = policies.policy(name).model_dump(mode="json")
        plain = type(policies.policy("")).model_construct(**usual).model_dump(mode="json")
        differs = ", ".join(f"{key} {value}" for key, value in values.items() if value != plain[key])
        rows.append([name, differs or "all defaults"])
    table(["POLICY", "DIFFERS FROM THE DEFAULTS IN"], rows)
    if modes:
        table(
            ["CLUSTER", "MODE", "NARROWER"], [[name, mode, _narrower(policies, name)] for name, mode in modes.items()]
        )
    say("a cluster that is not named here is in monitor mode: relight advises and touches nothing")


def _check_job(policies: Any, path: Path, job: JobWords, *, as_json: bool) -> None:
    """What a job with that comment, at that place, would get. Ends with 1 where something of it is refused."""
    from recovery.directive import parse_comment

    parsed = parse_comment(job.comment or "")
    effective = policies.resolve(job.cluster, job.partition, job.account, parsed.directive, qos=job.qos, user=job.user)
    refused = [line for line in (parsed.error, effective.refused and f"{path}: {effective.refused}") if line]
    refused += effective.cut
    opted_in = not parsed.opted_out and (parsed.opted_in or effective.opt_in)
    if as_json:
        print_json(
            {
                "file": str(path),
                "ok": not refused,
                "opted_in": opted_in,
                "mode": effective.mode,
                "mode_from": effective.mode_from,
                "policy": effective.name,
                "policy_from": effective.policy_from,
                "values": effective.policy,
                "refused": refused,
            }
        )
    else:
        say("the job is watched" if opted_in else "the job does not opt in: it is left alone")
        say(f"mode {effective.mode.value} (set by {effective.mode_from})")
        say(f"policy {effective.name} (named by {effective.policy_from})")
        for line in refused:
            say(f"refused: {line}")
    if refused:
        raise SystemExit(1)


def _narrower(policies: Any, cluster: str) -> str:
    place = policies.document.clusters[cluster]
    found = []
    found += [f"at most {place.at_most.value}"] if place.at_most else []
    found += ["allow-list"] if place.only else []
    kinds = (("account", place.accounts), ("qos", place.qos), ("partition", place.partitions), ("user", place.users))
    for kind, scopes in kinds:
        for name, scope in scopes.items():
            said = [scope.mode.value] if scope.mode else []
            said += ["allow-list"] if scope.only else []
            said += [f"policy {scope.policy}"] if scope.policy else []
            said += [f"opt_in {'on' if scope.opt_in else 'off'}"] if scope.opt_in is not None else []
            found.append(f"{kind} {name}: {', '.join(said) or 'as the cluster'}")
    return "; ".join(found) or "-"


def print_rules(*, as_json: bool) -> None:
    from recovery.policy import RULES, rules_table_markdown

    if as_json:
        print_json([{"rule": rule.id, "situation": rule.situation, "advice": rule.advice} for rule in RULES])
    else:
        sys.stdout.write(rules_table_markdown())


def print_schema() -> None:
    from recovery.policy_file import json_schema

    print_json(json_schema())


def check_config(config: Path | None, *, as_json: bool) -> None:
    import yaml

    from workers.cli_doctor import logs_in_words
    from workers.settings import find_config, printable, unknown_variables

    settings = settings_of(config)
    warnings = [f"environment variable {name} is not read by any setting" for name in unknown_variables()]
    policies = read_policy(settings.policy_file) if settings.policy_file is not None else None
    modes = {name: policies.resolve(name).mode.value if policies else "monitor" for name in sorted(settings.clusters)}
    if policies:
        strangers = sorted(set(policies.document.clusters) - set(settings.clusters))
        warnings += [f"{settings.policy_file}: cluster {name} is not configured here" for name in strangers]
    warnings += _about_logs(settings) + _open_to_everybody(settings)
    path = find_config(config)
    if as_json:
        given = {"file": str(path) if path else None, "settings": printable(settings), "modes": modes}
        print_json({**given, "job_logs": logs_in_words(settings), "warnings": warnings})
        return
    say(f"# from {path if path else 'the environment alone'}")
    say(yaml.safe_dump(printable(settings), sort_keys=False, default_flow_style=False).rstrip())
    for name, mode in modes.items():
        say(f"# cluster {name}: mode {mode}")
    say(f"# {logs_in_words(settings)}")
    for warning in warnings:
        print(f"relight: warning: {warning}", file=sys.stderr)


def _open_to_everybody(settings: Any) -> list[str]:
    """What relight keeps and every user of this machine can read."""
    from activities.audit.engine import parse, sqlite_file

    with contextlib.suppress(ValueError):  # told by the commands that use it
        kept = {"database.url": sqlite_file(parse(settings.database_url)), "evidence_dir": settings.evidence_dir}
        return [
            f"{key}: {path} can be read by everybody, and holds lines of jobs' logs: chmod o= {path}"
            for key, path in kept.items()
            if path is not None and _mode(path) & 0o007
        ]
    return []


def _mode(path: Path) -> int:
    """Zero where a user without rights cannot even reach it."""
    try:
        reachable = all(folder.stat().st_mode & 0o001 for folder in path.absolute().parents)
        return path.stat().st_mode if reachable else 0
    except OSError:
        return 0


def _about_logs(settings: Any) -> list[str]:
    """What is likely to be a mistake in telemetry.logs."""
    given = settings.telemetry.logs
    if given is None:
        return []
    found = []
    if len(settings.clusters) > 1 and "{cluster}" not in given.selector:
        found.append(
            "telemetry.logs.selector does not hold {cluster}, though several clusters are configured: jobs of one "
            "number on two clusters would be taken for one"
        )
    for key in ("token_file", "login_file", "headers_file", "server_ca", "client_cert", "client_key"):
        path = getattr(given, key)
        if path is not None and not os.access(path, os.R_OK):
            found.append(f"telemetry.logs.{key}: {path} cannot be read by this account")
    return found
