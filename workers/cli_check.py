"""Commands that check files and print what holds: policy files, the table of rules, the configuration."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

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


def check_policy(path: Path, *, as_json: bool) -> None:
    policies = read_policy(path)
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


def _narrower(policies: Any, cluster: str) -> str:
    place = policies.document.clusters[cluster]
    found = []
    for kind, scopes in (("partition", place.partitions), ("account", place.accounts), ("qos", place.qos)):
        for name, scope in scopes.items():
            said = [scope.mode.value] if scope.mode else []
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
    warnings += _about_logs(settings)
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
