"""Finds the catalogue's signatures in a log, block by block, at the speed of grep.

Two passes: Hyperscan says which patterns occur at all in a block (almost never any), and only then where. Captures
are RE2's, so no input makes it slow. Nothing is concluded here.

Threads: a Scanner belongs to one thread at a time (Hyperscan's scratch space is not shared). Make one per thread; a
Catalogue may be shared.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

import hyperscan

from recovery.faults.blocks import Block, BlockCutter, shown
from recovery.faults.catalogue import Catalogue, Signature
from recovery.faults.expressions import database, expression
from recovery.faults.moments import moment

PER_BLOCK = 1_024
"""Most lines of one pattern that are looked at in one block; more are counted only. Blame needs the ranks of a job."""

PER_LOG = 4_096
"""Most lines of one pattern that are looked at in one log. Each pattern has its own share: a flood hides nothing."""

ALL_LINES = 32_768
"""After so many lines of all patterns together a log is a flood: from there on each pattern gets PER_FLOOD at most."""

PER_FLOOD = 256

FULL_TEXTS = 64
"""So many lines of one pattern are kept in full, of later ones the beginning: a log must not fill the memory."""

BRIEF = 300
"""Length of the beginning (characters)."""

LONG_LINE = 4_096
"""Of a longer line (bytes) only its beginning and the surroundings of the match are looked at."""

FARTHEST_BYTES = 64 << 10
"""How far before a line is looked for what must stand before it."""

LAST_MARKS = 64
"""So many places of a mark in one block are told, the last ones."""

_WHO = ("rank", "local_rank", "task")


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
    at: datetime | None = None
    """When it was written, as the line itself tells; see moments.py."""


class Scanner:
    """Scans a log piece by piece. Lines and offsets count on over the calls."""

    def __init__(self, catalogue: Catalogue, *, marks: Sequence[str] = (), offset: int = 0, line: int = 1) -> None:
        """`marks` are further patterns of which only the last place in a block is told (see `scan`)."""
        self._signatures = catalogue.signatures
        self._patterns = [expression(one.pattern) for one in catalogue.signatures]
        self._extracts = [[expression(text) for text in one.extract] for one in catalogue.signatures]
        self._befores = [[expression(text) for text in one.before] for one in catalogue.signatures]
        self._prefixes = [expression(text) for text in catalogue.prefixes]
        # One database: every pass over a log costs as much as reading it from memory does.
        self._presence = database(
            tuple(one.pattern for one in catalogue.signatures), places=tuple(marks), presence_only=True
        )
        self._cutter = BlockCutter(offset=offset, line=line)
        self._tail = b""
        self._variants: dict[tuple[str, str], Signature] = {}
        self._taken = [0] * len(self._signatures)
        self.source = ""
        """Written into the hits."""
        self.seen: Counter[str] = Counter()
        """Matching lines by signature id, also those that were not looked at for their number."""

    @cached_property
    def _places(self) -> hyperscan.Database:
        """Made when something was found for the first time: most logs are healthy, and it takes a moment."""
        return database(tuple(one.pattern for one in self._signatures))

    def reset(self) -> None:
        """Forgets what was counted, so that one scanner can serve many logs with `scan`."""
        self.source = ""
        self.seen = Counter()
        self._taken = [0] * len(self._signatures)
        self._tail = b""

    def feed(self, data: bytes) -> list[Hit]:
        """Scans what is complete in `data` and what was left over from the last call."""
        return [hit for block in self._cutter.feed(data) for hit in self.scan(block)[0]]

    def finish(self) -> list[Hit]:
        """Scans the last line, if it has no end yet."""
        return [hit for block in self._cutter.finish() for hit in self.scan(block)[0]]

    def text(self, data: bytes) -> list[Hit]:
        """The hits of a text by itself; what was scanned before is forgotten."""
        self.reset()
        cutter = BlockCutter()
        return [hit for block in (*cutter.feed(data), *cutter.finish()) for hit in self.scan(block)[0]]

    def scan(self, block: Block) -> tuple[list[Hit], Mapping[int, Sequence[int]]]:
        """The hits of one block in the order of the log, and the ends of the last matches of each mark in it."""
        known = len(self._signatures)
        present = False
        marks: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=LAST_MARKS))

        def found(number: int, _start: int, end: int, *_: object) -> None:
            nonlocal present
            if number >= known:
                marks[number - known].append(end)
            else:
                present = True

        self._presence.scan(block.text, match_event_handler=found)
        hits = list(self._hits(block)) if present else []
        text = block.text
        self._tail = (text if len(text) >= FARTHEST_BYTES else self._tail + text)[-FARTHEST_BYTES:]
        return hits, marks

    def _hits(self, block: Block) -> Iterator[Hit]:
        ends: dict[tuple[int, int], int] = {}  # (line start, pattern) -> end of the match
        last = [-1] * len(self._signatures)  # end of the line that a pattern matched last
        most = PER_LOG if sum(self._taken) < ALL_LINES else PER_FLOOD
        left = [min(PER_BLOCK, most - taken) for taken in self._taken]
        more = [0] * len(self._signatures)

        def found(number: int, _start: int, end: int, *_: object) -> None:
            if left[number] <= 0:
                more[number] += 1
            elif end > last[number]:
                start, last[number] = block.span(end - 1)
                left[number] -= 1
                ends[start, number] = end

        # Later matches are ignored, not refused: ending the scan would end it for every pattern.
        self._places.scan(block.text, match_event_handler=found)
        for number, count in enumerate(more):
            if count:
                self.seen[self._signatures[number].id] += count
        for start, numbers in _by_line(ends):
            yield from self._line(block, start, numbers, ends)

    def _line(self, block: Block, start: int, numbers: Sequence[int], ends: Mapping[tuple[int, int], int]) -> list[Hit]:
        """The hits of one line, in the order of the catalogue; of a line that is settled by one entry only that."""
        found: list[tuple[int, Hit]] = []
        stop = block.span(ends[start, numbers[0]] - 1)[1]
        for number in numbers:
            end = ends[start, number]
            line = _excerpt(block.text, start, end, stop)
            # Hyperscan lets a negated class run over a line end; RE2 has the last word, on this line alone.
            if not self._patterns[number].search(line):
                continue
            if (hit := self._hit(block, number, line, start, end - 1)) is not None:
                found.append((number, hit))
        found = [(number, hit) for number, hit in found if hit.signature.hides][:1] or found
        self.seen.update(self._signatures[number].id for number, _ in found)
        return [hit for _, hit in found]

    def _hit(self, block: Block, number: int, line: bytes, start: int, position: int) -> Hit | None:
        fields: dict[str, str] = {}
        for extract in (*self._extracts[number], *self._prefixes):
            for name, value in captured(extract, line):
                fields.setdefault(name, value)
        signature = self._signatures[number]
        if self._befores[number]:
            earlier = self._before(block, start, number, fields)
            if earlier is None:
                return None
            fields = {**earlier, **fields}
        if signature.by is not None and signature.by in fields:
            value = fields[signature.by]
            key = (signature.id, value)
            # Bounded: the value is what a job printed.
            if key not in self._variants and len(self._variants) < PER_LOG:
                self._variants[key] = signature.variant(value)
            signature = self._variants.get(key, signature)
        self._taken[number] += 1
        full = self._taken[number] <= FULL_TEXTS
        line_number, offset = block.where(position)
        text = shown(line) if full else shown(line)[:BRIEF]
        return Hit(signature, line_number, offset, text, fields, self.source, moment(line))

    def _before(self, block: Block, start: int, number: int, fields: Mapping[str, str]) -> dict[str, str] | None:
        """What the lines that must stand before a line tell, None where one of them is missing.

        Lines of another rank do not count: their output is mixed.
        """
        lines = self._earlier(block, start).split(b"\n")[-1 - self._signatures[number].within : -1]
        told: dict[str, str] = {}
        for expected in self._befores[number]:
            line = next((line for line in reversed(lines) if expected.search(line) and self._fits(line, fields)), None)
            if line is None:
                return None
            told.update(captured(expected, line))
        return told

    def _earlier(self, block: Block, start: int) -> bytes:
        """What stands before a line, also in the blocks before."""
        if start >= FARTHEST_BYTES:
            return block.text[start - FARTHEST_BYTES : start]
        return (self._tail + block.text[:start])[-FARTHEST_BYTES:]

    def _fits(self, line: bytes, fields: Mapping[str, str]) -> bool:
        named = {name: value for prefix in self._prefixes for name, value in captured(prefix, line)}
        return all(named[name] == fields.get(name, named[name]) for name in _WHO if name in named)


def _by_line(ends: Mapping[tuple[int, int], int]) -> Iterator[tuple[int, list[int]]]:
    """The patterns that matched in each line, in order."""
    for start, group in groupby(sorted(ends), key=lambda key: key[0]):
        yield start, [number for _, number in group]


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
