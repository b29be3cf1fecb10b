"""Reads a catalogue file and refuses what cannot work, with file, line, entry and reason.

Whatever passes here cannot fail, and cannot become slow, when a log is scanned. Each entry is held against its own
examples and near misses.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import ValidationError

from recovery.faults.expressions import ExpressionError, expression, groups_of, said
from recovery.faults.signature import FIELDS, CatalogueFile, Signature, Variant

LARGEST = 16 << 20
"""Largest file that is read (bytes)."""

Place = tuple[int | str, ...]


class CatalogueError(ValueError):
    """The catalogue cannot be used. The message names file, line, entry and reason."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML in which only true and false are booleans: `retry: yes` means the word."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:bool" or letter in "tTfF"]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class CheckedFile:
    """One catalogue file: its content, checked but for Hyperscan, and on which line what stands."""

    def __init__(self, path: Path) -> None:
        """Raises CatalogueError for the first thing that is wrong in it."""
        self.path = path
        self._root, content = self._read()
        try:
            self.content = CatalogueFile.model_validate(content)
        except ValidationError as error:
            every = error.errors(include_url=False)
            where = every[0]["loc"]
            lacking = [one["loc"] for one in every if one["type"] == "missing" and one["loc"][:-1] == where[:-1]]
            shown = _shown(where)
            if where in lacking and len(lacking) > 1:  # told at once, not one after the other
                shown = ", ".join(_shown(place) for place in lacking)
            raise self.wrong(where, _entry_of(content, where), f"{shown}: {every[0]['msg']}") from error
        for number, prefix in enumerate(self.content.prefixes):
            self._check_expression(("prefixes", number), "prefixes", "prefixes", prefix)
        for number, signature in enumerate(self.content.signatures):
            self._check(("signatures", number), signature)

    def wrong(self, where: Place, entry: str, reason: str) -> CatalogueError:
        """The refusal of what stands at `where`, or of the nearest thing around it."""
        return CatalogueError(f"{self.path}:{self._line(where)}: {entry}: {reason}")

    def _read(self) -> tuple[yaml.Node | None, object]:
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
                raise CatalogueError(f"{self.path}: is not a file. Name an existing catalogue file.")
            if found.st_size > LARGEST:
                raise CatalogueError(f"{self.path}: has {found.st_size} bytes, expected at most {LARGEST}. Split it.")
            loader = _Loader(self.path.read_bytes())
            root = loader.get_single_node()
            return root, loader.construct_document(root) if root is not None else {}
        except OSError as error:
            reason = error.strerror or str(error)
            raise CatalogueError(f"{self.path}: cannot be read: {reason}. Name an existing catalogue file.") from error
        except (yaml.YAMLError, RecursionError, UnicodeDecodeError, ValueError) as error:
            if isinstance(error, CatalogueError):
                raise
            mark = getattr(error, "problem_mark", None)
            place = f"{self.path}:{mark.line + 1}" if mark else f"{self.path}"
            raise CatalogueError(f"{place}: is not YAML: {' '.join(str(error).split())[:300]}") from error

    def _line(self, where: Place) -> int:
        node, line = self._root, 1
        for part in where:
            if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
                continue
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            pair = next((pair for pair in pairs if pair[0].value == str(part)), None)
            if pair is None:
                break
            node, line = pair[1], pair[0].start_mark.line + 1
        return int(line)

    def _check(self, where: Place, signature: Signature) -> None:
        """Refuses an entry that cannot work or contradicts its own examples."""

        def wrong(key: str, reason: str) -> CatalogueError:
            return self.wrong((*where, *key.split("/")), signature.id, reason)

        pattern = signature.pattern
        if pattern.endswith(("*", "+", ",}")) and not pattern.endswith(("\\*", "\\+")):
            raise wrong("pattern", "pattern ends in * or + or {n,}: every length would match; leave that off")
        if any(anchor in pattern for anchor in ("\\A", "\\z", "\\Z")):
            raise wrong("pattern", "pattern has \\A or \\z, which mean a block of the log; write ^ and $")
        try:
            if expression(pattern).search(b""):
                raise wrong("pattern", "pattern matches the empty line")
        except ExpressionError as error:
            raise wrong("pattern", f"pattern: {said(error)}") from error
        for key in ("extract", "before"):
            for number, one in enumerate(getattr(signature, key)):
                self._check_expression((*where, key, number), signature.id, key, one)
        for number, example in enumerate(signature.examples):
            if (objection := signature.objection(example)) is not None:
                raise self.wrong((*where, "examples", number), signature.id, f"{objection} its own example {example!r}")
        for number, text in enumerate(signature.near_misses):
            if signature.objection(text) is None:
                place = (*where, "near_misses", number)
                raise self.wrong(place, signature.id, f"pattern matches its own near miss {text!r}")
        if signature.variants and signature.by is None:
            raise wrong("variants", "variants without `by`: name the field that picks one")
        if signature.by is not None and not any(f"(?P<{signature.by}>" in one for one in signature.extract):
            raise wrong("by", f"by: no extract captures {signature.by!r}")
        for number, variant in enumerate(signature.variants):
            self._check_variant((*where, "variants", number), signature, variant)

    def _check_variant(self, where: Place, signature: Signature, variant: Variant) -> None:
        seen = set()
        for number, example in enumerate(variant.examples):
            value = _value_in(signature, example)
            if value not in variant.values:
                place = (*where, "examples", number)
                expected = f"expected {signature.by} {_listed(variant.values)}"
                raise self.wrong(place, signature.id, f"variants: example {example!r} shows {value!r}, {expected}")
            seen.add(value)
        if missing := set(variant.values) - seen:
            reason = f"variants: no example shows {signature.by} {_listed(missing)}"
            raise self.wrong((*where, "examples"), signature.id, reason)

    def _check_expression(self, where: Place, entry: str, key: str, one: str) -> None:
        try:
            groups = groups_of(one)
        except ExpressionError as error:
            raise self.wrong(where, entry, f"{key} {one!r}: {said(error)}") from error
        if not groups and key != "before":
            reason = f"{key} {one!r} has no named group; write (?P<rank>…) for one of {_listed(FIELDS)}"
            raise self.wrong(where, entry, reason)
        if unknown := groups - FIELDS:
            reason = f"{key} {one!r}: group {sorted(unknown)[0]!r} is not one of {_listed(FIELDS)}"
            raise self.wrong(where, entry, reason)


def _value_in(signature: Signature, text: str) -> str | None:
    """The value of the `by` field that an example shows, None where it does not match at all."""
    if signature.objection(text) is not None:
        return None
    line = text.encode().rsplit(b"\n", 1)[-1]
    found = (expression(one).search(line) for one in signature.extract if f"(?P<{signature.by}>" in one)
    value = next((match.group(str(signature.by).encode()) for match in found if match), None)
    return value.decode() if value is not None else None


def _entry_of(content: object, where: Place) -> str:
    """The id of the entry that a validation error lies in, as well as it can be told."""
    try:
        entry = content[where[0]][where[1]]  # type: ignore[index]
        return str(entry["id"])
    except (LookupError, TypeError):
        return ".".join(str(part) for part in where[:2]) or "the file"


def _shown(where: Place) -> str:
    return ".".join(str(part) for part in (where[2:] if len(where) > 2 else where)) or "content"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
