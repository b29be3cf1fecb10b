"""Cuts a log into blocks of whole lines that are scanned in one piece, and turns raw bytes into text fit to be stored.

Bytes stay bytes: nothing is decoded before something was found in it. A block never costs more than its size,
whatever stands in it: lines without end, NUL bytes, invalid UTF-8. No matching happens here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate

from recovery.faults.expressions import expression

BLOCK_BYTES = 1 << 19
"""Size of a block, to which less than as much of an unfinished line may be added. What is done to a block makes copies
of it: larger ones fall out of the caches, smaller ones spend the time between the blocks."""

LINE_CHARACTERS = 2_000
"""Longest text kept of one line."""

FEW_SEQUENCES = 200
"""So many terminal sequences of a block are looked for one by one: garbage holds a few by chance."""

NEIGHBOURS = 4
"""Between so many bytes that are no text to either side, a sequence in a binary block is garbage like these."""

_ESCAPE = b"\x1b"
# Several times quicker than bytes.find, which looks for two bytes one after the other.
_SEQUENCE = expression(r"\x1b\[")
# Never goes back over what it took (*+), so that no text makes it slow.
_COLOUR = re.compile(rb"\x1b\[[\x20-\x3f]*+[A-Za-z]")
_TEXT = re.compile(rb"[\t\n\r\x1b\x20-\x7e]*+")
_UNPRINTABLE = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x09}


class Block:
    """Whole lines of a log. `text` is what is matched: colours removed, carriage returns turned into newlines."""

    def __init__(self, raw: bytes, offset: int, line: int) -> None:
        self.raw = raw
        self.offset = offset
        """Byte offset of the block in the log."""
        self.line = line
        """Number of its first line, counted from 1."""
        self._plain = raw if _ESCAPE not in raw else _without_colours(raw)
        self.text = self._plain if b"\r" not in self._plain else self._plain.replace(b"\r", b"\n")

    @cached_property
    def lines(self) -> int:
        """How many lines end in it. Several times quicker than bytes.count for a single byte."""
        return len(self.raw) - len(self.raw.replace(b"\n", b""))

    def where(self, position: int) -> tuple[int, int]:
        """Line number and byte offset in the log of the line that a position in `text` lies on.

        A carriage return does not start a new line.
        """
        index = bisect_right(self._ends, position)
        start = self._raw_ends[index - 1] if index else 0
        return self.line + index, self.offset + start

    def span(self, position: int) -> tuple[int, int]:
        """Where in `text` the line around a position begins and ends; here a carriage return ends a line."""
        end = self.text.find(b"\n", position)
        return self.text.rfind(b"\n", 0, position) + 1, len(self.text) if end < 0 else end

    def line_offset(self, position: int) -> int:
        """The byte offset in the log of the line that a position in `text` lies on; quicker than `where`."""
        if self._plain is not self.raw:
            return self.where(position)[1]
        return self.offset + self.raw.rfind(b"\n", 0, position) + 1

    @cached_property
    def _ends(self) -> list[int]:
        return _line_ends(self._plain)

    @cached_property
    def _raw_ends(self) -> list[int]:
        return self._ends if self._plain is self.raw else _line_ends(self.raw)


class BlockCutter:
    """Takes a log piece by piece and gives it back in blocks of whole lines. Not for use by two threads at once."""

    def __init__(self, *, offset: int = 0, line: int = 1) -> None:
        self._carry = b""
        self._offset = offset
        self._line = line

    @property
    def next_line(self) -> int:
        """Number of the line that the next block starts with."""
        return self._line

    @property
    def next_offset(self) -> int:
        return self._offset

    def feed(self, data: bytes) -> Iterator[Block]:
        """Yields every block that is complete; what follows the last line end is kept for the next call."""
        for start in range(0, len(data), BLOCK_BYTES):
            piece = data[start : start + BLOCK_BYTES]
            cut = line_end(piece)
            if not cut:
                self._carry += piece
                if len(self._carry) >= BLOCK_BYTES:  # one line without end
                    yield from self.finish()
                continue
            # One copy, however little is carried: copying costs as much as scanning does.
            whole = b"".join((self._carry, memoryview(piece)[:cut])) if self._carry else piece[:cut]
            self._carry = piece[cut:]
            yield self._block(whole)

    def finish(self) -> Iterator[Block]:
        """Yields the last, unfinished line, if there is one."""
        rest, self._carry = self._carry, b""
        if rest:
            yield self._block(rest)

    def _block(self, raw: bytes) -> Block:
        block = Block(raw, self._offset, self._line)
        self._offset += len(raw)
        self._line += block.lines
        return block


def line_end(data: bytes) -> int:
    """The position behind the last line end, 0 where there is none. A progress bar ends its lines with returns."""
    return data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1


def shown(line: bytes) -> str:
    """A line as text that any store takes: decoded with replacement, without control bytes, cut to 2,000 characters."""
    return line[: 4 * LINE_CHARACTERS].decode("utf-8", "replace").translate(_UNPRINTABLE).strip()[:LINE_CHARACTERS]


def _line_ends(data: bytes) -> list[int]:
    """The positions behind each newline."""
    return list(accumulate(len(line) + 1 for line in data.split(b"\n")[:-1]))


def _without_colours(data: bytes) -> bytes:
    """Removes terminal control sequences (ESC [ … letter), in time that grows with the data only."""
    binary = b"\0" in data
    view = memoryview(data)
    pieces: list[memoryview] = []
    kept = 0
    begin = _SEQUENCE.search(data)
    for _ in range(FEW_SEQUENCES):
        if begin is None:
            return b"".join((*pieces, view[kept:])) if pieces else data
        match = _COLOUR.match(data, begin.start())
        if match is not None and not (binary and _is_chance(view, match.start(), match.end())):
            pieces.append(view[kept : match.start()])
            kept = match.end()
        begin = _SEQUENCE.search(data, begin.end())
    return _COLOUR.sub(b"", data)


def _is_chance(data: memoryview, start: int, end: int) -> bool:
    """Whether a sequence stands amid garbage: to remove it would cost a copy of the block and change nothing."""
    around = data[max(0, start - NEIGHBOURS) : start], data[end : end + NEIGHBOURS]
    return not any(_TEXT.fullmatch(beside) for beside in around)
