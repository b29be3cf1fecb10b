"""The fault catalogue: what known trouble looks like in a log, as data that people extend (catalogue.yaml).

Everything is checked when it is loaded, so that nothing can go wrong when a log is scanned. Nothing is scanned here
(scanner.py) and nothing is decided (blame.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import hyperscan

from recovery.faults.catalogue_file import CatalogueError, CheckedFile
from recovery.faults.expressions import compiled, expression, said
from recovery.faults.signature import FIELDS, CatalogueFile, Says, Signature, Variant

__all__ = ["BUILT_IN", "FIELDS", "Catalogue", "CatalogueError", "Says", "Signature", "Variant", "expression", "schema"]

BUILT_IN = Path(str(files("recovery.faults").joinpath("catalogue.yaml")))


class Catalogue:
    """Checked signatures, in the order of their files. Immutable; may be shared by threads."""

    def __init__(self, signatures: Sequence[Signature], prefixes: Sequence[str] = ()) -> None:
        self.signatures = tuple(signatures)
        self.prefixes = tuple(prefixes)

    @classmethod
    def load(cls, paths: Iterable[str | Path]) -> Catalogue:
        """Reads catalogue files, in order. Raises CatalogueError for the first thing that is wrong in them."""
        checked = [CheckedFile(Path(path)) for path in paths]
        home: dict[str, Path] = {}
        for file in checked:
            for number, signature in enumerate(file.content.signatures):
                if signature.id in home:
                    reason = f"the id is taken in {home[signature.id]}; rename one"
                    raise file.wrong(("signatures", number, "id"), signature.id, reason)
                home[signature.id] = file.path
        _check_together(checked)
        return cls(
            [one for file in checked for one in file.content.signatures],
            [one for file in checked for one in file.content.prefixes],
        )

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


@lru_cache(maxsize=1)
def _built_in() -> Catalogue:
    return Catalogue.load([BUILT_IN])


def _check_together(checked: Sequence[CheckedFile]) -> None:
    """Compiles a site's patterns as the scanner will. Only when that fails, finds out which one it was.

    Those that come with relight are compiled in its tests; here that would only take time.
    """
    every = [(file, at, one) for file in checked for at, one in enumerate(file.content.signatures)]
    if not every:
        raise CatalogueError("the catalogue has no signatures: name at least one file that has some")
    every = [one for one in every if one[0].path != BUILT_IN]
    if not every:
        return
    try:
        compiled(tuple(one.pattern for _, _, one in every), (), presence_only=True)
    except hyperscan.error:
        for file, at, one in every:
            try:
                compiled((one.pattern,), (), presence_only=True)
            except hyperscan.error as error:
                reason = f"pattern: Hyperscan refuses it: {said(error)}"
                raise file.wrong(("signatures", at, "pattern"), one.id, reason) from error
        raise
