"""`relight patterns`: checks fault catalogues, lists what they hold, and tells which entries a text shows.

For people who write patterns of their own. Reads files and prints; nothing is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recovery.faults.catalogue import BUILT_IN, Catalogue, CatalogueError, Says, Signature
from recovery.faults.scanner import Hit, Scanner
from recovery.records import Role
from workers.screen import REFUSED, UNUSABLE, Trouble, print_json, say, table

TEXT_BYTES = 16 << 20

_ROLES = {
    Role.ROOT: "a cause",
    Role.SYMPTOM: "a sign of something wrong, here or elsewhere",
    Role.CASCADE: "a consequence of something else",
    Role.BENIGN: "no trouble",
}
_BLAMES = {
    Says.REPORTER: "points at the node that printed it",
    Says.PEER: "points at the other end it names",
    Says.NAMED: "points at the node it names",
    Says.HEAD: "points at the job's first node",
    Says.BATCH_HOST_ONLY: "points at no node (the one in it only ran the script)",
    Says.NONE: "points at no node",
}


def check_patterns(files: Sequence[Path], *, as_json: bool) -> None:
    """Holds catalogue files against the rules and their own examples, together with the built-in one they extend."""
    problem, own, digest = "", 0, ""
    known = {one.id for one in Catalogue.built_in().signatures} if files else set()
    try:
        catalogue = Catalogue.built_in(*files)
        entries = [one for one in catalogue.signatures if one.id not in known]
        problem = _unfound(Scanner(catalogue), entries)
        own, digest = len(entries), catalogue.hash
    except CatalogueError as error:
        problem = str(error)
    names = [str(file) for file in files] or [str(BUILT_IN)]
    if as_json:
        print_json({"ok": not problem, "files": names, "entries": own, "hash": digest, "error": problem or None})
        if problem:
            raise SystemExit(UNUSABLE)
        return
    if problem:
        raise Trouble(problem, UNUSABLE)
    say(f"{', '.join(names)}: {own} entries, each found in its examples and not in its near misses")
    say(f"hash of the whole catalogue: {digest}")


def list_patterns(files: Sequence[Path], *, as_json: bool) -> None:
    catalogue = _catalogue(files)
    if as_json:
        print_json([_as_keys(one) for one in catalogue.signatures])
        return
    rows = []
    for one in catalogue.signatures:
        rows.append(_row(one))
        rows += [_row(one.variant(value)) for variant in one.variants for value in variant.values]
    table(["ENTRY", "CLASS", "ROLE", "RETRY", "NODE", "SAYS"], rows)


def test_text(text: str, files: Sequence[Path], *, as_json: bool) -> None:
    """Which entries a text shows, `-` for standard input. Exit code 1 when none does."""
    catalogue = _catalogue(files)
    data = sys.stdin.buffer.read(TEXT_BYTES) if text == "-" else text.encode("utf-8", "surrogateescape")
    hits = Scanner(catalogue).text(data)
    if as_json:
        print_json([_found(hit) for hit in hits])
    for hit in [] if as_json else hits:
        one = hit.signature
        fields = "".join(f" {name}={value}" for name, value in hit.fields.items())
        say(f"line {hit.line}: {one.id}: {one.title}")
        say(f"  {_ROLES[one.role]}; class {one.fault_class.value}, retry {one.retry.value}, {_BLAMES[one.node]}")
        say(f"  {hit.text}" + (f"\n  with{fields}" if fields else ""))
    if hits:
        return
    if not as_json:
        say(f"none of {len(catalogue.signatures)} entries is found in this text")
        say("to have it found, write an entry into a file of your own and try it with --catalogue FILE")
    raise SystemExit(REFUSED)


def _unfound(scanner: Scanner, entries: Sequence[Signature]) -> str:
    """The first text that does not show what its entry says when it is scanned for all entries at once."""
    for one in entries:
        shown = (*one.examples, *(text for row in one.variants for text in row.examples))
        for text, expected in (*((text, True) for text in shown), *((text, False) for text in one.near_misses)):
            last = text.count("\n") + 1
            names = {hit.signature.id for hit in scanner.text(text.encode()) if hit.line == last}
            if any(name == one.id or name.startswith(f"{one.id}.") for name in names) is not expected:
                word = "not found in its example" if expected else "found in its near miss"
                return f"{one.id} is {word} {text!r} when all entries are scanned for (another one may hide it)"
    return ""


def _catalogue(files: Sequence[Path]) -> Catalogue:
    try:
        return Catalogue.built_in(*files)
    except CatalogueError as error:
        raise Trouble(str(error), UNUSABLE) from None


def _row(one: Signature) -> list[str]:
    return [one.id, one.fault_class.value, one.role.value, one.retry.value, one.node.value, one.title]


def _as_keys(one: Signature) -> dict[str, Any]:
    return one.model_dump(mode="json", by_alias=True)


def _found(hit: Hit) -> dict[str, Any]:
    one = hit.signature
    return {
        "line": hit.line,
        "id": one.id,
        "title": one.title,
        "class": one.fault_class.value,
        "role": one.role.value,
        "retry": one.retry.value,
        "node": one.node.value,
        "fields": dict(hit.fields),
        "text": hit.text,
    }
