"""The fault catalogue: what known trouble looks like in a log, as data that people extend (catalogue.yaml).

Everything is checked when it is loaded: a wrong entry is refused with its file, its id and the reason. Nothing is
scanned here (scanner.py) and nothing is decided (blame.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import hyperscan
import re2
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recovery.records import FaultClass, Retry, Role

FIELDS = frozenset({"node", "rank", "local_rank", "task", "gpu", "pci", "peer", "xid", "code", "step", "reason"})
"""Names of groups that an `extract` or `prefixes` expression may capture."""

BUILT_IN = Path(str(files("recovery.faults").joinpath("catalogue.yaml")))

Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$", max_length=64)]
Examples = Annotated[tuple[str, ...], Field(min_length=1)]


class CatalogueError(ValueError):
    """The catalogue cannot be used. The message names file, entry and reason."""


class Says(StrEnum):
    """What a line tells about nodes."""

    REPORTER = "reporter"  # the node that printed it is implicated
    PEER = "peer"  # the other end it names is
    NAMED = "named"  # it names the node itself
    BATCH_HOST_ONLY = "batch_host_only"  # the name in it is only where the batch script ran
    NONE = "none"


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Variant(Entry):
    """What differs for some values of a captured field. What is left out stays as the signature says."""

    values: Annotated[tuple[str, ...], Field(min_length=1)]
    title: str | None = None
    fault_class: FaultClass | None = Field(default=None, alias="class")
    role: Role | None = None
    retry: Retry | None = None
    node: Says | None = None


class Signature(Entry):
    """One kind of trouble and the line that shows it."""

    id: Id
    title: str = Field(description="one sentence for people, without a full stop")
    pattern: str = Field(min_length=3, description="an expression that Hyperscan and RE2 take; matched in one line")
    fault_class: FaultClass = Field(alias="class")
    role: Role
    retry: Retry
    node: Says = Says.NONE
    ends: bool = Field(default=False, description="what follows this line in the same attempt is its consequence")
    extract: tuple[str, ...] = Field(default=(), description="RE2 expressions whose named groups become fields")
    by: str | None = Field(default=None, description="the field whose value picks a variant; it joins the id")
    variants: tuple[Variant, ...] = ()
    examples: Examples
    near_misses: Examples
    note: str = ""

    def variant(self, value: str) -> Signature:
        """The signature of one value of the `by` field, e.g. `xid.79`."""
        changes: dict[str, Any] = {"id": f"{self.id}.{value.lstrip('-')}", "by": None, "variants": ()}
        for row in self.variants:
            if value in row.values:
                changes |= {key: word for key, word in row if key != "values" and word is not None}
        return self.model_copy(update=changes)


class CatalogueFile(Entry):
    """The shape of a catalogue file."""

    version: int = Field(default=1, ge=1, le=1)
    prefixes: tuple[str, ...] = Field(default=(), description="RE2 expressions that tell where any line comes from")
    signatures: tuple[Signature, ...] = ()


class Catalogue:
    """Checked signatures, in the order of their files. Immutable; may be shared by threads."""

    def __init__(self, signatures: Sequence[Signature], prefixes: Sequence[str] = ()) -> None:
        self.signatures = tuple(signatures)
        self.prefixes = tuple(prefixes)

    @classmethod
    def load(cls, paths: Iterable[str | Path]) -> Catalogue:
        """Reads catalogue files, in order. Raises CatalogueError for the first thing that is wrong in them."""
        signatures: list[Signature] = []
        prefixes: list[str] = []
        home: dict[str, str] = {}
        for path in paths:
            content = _read(Path(path))
            for prefix in content.prefixes:
                _check_extract(str(path), "prefixes", prefix)
            for signature in content.signatures:
                if signature.id in home:
                    raise _wrong(str(path), signature.id, f"the id is taken in {home[signature.id]}; rename one")
                home[signature.id] = str(path)
                _check(str(path), signature)
            prefixes += content.prefixes
            signatures += content.signatures
        _check_together(signatures, home)
        return cls(signatures, prefixes)

    @classmethod
    def built_in(cls, *more: str | Path) -> Catalogue:
        """The catalogue that comes with relight, followed by a site's own files."""
        return _built_in() if not more else cls.load([BUILT_IN, *more])

    @property
    def hash(self) -> str:
        """sha256 of the content; the same whatever the layout of the files."""
        content = {"prefixes": self.prefixes, "signatures": [one.model_dump(mode="json") for one in self.signatures]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def __getitem__(self, name: str) -> Signature:
        return next(one for one in self.signatures if one.id == name)


def schema() -> dict[str, Any]:
    """The JSON schema of a catalogue file, for editors and CI."""
    return CatalogueFile.model_json_schema(by_alias=True)


@lru_cache(maxsize=4_096)
def expression(pattern: str) -> Any:
    """An RE2 expression over bytes. Latin-1, so that every byte is a character and nothing needs decoding first."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_nl = False
    return re2.compile(pattern.encode("latin-1"), options)


@lru_cache(maxsize=1)
def _built_in() -> Catalogue:
    return Catalogue.load([BUILT_IN])


class _Loader(yaml.SafeLoader):
    """YAML in which only true and false are booleans: `retry: yes` means the word."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:bool" or letter in "tTfF"]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read(path: Path) -> CatalogueFile:
    try:
        content = yaml.load(path.read_bytes(), Loader=_Loader)  # noqa: S506 - derived from SafeLoader
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read: {error.strerror}. Name an existing catalogue file.") from error
    except yaml.YAMLError as error:
        raise CatalogueError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    try:
        return CatalogueFile.model_validate(content if content is not None else {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _wrong(str(path), _entry_of(content, first["loc"]), f"{_place(first['loc'])}: {first['msg']}") from error


def _entry_of(content: object, place: tuple[int | str, ...]) -> str:
    """The id of the entry that a validation error lies in, as well as it can be told."""
    try:
        entry = content[place[0]][place[1]]  # type: ignore[index]
        return str(entry["id"])
    except (LookupError, TypeError):
        return ".".join(str(part) for part in place[:2]) or "the file"


def _place(place: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in (place[2:] if len(place) > 2 else place)) or "content"


def _wrong(path: str, entry: str, reason: str) -> CatalogueError:
    return CatalogueError(f"{path}: {entry}: {reason}")


def _check(path: str, signature: Signature) -> None:
    """Refuses an entry that cannot work or contradicts its own examples."""
    if signature.pattern.endswith(("*", "+", ",}")) and not signature.pattern.endswith(("\\*", "\\+")):
        raise _wrong(path, signature.id, "pattern ends in * or + or {n,}: every length would match; leave that off")
    if any(anchor in signature.pattern for anchor in ("\\A", "\\z", "\\Z")):
        raise _wrong(path, signature.id, "pattern has \\A or \\z, which mean a block of the log; write ^ and $")
    try:
        signature.pattern.encode("latin-1")
        pattern = expression(signature.pattern)
    except (re2.error, UnicodeEncodeError) as error:
        raise _wrong(path, signature.id, f"pattern: {_text(error)}") from error
    if pattern.search(b""):
        raise _wrong(path, signature.id, "pattern matches the empty line")
    for extract in signature.extract:
        _check_extract(path, signature.id, extract)
    for example in signature.examples:
        if not pattern.search(example.encode()):
            raise _wrong(path, signature.id, f"pattern does not match its own example {example!r}")
    for line in signature.near_misses:
        if pattern.search(line.encode()):
            raise _wrong(path, signature.id, f"pattern matches its own near miss {line!r}")
    if signature.variants and signature.by is None:
        raise _wrong(path, signature.id, "variants without `by`: name the field that picks one")
    if signature.by is not None and not any(f"(?P<{signature.by}>" in one for one in signature.extract):
        raise _wrong(path, signature.id, f"by: no extract captures {signature.by!r}")


def _check_extract(path: str, entry: str, text: str) -> None:
    try:
        groups = {name.decode() for name in expression(text).groupindex}
    except (re2.error, UnicodeEncodeError) as error:
        raise _wrong(path, entry, f"extract {text!r}: {_text(error)}") from error
    if not groups:
        raise _wrong(path, entry, f"extract {text!r} has no named group; write (?P<rank>…) for one of {_fields()}")
    if unknown := groups - FIELDS:
        raise _wrong(path, entry, f"extract {text!r}: group {sorted(unknown)[0]!r} is not one of {_fields()}")


def _check_together(signatures: Sequence[Signature], home: dict[str, str]) -> None:
    """Compiles all patterns as the scanner will. Only when that fails, finds out which one it was."""
    if not signatures:
        raise CatalogueError("the catalogue has no signatures: name at least one file that has some")
    try:
        _compiled(tuple(one.pattern for one in signatures), presence_only=False)
    except hyperscan.error:
        for one in signatures:
            try:
                _compiled((one.pattern,), presence_only=False)
            except hyperscan.error as error:
                raise _wrong(home[one.id], one.id, f"pattern: Hyperscan refuses it: {_text(error)}") from error
        raise


def database(patterns: tuple[str, ...], *, presence_only: bool = False) -> hyperscan.Database:
    """A block mode database of its own; pattern ids are their positions. One thread at a time may scan with it."""
    loaded = hyperscan.loadb(_compiled(patterns, presence_only), hyperscan.HS_MODE_BLOCK)
    loaded.scratch = hyperscan.Scratch(loaded)
    return loaded


@lru_cache(maxsize=16)
def _compiled(patterns: tuple[str, ...], presence_only: bool) -> bytes:
    """Compiling takes about 5 ms a pattern, loading what was compiled next to nothing."""
    flags = hyperscan.HS_FLAG_MULTILINE | (hyperscan.HS_FLAG_SINGLEMATCH if presence_only else 0)
    fresh = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    fresh.compile(
        expressions=[pattern.encode("latin-1") for pattern in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=[flags] * len(patterns),
    )
    return bytes(hyperscan.dumpb(fresh))


def _fields() -> str:
    return ", ".join(sorted(FIELDS))


def _text(error: Exception) -> str:
    return " ".join(part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in error.args)
