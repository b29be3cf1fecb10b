"""Reads how far a training has come from its log: completed steps and completed checkpoints.

How they are written stands in dialects.py. The last step is searched backwards from the end of each block, so a healthy
log costs almost nothing; a log in which no step is told costs one more pass of Hyperscan.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import hyperscan

from recovery.dialects import (
    ASIDE,
    BAR_NAME,
    BEGUN,
    CHECKPOINT_MARK,
    CHECKPOINTS,
    DIALECTS,
    NOT_TRAINING,
    Dialect,
    DialectError,
    own_dialect,
)
from recovery.faults.blocks import Block
from recovery.faults.expressions import database, expression
from recovery.faults.moments import MOST_BYTES, moment
from recovery.records import Progress

__all__ = ["CHECKPOINT_MARK", "DIALECTS", "Dialect", "DialectError", "ProgressReader", "StepMark", "own_dialect"]

MARKS = 2_000
"""Most step lines remembered by place: the latest."""

EVERY = 200
"""So many step lines of one log are all looked at where `every` is asked for, later only the last ones of a block."""

LATEST = 3
"""So many step lines of the end of a file are remembered."""

TRIES = 2_000
"""Most lines of a block that are tried in vain in one dialect, from either end."""

QUICK_TRIES = 64
"""Most lines tried in vain in the dialect that was heard last, before it is asked which ones are spoken at all."""

LINE_BYTES = 4_096
"""How much of a long line, to either side of the anchor, is looked at."""

PASSED = 3
"""A bar that did not come to its end in sight is over when so many blocks after it end with another one."""

SHORTER_BAR = 5
"""A finished bar is not replaced by one that is so many times shorter: that is the evaluation at the end."""

FIRST_CHUNK = 16 << 10
"""Size of the end of a block in which an expression without an anchor is searched first."""

_local = threading.local()


@dataclass(frozen=True, slots=True)
class StepMark:
    """A line that says a step was completed."""

    offset: int
    """Byte offset of the line in the log."""
    step: int
    total: int | None = None
    line: bytes = b""
    """The beginning of the line."""

    @property
    def at(self) -> datetime | None:
        """When it was written, as the line itself tells; see moments.py."""
        return moment(self.line)


class ProgressReader:
    """Follows the progress of one attempt, block by block, oldest first."""

    def __init__(self, *, own: Dialect | None = None) -> None:
        self._own = own
        self._heard: Dialect | None = own
        self._left = EVERY
        self._begun: int | None = None
        self._passed = 0
        self._final: tuple[Dialect, Block] | None = None
        self.first: StepMark | None = None
        self.last: StepMark | None = None
        self.highest: int | None = None
        self.total: int | None = None
        self.checkpoint: int | None = None
        self.resumed: tuple[StepMark, ...] = ()
        """Where the counter jumped back: the first steps after it, at most 20."""
        self.marks: deque[StepMark] = deque(maxlen=MARKS)
        """Step lines by place, the latest: all of blocks read with `every`, the last one of the others; after
        `finish` the last three are the last ones of the log."""

    def read(self, block: Block, *, every: bool = False, checkpoints: Sequence[int] | None = None) -> None:
        """Takes in the next block. `every` remembers each step line, to tell what came after a fault.

        `checkpoints` are the places of CHECKPOINT_MARK in it, the last ones; None: they are searched here.
        """
        before = self._begun
        marks = self._marks_of(block, every)
        for mark in marks:
            self._take(mark)
            if before is not None and mark.step > before:
                self._saved(before)
        if marks and self.last is not None:
            self._passed = self._passed + 1 if self.last.offset < marks[-1].offset else 0
        self._read_checkpoints(block, _checkpoint_places(block) if checkpoints is None else checkpoints)

    def progress(self, attempt: int, *, at: datetime | None = None) -> Progress:
        """The record. `at` is when it was read; the log's own times have no zone."""
        return Progress(
            attempt=attempt,
            first_step=self.first.step if self.first else None,
            first_step_at=at if self.first else None,
            step=self.highest,
            step_at=at if self.highest is not None else None,
            total_steps=self.total,
            checkpoint=self.checkpoint,
            checkpoint_at=at if self.checkpoint is not None else None,
        )

    # -------------------------------------------------------------------------------------------- steps

    def _take(self, mark: StepMark) -> None:
        if self._heard is not None and self._heard.weak and not self._is_of_training(mark):
            return
        if self.last is not None and mark.step < self.last.step and len(self.resumed) < 20:
            self.resumed += (mark,)
        self.first = self.first or mark
        self.last = mark
        self.highest = mark.step if self.highest is None else max(self.highest, mark.step)
        self.total = mark.total if mark.total is not None else self.total
        self.marks.append(mark)

    def _is_of_training(self, mark: StepMark) -> bool:
        """Bars of evaluations come in between and are shorter; a bar that goes before the training is over by then."""
        last = self.last
        if last is None or last.total is None or mark.total in {None, last.total}:
            return True
        assert mark.total is not None
        done = last.step >= last.total or self._passed >= PASSED
        if mark.total < last.total and (not done or mark.total * SHORTER_BAR < last.total):
            return False
        self.first = self.highest = None  # what was there before was another thing
        return True

    def finish(self) -> None:
        """Ends a file: remembers its last steps, by which it is told whether a fault was survived."""
        if self._final is None:
            return
        dialect, block = self._final
        latest = _placed(block, _last(dialect, block, LATEST, TRIES))
        if dialect.weak and self.last is not None:  # bars of an evaluation may stand last
            latest = [mark for mark in latest if mark.total == self.last.total]
        while self.marks and latest and self.marks[-1].offset >= latest[0].offset:
            self.marks.pop()
        self.marks += latest
        self._final = None

    def _marks_of(self, block: Block, every: bool) -> list[StepMark]:
        """The last step of the block (and the first of the log), or each one, in the first dialect spoken in it."""
        heard = self._heard
        if heard is not None and (last := _last(heard, block, 1, TRIES if self._own else QUICK_TRIES)):
            return self._with_others(heard, block, last, every)
        for dialect in self._spoken_in(block):
            if last := _last(dialect, block, 1, TRIES):
                self._hear(dialect)
                return self._with_others(dialect, block, last, every)
        return []

    def _spoken_in(self, block: Block) -> Iterator[Dialect]:
        """The dialects that may be spoken in a block. Bars count only where nothing better was ever heard."""
        if self._own is not None:
            return
        strong = self._heard is not None and not self._heard.weak
        for number in sorted(_spoken(block.text)):
            if not (strong and DIALECTS[number].weak):
                yield DIALECTS[number]

    def _with_others(self, dialect: Dialect, block: Block, last: list[StepMark], every: bool) -> list[StepMark]:
        self._final = (dialect, block)
        if every and self._left > 0:
            marks = list(islice(_forwards(dialect, block), self._left))
            self._left -= len(marks)
            if self._left > 0:
                return _placed(block, marks)
        if self.first is None:
            first = next(_forwards(dialect, block), last[0])
            last = [first, *last] if first.offset < last[0].offset else last
        return _placed(block, last)

    def _hear(self, dialect: Dialect) -> None:
        """A log rarely changes its dialect; where a better one than bars is spoken, bars count no more."""
        if self._heard is not None and self._heard.weak and not dialect.weak:
            self.first = self.last = self.highest = self.total = None
            self.marks.clear()
        self._heard = dialect

    # -------------------------------------------------------------------------------------------- checkpoints

    def _saved(self, step: int) -> None:
        self.checkpoint = step if self.checkpoint is None else max(self.checkpoint, step)

    def _read_checkpoints(self, block: Block, places: Sequence[int]) -> None:
        """The last completed checkpoint of the block, and those that were begun."""
        begun: list[int] = []
        done = False
        for place in reversed(places):
            start, end = block.span(max(0, place - 1))
            line = block.text[max(start, place - LINE_BYTES) : min(end, place + LINE_BYTES)]
            if b"checkpoint-" in line and (match := BEGUN.search(line)) is not None:
                begun.append(int(match.group(1)))
            elif not done and (match := next(filter(None, (rule.search(line) for rule in CHECKPOINTS)), None)):
                done = True
                self._saved(int(match.group(1)))
        for number, step in enumerate(begun):  # the latest first
            if number or (self.last is not None and self.last.step > step):
                self._saved(step)
            else:
                self._begun = step


