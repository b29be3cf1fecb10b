"""`relight diagnose`: what broke, from a log alone. No server, no configuration, nothing is changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from recovery.diagnose import Diagnosis, diagnose_files
from recovery.faults.catalogue import Catalogue, CatalogueError
from recovery.faults.moments import moment
from recovery.progress import Dialect, DialectError, own_dialect
from recovery.records import Finding, Role
from workers.naming import nodes_of
from workers.screen import UNUSABLE, Trouble, print_json, say
from workers.unpacking import STDIN, pieces, written

SHOWN = 20


def diagnose_logs(
    files: Sequence[Path], *, nodes: str, start: str, progress: str, catalogues: Sequence[Path], as_json: bool
) -> None:
    """Several files are the log of one attempt: stdout and stderr, one a node, or rotated ones."""
    allocation = nodes_of(nodes) or None
    now = datetime.now(UTC)
    zone = now.astimezone().tzinfo or UTC
    started = _time(start, zone) if start else None
    dialect = _dialect(progress) if progress else None
    if not files:
        if sys.stdin.isatty():
            raise Trouble("no log file given, expected at least one, or - for standard input", UNUSABLE)
        files = [STDIN]
    if len(set(files)) < len(files):
        raise Trouble(f"{_twice(files)} is given twice, expected each file once", UNUSABLE)
    try:
        catalogue = Catalogue.built_in(*catalogues)
    except CatalogueError as error:
        raise Trouble(str(error), UNUSABLE) from None
    times = [at for file in files if (at := written(file)) is not None]
    result = diagnose_files(
        [(_name(file), pieces(file)) for file in files],
        catalogue,
        allocation=allocation,
        now=now,
        own=dialect,
        complete=True,
        written=max(times, default=None),
        started=started,
        zone=zone,
    )
    if as_json:
        print_json(as_keys(result))
        return
    for line in _lines(result, [_name(file) for file in files], told_nodes=allocation is not None):
        say(line)


def as_keys(result: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON: what scripts ask for first stands first."""
    values = result.model_dump(mode="json")
    first = {
        "fault": values.pop("fault"),
        "class": values.pop("fault_class"),
        "retry": values.pop("retry"),
        "suspects": values.pop("suspects"),
        "first_cause": values.pop("first_cause"),
        "findings": values.pop("findings"),
        "last_step": values.pop("last_step"),
        "last_checkpoint": values.pop("last_checkpoint"),
    }
    return {**first, **values}


def _name(file: Path) -> str:
    return "standard input" if file == STDIN else str(file)


def _twice(files: Sequence[Path]) -> str:
    return _name(next(file for number, file in enumerate(files) if file in files[:number]))


def _time(text: str, zone: tzinfo) -> datetime:
    """A moment as people and Slurm write it; without a zone in the clock of this machine."""
    try:
        at: datetime | None = datetime.fromisoformat(text.strip())
    except ValueError:
        at = moment(text.strip().encode("utf-8", "replace"))
    if at is None or at.year < 1970:
        raise Trouble(f"{text!r} is not a time, expected one such as 2026-11-12T03:14:15 or 1795983600", UNUSABLE)
    return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).astimezone(UTC)


def _dialect(text: str) -> Dialect:
    try:
        return own_dialect(text)
    except DialectError as error:
        raise Trouble(str(error), UNUSABLE) from None


# ------------------------------------------------------------------------------------------------ for people


def _lines(found: Diagnosis, files: Sequence[str], *, told_nodes: bool) -> Iterator[str]:
    several = len(files) > 1
    yield f"{', '.join(files)}: {found.lines} lines"
    if found.last_step is not None:
        total = f" of {found.total_steps}" if found.total_steps is not None else ""
        saved = f", last checkpoint {found.last_checkpoint}" if found.last_checkpoint is not None else ""
        yield f"progress: steps {found.first_step}-{found.last_step}{total}{saved}"
    yield ""
    signature = f" ({found.signature})" if found.signature else ""
    yield (
        f"verdict: {found.fault_class.value}{signature}: {found.reason}" if found.fault else f"no fault: {found.reason}"
    )
    if found.fault:
        yield f"retry: {found.retry.value}"
        if not found.suspects and not told_nodes:
            yield "which node: the log alone does not tell; with --nodes (the job's own) more can be worked out"
    for suspect in found.suspects:
        where = "".join(
            [
                f", rank {suspect.rank}" if suspect.rank is not None else "",
                f", gpu {suspect.gpu}" if suspect.gpu else "",
            ]
        )
        yield f"suspect: {suspect.host}{where}: {suspect.how} ({suspect.confidence.value} confidence)"
    if found.exclude:
        yield f"the next attempt should keep off: {', '.join(found.exclude)}"
    if found.first_cause is not None:
        cause = found.first_cause
        text = (cause.evidence.strip() or cause.summary).splitlines()[0]
        yield f"first cause: {_place(cause.line, cause.source, several)}: {text}"
    others: dict[str, Finding] = {}  # one of each kind: a thousand victims say the same
    for one in found.findings:
        if one.role is not Role.BENIGN and (found.first_cause is None or one.id != found.first_cause.id):
            others.setdefault(one.signature, one)
    if others:
        yield ""
        yield "also seen:"
    for one in others.values():
        yield f"  {one.role.value:<8} {_place(one.line, one.source, several):<12} {one.summary}"
    if found.ignored:
        yield ""
        yield "ignored:"
    for left in found.ignored[:SHOWN]:
        more = f", {left.lines} such lines" if left.lines > 1 else ""
        yield f"  {_place(left.line, left.source, several)}: {left.why}{more}: {left.text[:160]}"
    if len(found.ignored) > SHOWN:
        yield f"  and {len(found.ignored) - SHOWN} more (--json has them all)"


def _place(line: int | None, source: str, several: bool) -> str:
    place = f"line {line}" if line is not None else "-"
    return f"{source} {place}" if several and source else place
