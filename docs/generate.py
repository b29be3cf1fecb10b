#!/usr/bin/env python3
"""Rewrites the generated parts of these pages from the code, so that they cannot say something else than it does.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a function in SECTIONS. Also writes the
JSON schemas in reference/. With --check nothing is written; it ends with 1 and names what is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from pydantic import BaseModel, SecretStr  # noqa: E402
from typer.main import get_command  # noqa: E402

from activities.attribution.service import AttributionRequest  # noqa: E402
from activities.audit.tables import AuditTable  # noqa: E402
from recovery import maintenance, policy_file, policy_scopes, records, scheduler  # noqa: E402
from recovery.evidence import _SILENCES  # noqa: E402
from recovery.faults import catalogue  # noqa: E402
from recovery.faults.signature import FIELDS  # noqa: E402
from recovery.grounding import answer_schema  # noqa: E402
from recovery.policy import rules_table_markdown  # noqa: E402
from recovery.policy_numbers import BeforeRestart, Policy  # noqa: E402
from workers.cli import app  # noqa: E402
from workers.settings import PREFIX, Settings  # noqa: E402

SECTION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# ------------------------------------------------------------------------------------------------ Markdown


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())


def code(value: object) -> str:
    return f"`{value}`" if str(value) else ""


# ------------------------------------------------------------------------------------------------ models


def kind_of(schema: dict[str, Any], whole: dict[str, Any]) -> str:
    """A JSON schema in a few words: its type, its bounds, its choices."""
    if "$ref" in schema:
        return kind_of(whole["$defs"][schema["$ref"].rsplit("/", 1)[1]], whole)
    if "anyOf" in schema:
        kinds = [kind_of(one, whole) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        if "items" not in schema:
            return "list"
        inner = kind_of(schema["items"], whole)
        most = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list of: {inner}{most}"
    if schema.get("type") == "object":
        return "mapping"
    words = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
    kind = words.get(str(schema.get("type")), "value")
    if schema.get("format") == "path":
        kind = "path"
    if schema.get("format") == "date-time":
        kind = "time"
    return kind + bounds(schema)


def bounds(schema: dict[str, Any]) -> str:
    low, above, high = (_figure(schema.get(key)) for key in ("minimum", "exclusiveMinimum", "maximum"))
    if low and high:
        return f", {low} to {high}"
    words = (f"at least {low}" if low else "", f"above {above}" if above else "", f"at most {high}" if high else "")
    return "".join(f", {word}" for word in words if word)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{int(value):,}" if value == int(value) else f"{value:g}"


def default_of(schema: dict[str, Any]) -> str:
    if "default" not in schema or schema["default"] is None:
        return ""
    value = schema["default"]
    if isinstance(value, dict):
        return ""
    if isinstance(value, list):
        return ", ".join(str(one) for one in value) or "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


UNITS = (
    ("node_hours", "node-hours"),
    ("_share", "share of all nodes"),
    ("_per_user", "part of the share"),
    ("_per_day", "restarts"),
    ("restarts_at_once", "jobs"),
    ("actions_per_hour", "changes"),
    ("nodes_per_hour", "nodes"),
    ("end_steps_from_nodes", "nodes"),
    ("_bytes", "bytes"),
    ("max_restarts", "restarts"),
    ("_codes", "exit codes"),
)


def unit_of(name: str) -> str:
    if name.endswith("_s"):
        return "seconds"
    return next((unit for part, unit in UNITS if part in name), "")


def policy_numbers() -> str:
    schema = Policy.model_json_schema()
    rows = [
        (
            code(name),
            default_of(one) or "none",
            unit_of(name),
            kind_of(one, schema),
            one.get("description", ""),
        )
        for name, one in schema["properties"].items()
    ]
    return table(("key", "default", "unit", "takes", "meaning"), rows)


def policy_keys() -> str:
    parts = []
    shown = (
        ("At the top of the file", policy_file.PolicyDocument),
        ("Under `clusters: NAME:`", policy_scopes.ClusterScope),
        ("Under `accounts:`, `qos:`, `partitions:` or `users:`, by name", policy_scopes.Scope),
        ("Under `only:`", policy_scopes.Only),
        ("Under `may_ask:`", policy_scopes.MayAsk),
        ("Under `maintenance:`, each entry", maintenance.Maintenance),
        ("Under `before_restart:`", BeforeRestart),
    )
    for title, model in shown:
        schema = model.model_json_schema()
        rows = [
            (code(name), default_of(one), kind_of(one, schema), one.get("description", ""))
            for name, one in schema["properties"].items()
        ]
        parts.append(f"**{title}**\n\n{table(('key', 'default', 'takes', 'meaning'), rows)}")
    return "\n".join(parts)


def settings() -> str:
    return table(("key", "environment", "default", "takes", "meaning"), _settings(Settings, (), ()))


def _settings(model: type[BaseModel], path: tuple[str, ...], variable: tuple[str, ...]) -> Iterator[Sequence[str]]:
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        one = schema["properties"][name]
        inner, many = _model_in(field.annotation)
        if inner is None:
            env = PREFIX + "__".join((*variable, name)).upper()
            yield code(_key(path, name)), code(env), code(_given(field.default, one)), kind_of(one, schema), _said(one)
            continue
        if field.default is None:  # a whole group that may be left out
            yield code(_key(path, name)), "", "", "mapping", _said(one)
        named = ("NAME",) if many else ()
        yield from _settings(inner, (*path, name, *named), (*variable, name, *named))


def _key(path: tuple[str, ...], name: str) -> str:
    return ".".join((*path, name))


def _given(default: object, one: dict[str, Any]) -> str:
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    return default_of(one)


def _said(one: dict[str, Any]) -> str:
    return str(one.get("description", ""))


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The settings model that a key holds, and whether it holds several by name; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for part in get_args(annotation):
        inner, _ = _model_in(part)
        if inner is not None:
            return inner, get_origin(annotation) is dict
    return None, False


def five_records() -> str:
    parts = []
    for model in (records.Finding, records.Verdict, records.Suspect, records.Advice, records.Outcome):
        schema = model.model_json_schema()
        rows = [
            (code(name), kind_of(one, schema), one.get("description", "")) for name, one in schema["properties"].items()
        ]
        parts.append(f"### {model.__name__}\n\n{cell(model.__doc__)}\n\n{table(('field', 'holds', 'meaning'), rows)}")
    return "\n".join(parts)


# ------------------------------------------------------------------------------------------------ what is detected


def scheduler_findings() -> str:
    facts = [one for one in vars(scheduler).values() if isinstance(one, scheduler._Fact)]
    rows = [
        (code(f"scheduler.{one.name}"), one.title, one.fault_class.value, one.role.value, one.retry.value)
        for one in facts
    ]
    return table(("finding", "says", "class", "role", "retry"), rows)


def silences() -> str:
    rows = [
        (code(f"silence.{kind.value}"), title, fault_class.value, retry.value)
        for kind, (title, fault_class, retry) in _SILENCES.items()
    ]
    return table(("finding", "says", "class", "retry"), rows)


def faults() -> str:
    rows: list[Sequence[str]] = []
    for one in catalogue.Catalogue.built_in().signatures:
        rows.append((code(one.id), one.title, one.fault_class.value, one.role.value, one.retry.value, one.node.value))
        for row in one.variants:
            ids = ", ".join(code(one.variant(value).id) for value in row.values)
            shown = one.variant(row.values[0])
            rows.append(
                (
                    ids,
                    shown.title,
                    shown.fault_class.value,
                    shown.role.value,
                    shown.retry.value,
                    shown.node.value,
                )
            )
    return table(("signature", "says", "class", "role", "retry", "implicates"), rows)


def signature_keys() -> str:
    schema = catalogue.schema()
    return (
        table(("key", "default", "meaning"), _keys("Signature", schema))
        + "\nA variant takes:\n\n"
        + table(("key", "default", "meaning"), _keys("Variant", schema))
        + f"\nGroups that expressions may capture: {', '.join(code(name) for name in sorted(FIELDS))}.\n"
    )


OWN_WORDS = {
    **dict.fromkeys(("class", "role", "retry", "node", "title"), "as in the table above"),
    "id": "stable name of small letters, digits, `.`, `_` and `-`; it may stand only once in all files",
    "variants": "what differs for some values of the field that `by` names",
    "confidence": "how sure it is of the node: low, medium or high",
    "values": "values of the field that `by` names",
    "note": "for those who edit the file",
}
"""What the model itself does not say of a key."""


def _keys(model: str, schema: dict[str, Any]) -> Iterator[Sequence[str]]:
    of = schema["$defs"][model]
    for name, one in of["properties"].items():
        meaning = _said(one) or OWN_WORDS.get(name) or kind_of(one, schema)
        default = "needed" if name in of.get("required", ()) else default_of(one)
        yield code(name), default, meaning


# ------------------------------------------------------------------------------------------------ commands, tables


def commands() -> str:
    return "\n".join(_commands("relight", get_command(app)))


def _commands(name: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if children:
        for child, one in children.items():
            yield from _commands(f"{name} {child}", one)
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    words = " ".join(_placeholder(one) for one in arguments)
    yield f"### {name}\n"
    yield f"`{name}{' ' if words else ''}{words}{' [options]' if options else ''}`\n"
    yield f"{' '.join((command.help or '').split())}\n"
    rows = [(code(_placeholder(one)), getattr(one, "help", "") or "") for one in arguments]
    rows += [(" ".join(code(word) for word in _spelled(one)), _help(one)) for one in options]
    if rows:
        yield table(("", "meaning"), rows)
    examples = [line.strip() for line in (command.epilog or "").splitlines()[2:]]
    if examples:
        yield "\n".join(("```sh", *examples, "```", ""))


def _placeholder(one: Any) -> str:
    name = (one.metavar or one.name or "").strip("[]{}. ").upper()
    many = "..." if one.nargs == -1 else ""
    return f"{name}{many}" if one.required else f"[{name}{many}]"


def _spelled(one: Any) -> list[str]:
    return [*one.opts, *one.secondary_opts]


def _help(one: Any) -> str:
    needed = " Required." if one.required else ""
    given = f" Default: {one.default}." if isinstance(one.default, int) and not isinstance(one.default, bool) else ""
    return f"{one.help or ''}{given}{needed}"


def audit_tables() -> str:
    rows = []
    for model in AuditTable.__subclasses__():
        columns = ", ".join(code(name) for name in model.model_fields)
        rows.append((code(model.__tablename__), model.__doc__ or "", columns))
    return table(("table", "one row is", "columns"), rows)


# ------------------------------------------------------------------------------------------------ writing

SECTIONS: dict[str, Callable[[], str]] = {
    "rules": rules_table_markdown,
    "policy-numbers": policy_numbers,
    "policy-keys": policy_keys,
    "settings": settings,
    "records": five_records,
    "scheduler-findings": scheduler_findings,
    "silences": silences,
    "faults": faults,
    "signature-keys": signature_keys,
    "commands": commands,
    "tables": audit_tables,
}


def rewritten(text: str, page: str) -> str:
    """The page with every generated part made anew."""

    def made(match: re.Match[str]) -> str:
        name = match.group(2)
        if name not in SECTIONS:
            raise SystemExit(f"{page}: nothing generates {name!r}, expected one of {', '.join(sorted(SECTIONS))}")
        return f"{match.group(1)}\n{SECTIONS[name]().strip()}\n\n{match.group(3)}"

    return SECTION.sub(made, text)


def outputs() -> dict[Path, str]:
    """Every file that has generated parts, and what should stand in it."""
    found = {page: rewritten(page.read_text(encoding="utf-8"), page.name) for page in sorted(HERE.glob("*.md"))}
    schemas = {
        "policy": policy_file.json_schema(),
        "catalogue": catalogue.schema(),
        "attribution-request": AttributionRequest.model_json_schema(),
        "attribution-answer": answer_schema(),
    }
    for name, schema in schemas.items():
        found[HERE / "reference" / f"{name}.schema.json"] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return found


def out_of_date() -> list[Path]:
    return [path for path, text in outputs().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    stale = out_of_date()
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(HERE.parent)} is out of date: run docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for path, text in outputs().items():
        if path in stale:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(HERE.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