def _checkpoint_places(block: Block) -> list[int]:
    return [match.end() for match in expression(CHECKPOINT_MARK).finditer(block.text)]


def _spoken(text: bytes) -> frozenset[int]:
    """The numbers of the dialects that a text may hold lines of."""
    known: tuple[hyperscan.Database, hyperscan.Database] | None = getattr(_local, "dialects", None)
    if known is None:  # one a thread: the scratch space is not shared
        anchors = sorted({re.escape(one.anchor.decode()) for one in DIALECTS})
        lines = tuple(one.text for one in DIALECTS)
        known = _local.dialects = (database((*anchors,), presence_only=True), database(lines, presence_only=True))
    # Most texts without steps do not even hold the words, which are found several times as quickly.
    return _in(known[1], text) if _in(known[0], text) else frozenset()


def _in(known: hyperscan.Database, text: bytes) -> frozenset[int]:
    """The numbers of the patterns that occur."""
    found: list[int] = []
    known.scan(text, match_event_handler=lambda number, *_: found.append(number))
    return frozenset(found)


def _forwards(dialect: Dialect, block: Block) -> Iterator[StepMark]:
    """Step lines from the beginning of the block, until too many lines were tried in vain."""
    return _told(dialect, block, _lines(block.text, dialect), TRIES)


