"""Finds the catalogue's signatures in a log, block by block, at the speed of grep.

Two passes: Hyperscan says which patterns occur at all in a block (almost never any), and only then where. Captures
are RE2's, so no input makes it slow. Nothing is concluded here.

Threads: a Scanner belongs to one thread at a time (Hyperscan's scratch space is not shared). Make one per thread; a
Catalogue may be shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from recovery.faults.blocks import Block, BlockCutter, shown
from recovery.faults.catalogue import Catalogue, Signature, database, expression

PER_BLOCK = 1_024
"""Most lines of one pattern that are looked at in one block; more are counted only. Blame needs the ranks of a job."""

HITS = 16_384
"""Most lines that are looked at in one log, whatever the patterns."""

LONG_LINE = 4_096
"""Of a longer line (bytes) only its beginning and the surroundings of the match are looked at."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One line that showed a signature."""

    signature: Signature
    line: int
    """Line number in the log, counted from 1."""
    offset: int
    """Byte offset of the line's beginning."""
    text: str
    fields: Mapping[str, str]
    """What was captured; the signature's own captures go before those of the prefixes."""
    source: str = ""
    """The file it stands in."""


class Scanner:
    """Scans a log piece by piece. Lines and offsets count on over the calls."""

    def __init__(self, catalogue: Catalogue, *, marks: Sequence[str] = (), offset: int = 0, line: int = 1) -> None:
        """`marks` are further patterns of which only the presence in a block is told (see `scan`)."""
        self._signatures = catalogue.signatures
        self._marks = len(self._signatures)
        self._patterns = [expression(one.pattern) for one in catalogue.signatures]
        self._extracts = [[expression(text) for text in one.extract] for one in catalogue.signatures]
        self._prefixes = [expression(text) for text in catalogue.prefixes]
        names = tuple(one.pattern for one in catalogue.signatures)
        self._presence = database((*names, *marks), presence_only=True)
        self._places = database(names)
        self._cutter = BlockCutter(offset=offset, line=line)
        self._variants: dict[tuple[str, str], Signature] = {}
        self._taken = 0
        self.source = ""
        """Written into the hits."""
        self.seen: Counter[str] = Counter()
        """Matching lines by signature id, also those that were not looked at for their number."""

    def reset(self) -> None:
        """Forgets what was counted, so that one scanner can serve many logs with `scan`."""
        self.source = ""
        self.seen = Counter()
        self._taken = 0

    def feed(self, data: bytes) -> list[Hit]:
        """Scans what is complete in `data` and what was left over from the last call."""
        return [hit for block in self._cutter.feed(data) for hit in self.scan(block)[0]]

    def finish(self) -> list[Hit]:
        """Scans the last line, if it has no end yet."""
        return [hit for block in self._cutter.finish() for hit in self.scan(block)[0]]

    def scan(self, block: Block) -> tuple[list[Hit], frozenset[int]]:
        """The hits of one block in the order of the log, and the numbers of the marks that occur in it."""
        present: list[int] = []
        self._presence.scan(block.text, match_event_handler=lambda number, *_: present.append(number))
        marks = frozenset(number - self._marks for number in present if number >= self._marks)
        if len(marks) == len(present):
            return [], marks
        return list(self._hits(block)), marks

    def _hits(self, block: Block) -> Iterator[Hit]:
        ends: dict[tuple[int, int], int] = {}  # (line start, pattern) -> end of the match
        taken: Counter[int] = Counter()
        last: dict[int, int] = {}  # pattern -> end of the line it matched last

        def found(number: int, _start: int, end: int, *_: object) -> None:
            if end <= last.get(number, -1):
                return  # the same line once more
            start, stop = block.span(end - 1)
            last[number] = stop
            self.seen[self._signatures[number].id] += 1
            if taken[number] < PER_BLOCK and self._taken < HITS:
                taken[number] += 1
                self._taken += 1
                ends[start, number] = end

        # Later matches are ignored, not refused: ending the scan would end it for every pattern.
        self._places.scan(block.text, match_event_handler=found)
        for (start, number), end in sorted(ends.items()):
            line = _excerpt(block.text, start, end, block.span(end - 1)[1])
            # Hyperscan lets a negated class run over a line end; RE2 has the last word, on this line alone.
            if self._patterns[number].search(line):
                yield self._hit(block, number, line, end - 1)

    def _hit(self, block: Block, number: int, line: bytes, position: int) -> Hit:
        fields: dict[str, str] = {}
        for extract in (*self._extracts[number], *self._prefixes):
            for name, value in captured(extract, line):
                fields.setdefault(name, value)
        signature = self._signatures[number]
        if signature.by is not None and signature.by in fields:
            value = fields[signature.by]
            key = (signature.id, value)
            # Bounded: the value is what a job printed.
            if key not in self._variants and len(self._variants) < HITS:
                self._variants[key] = signature.variant(value)
            signature = self._variants.get(key, signature)
        line_number, offset = block.where(position)
        return Hit(signature, line_number, offset, shown(line), fields, self.source)


def _excerpt(text: bytes, start: int, end: int, stop: int) -> bytes:
    """The line, or of a long one its beginning (where prefixes stand) and what surrounds the match."""
    if stop - start <= LONG_LINE:
        return text[start:stop]
    head = min(start + 100, max(start, end - 1_000))
    return text[start:head] + b" " + text[max(head, end - 1_000) : min(stop, end + 500)]


def captured(extract: Any, line: bytes) -> list[tuple[str, str]]:
    """The named groups that took part in a match, as short printable text."""
    match = extract.search(line)
    if match is None:
        return []
    return [(name, shown(value)[:200]) for name, value in _named(extract, match) if value is not None]


def _named(extract: Any, match: Any) -> list[tuple[str, bytes | None]]:
    return [(name, match.group(index)) for name, index in _groups(extract)]


@lru_cache(maxsize=4_096)
def _groups(extract: Any) -> tuple[tuple[str, int], ...]:
    return tuple((name.decode(), index) for name, index in extract.groupindex.items())
