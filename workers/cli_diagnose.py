"""`relight diagnose`: what broke, from a log alone. No server, no configuration, nothing is changed."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import cast

from recovery.diagnose import Diagnosis, diagnose
from recovery.faults.catalogue import Catalogue, CatalogueError
from workers.naming import nodes_of
from workers.screen import UNUSABLE, Trouble, print_json, say

CHUNK = 1 << 20
GZIP = b"\x1f\x8b"


def diagnose_files(files: Sequence[Path], *, nodes: str, catalogues: Sequence[Path], as_json: bool) -> None:
    """Several files are read one after another as one log of one attempt (stdout and stderr, one file per node)."""
    allocation = nodes_of(nodes) or None
    if not files:
        if sys.stdin.isatty():
            raise Trouble("no log file given, expected at least one, or - for standard input", UNUSABLE)
        files = [Path("-")]
    try:
        catalogue = Catalogue.built_in(*catalogues)
    except CatalogueError as error:
        raise Trouble(str(error), UNUSABLE) from None
    source = ", ".join("standard input" if str(file) == "-" else str(file) for file in files)
    result = diagnose(_chunks(files), catalogue, allocation=allocation, now=datetime.now(UTC), source=source)
    if as_json:
        print_json(result)
        return
    for line in _lines(result, source):
        say(line)


def _chunks(files: Sequence[Path]) -> Iterator[bytes]:
    for file in files:
        last = b"\n"
        for chunk in _file_chunks(file):
            last = chunk
            yield chunk
        if not last.endswith(b"\n"):
            yield b"\n"  # the next file begins a new line


def _file_chunks(file: Path) -> Iterator[bytes]:
    try:
        if str(file) == "-":
            yield from _read(cast(BufferedReader, sys.stdin.buffer))
            return
        if not file.is_file() and file.exists() and not file.is_fifo():
            raise Trouble(f"{file} is not a file, expected a log", UNUSABLE)
        with file.open("rb") as stream:
            yield from _read(stream)
    except OSError as error:
        raise Trouble(f"{file} cannot be read: {error.strerror or error}", UNUSABLE) from None
    except (EOFError, zlib.error) as error:
        raise Trouble(f"{file} is damaged: {error}", UNUSABLE) from None


def _read(stream: BufferedReader) -> Iterator[bytes]:
    """The stream in pieces, unpacked when it begins like gzip, whatever its name."""
    if stream.peek(2)[:2] == GZIP:
        with gzip.GzipFile(fileobj=stream) as unpacked:
            while chunk := unpacked.read(CHUNK):
                yield chunk
        return
    while chunk := stream.read(CHUNK):
        yield chunk


def _lines(found: Diagnosis, source: str) -> Iterator[str]:
    yield f"{source}: {found.lines} lines"
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
        line = f"line {cause.line}: " if cause.line is not None else ""
        yield f"first cause: {line}{(cause.evidence.strip() or cause.summary).splitlines()[0]}"
    others = [one for one in found.findings if found.first_cause is None or one.id != found.first_cause.id]
    if others:
        yield ""
        yield "also seen:"
    for one in others[:20]:
        yield f"  {one.role.value:<8} {f'line {one.line}' if one.line is not None else '-':<12} {one.summary}"
    if len(others) > 20:
        yield f"  and {len(others) - 20} more (--json has them all)"