def _last(dialect: Dialect, block: Block, count: int, tries: int) -> list[StepMark]:
    """The last steps of the block, in the order of the log."""
    return list(islice(_backwards(dialect, block, tries), count))[::-1]


def _backwards(dialect: Dialect, block: Block, tries: int) -> Iterator[StepMark]:
    """Step lines from the end of the block, until so many lines were tried in vain."""
    return _told(dialect, block, _lines_backwards(block.text, dialect), tries)


def _told(dialect: Dialect, block: Block, spans: Iterable[tuple[int, int]], tries: int) -> Iterator[StepMark]:
    vain = 0
    for span in spans:
        mark = _mark(dialect, block.text[slice(*span)], span[0])
        if mark is not None:
            yield mark
        vain = 0 if mark is not None else vain + 1
        if vain >= tries:
            return


def _mark(dialect: Dialect, line: bytes, start: int) -> StepMark | None:
    """The step that a line tells; its offset is the place in the block's text for now."""
    match = dialect.step.search(line)
    if match is None:
        return None
    before = line[: match.start()].lower()
    if any(word in before for word in ASIDE):
        return None
    if dialect.weak and (name := BAR_NAME.search(line)) is not None:
        named = name.group(1).lower()
        if any(word in named for word in NOT_TRAINING):
            return None
    step, total = _number(match, dialect, b"step"), _number(match, dialect, b"total")
    if step is None:
        return None
    epoch = _number(match, dialect, b"epoch")
    if epoch is not None and total is not None:
        step, total = epoch * total + step, None
    return StepMark(offset=start, step=step, total=total, line=line[:MOST_BYTES])


def _placed(block: Block, marks: list[StepMark]) -> list[StepMark]:
    """Marks with their place in the log."""
    return [StepMark(block.line_offset(mark.offset), mark.step, mark.total, mark.line) for mark in marks]


def _number(match: Any, dialect: Dialect, name: bytes) -> int | None:
    if name not in dialect.groups or (text := match.group(dialect.groups[name])) is None:
        return None
    digits = text.strip().replace(b",", b"")
    return int(digits) if digits.isdigit() and len(digits) <= 12 else None


# ------------------------------------------------------------------------------------------------ lines


def _lines(text: bytes, dialect: Dialect) -> Iterator[tuple[int, int]]:
    """Where lines that may tell a step begin and end, from the front. Of long lines the part around the anchor."""
    if not dialect.anchor:
        yield from _matching(text, 0, dialect)
        return
    position = 0
    while position < len(text):
        at = text.find(dialect.anchor, position)
        if at < 0:
            return
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        yield max(text.rfind(b"\n", 0, at) + 1, at - LINE_BYTES), min(end, at + LINE_BYTES)
        position = end + 1


def _lines_backwards(text: bytes, dialect: Dialect) -> Iterator[tuple[int, int]]:
    """The same from the end."""
    position = len(text)
    if not dialect.anchor:
        size = FIRST_CHUNK
        while position > 0:
            start = text.rfind(b"\n", 0, max(0, position - size)) + 1
            yield from reversed(list(_matching(text[start:position], start, dialect)))
            position, size = start, 4 * size
        return
    while position > 0:
        at = text.rfind(dialect.anchor, 0, position)
        if at < 0:
            return
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        start = text.rfind(b"\n", 0, at) + 1
        yield max(start, at - LINE_BYTES), min(end, at + LINE_BYTES)
        position = start - 1


def _matching(text: bytes, offset: int, dialect: Dialect) -> Iterator[tuple[int, int]]:
    """The lines in which an expression without an anchor matches, each once."""
    behind = -1
    for match in expression(f"(?m:{dialect.text})").finditer(text):
        if match.end() <= behind:
            continue
        at = max(match.start(), match.end() - 1)
        behind = text.find(b"\n", at)
        behind = len(text) if behind < 0 else behind
        yield offset + text.rfind(b"\n", 0, at) + 1, offset + behind
