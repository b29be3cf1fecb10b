"""Reads how far a training has come from its log: completed steps and completed checkpoints.

A dialect is how one framework writes them. Only what is completed counts: a checkpoint that is being saved does not.
The last step is searched backwards from the end of each block, so a healthy log costs almost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

import re2

from recovery.faults.blocks import Block
from recovery.faults.catalogue import expression
from recovery.records import Progress

CHECKPOINT_MARK = r"[Ss]aved (?:a )?checkpoint|[Cc]heckpoint saved|[Cc]heckpoint .{0,100}(?:saved|complete)"
"""Hyperscan pattern for the presence of a completed checkpoint in a block; see Scanner's `marks`."""

MARKS = 2_000
"""Most step lines remembered by place; then only the latest."""

TRIES = 2_000
"""Most lines of a block that are tried in vain in one dialect, from either end."""

LINE_BYTES = 4_096
"""How much of a long line, to either side of the anchor, is looked at."""


class DialectError(ValueError):
    """A job's own progress expression cannot be used. The message says why."""


@dataclass(frozen=True)
class Dialect:
    """How one framework writes a completed step. All expressions are RE2 over bytes, applied to one line."""

    name: str
    anchor: bytes
    """Literal text that every such line holds; searched first, because that is quick. Empty: no such text."""
    step: Any
    """Captures `step`, and `total` where the line tells it."""
    weak: bool = False
    """Also evaluation and data loading write such lines: counts only where nothing better is spoken."""


@dataclass(frozen=True, slots=True)
class StepMark:
    """A line that says a step was completed."""

    offset: int
    """Byte offset in the log, exact in blocks read with `every`."""
    step: int
    total: int | None = None


_COUNT = r"(?P<step>\d{1,12})(?:\]|\b)(?: ?(?:/|of) ?(?P<total>\d{1,12})\b)?"
_VALUE = r".{0,200}\b(?:[a-z_]*loss|step_time|time|throughput|it/s|tokens|lr|skipped|acc|done|finished|completed)\b"
"""What stands behind the step makes such a line a completed step and not a setting."""
_BAR = expression(r"\| ?(?P<step>\d{1,12})/(?P<total>\d{1,12}) \[[\d:?]+<[\d:?]+, *[\d.?]+(?:it/s|s/it)")

DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "megatron",
        b"iteration ",
        expression(r"(?:^|[\] ])iteration +(?P<step>\d{1,12})/ *(?P<total>\d{1,12}) *\|"),
    ),
    Dialect(
        "global_step/max_steps",
        b"global_step/max_steps",
        expression(r"global_step/max_steps'?: '?(?P<step>\d{1,12})/(?P<total>\d{1,12})"),
    ),
    Dialect(
        "step …",
        b"step",
        expression(r"(?:^|[^A-Za-z_\d])(?:global_)?step(?:s|[_ ]num)?[ :=]+\[?" + _COUNT + _VALUE),
    ),
    Dialect(
        "loss …, step …",
        b"step",
        expression(r"\bloss ?[=:] ?[-+.\deE]+.{0,100}\b(?:global_)?step ?[=:] ?" + _COUNT),
    ),
    Dialect("Step …", b"Step", expression(r"(?:^|[^A-Za-z_\d])Step[ :=]+\[?" + _COUNT + r".{0,200}\b[Ll]oss\b")),
    Dialect("progress bar", b"it/s", _BAR, weak=True),
    Dialect("slow progress bar", b"s/it", _BAR, weak=True),
)

_ASIDE = (b"eval", b"valid", b"test")
"""Steps of these are not steps of the training."""

_AT_STEP = r"\b(?:step|iteration|iter)s?[ _:=-]*0*(?P<step>\d{1,12})\b"
_CHECKPOINTS: tuple[Any, ...] = (
    expression(r"(?i)\bsaved (?:a )?checkpoint\b.{0,100}?" + _AT_STEP),
    expression(r"(?i)\bcheckpoint saved\b.{0,100}?" + _AT_STEP),
    expression(r"(?i)\bcheckpoint\b.{0,60}?" + _AT_STEP + r".{0,60}?\b(?:saved|complete)"),
)
_CHECKPOINT_ANCHORS = (b"checkpoint", b"Checkpoint")


def own_dialect(text: str) -> Dialect:
    """The dialect of a job's own `progress` expression. Raises DialectError with what to write instead."""
    if len(text) > 500:
        raise DialectError(f"the progress expression has {len(text)} characters, at most 500 are taken; shorten it")
    try:
        step = expression(text)
    except (re2.error, UnicodeEncodeError) as error:
        raise DialectError(
            f"the progress expression {text!r} is not understood by RE2 ({_text(error)}); look-arounds and"
            " back-references do not exist there"
        ) from error
    if b"step" not in step.groupindex:
        raise DialectError(f"the progress expression {text!r} has no group named step; write (?P<step>\\d+)")
    return Dialect("own", b"", step)


class ProgressReader:
    """Follows the progress of one attempt, block by block, oldest first."""

    def __init__(self, dialects: Sequence[Dialect] = DIALECTS, *, own: Dialect | None = None) -> None:
        self._dialects = [own] if own is not None else list(dialects)
        self.first: StepMark | None = None
        self.last: StepMark | None = None
        self.highest: int | None = None
        self.total: int | None = None
        self.checkpoint: int | None = None
        self.resumed: tuple[StepMark, ...] = ()
        """Where the counter jumped back: the first steps after it, at most 20."""
        self.marks: list[StepMark] = []
        """Step lines by place: all of blocks read with `every`, first and last of the others."""

    def read(self, block: Block, *, every: bool = False, checkpoints: bool = True) -> None:
        """Takes in the next block. `every` remembers each step line, to tell what came after a fault."""
        for mark in self._all(block) if every else self._ends(block):
            self._take(mark)
        if checkpoints:
            self._read_checkpoints(block)

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

    def _take(self, mark: StepMark) -> None:
        if self.last is not None and mark.step < self.last.step and len(self.resumed) < 20:
            self.resumed += (mark,)
        self.first = self.first or mark
        self.last = mark
        self.highest = mark.step if self.highest is None else max(self.highest, mark.step)
        self.total = mark.total if mark.total is not None else self.total
        if len(self.marks) == MARKS:
            self.marks.pop()
        self.marks.append(mark)

    def _ends(self, block: Block) -> list[StepMark]:
        """The first and the last step line of the block."""
        for dialect in tuple(self._dialects):
            spans = islice(_lines_backwards(block.text, dialect.anchor), TRIES)
            last = next(filter(None, (_mark(dialect, block, *span) for span in spans)), None)
            if last is not None:
                self._heard(dialect)
                spans = islice(_lines(block.text, dialect.anchor), TRIES)
                first = next(filter(None, (_mark(dialect, block, *span) for span in spans)), last)
                return [last] if first == last else [first, last]
        return []

    def _all(self, block: Block) -> list[StepMark]:
        """Every step line of the block, with exact offsets, in the first dialect that is spoken in it."""
        for dialect in tuple(self._dialects):
            marks = []
            for start, end in _lines(block.text, dialect.anchor):
                if (mark := _mark(dialect, block, start, end)) is not None:
                    marks.append(replace(mark, offset=block.where(start)[1]))
                elif not marks and start > len(block.text) // 2:
                    break  # nothing in half a block
            if marks:
                self._heard(dialect)
                return marks
        return []

    def _heard(self, dialect: Dialect) -> None:
        """A log rarely changes its dialect: what was heard is listened for first, and better than weak ones."""
        if not dialect.weak:
            self._dialects = [dialect, *(one for one in self._dialects if one is not dialect and not one.weak)]

    def _read_checkpoints(self, block: Block) -> None:
        for anchor in _CHECKPOINT_ANCHORS:
            for start, end in islice(_lines(block.text, anchor), TRIES):
                line = block.text[start:end]
                match = next(filter(None, (rule.search(line) for rule in _CHECKPOINTS)), None)
                if match is not None:
                    step = int(match.group(1))
                    self.checkpoint = step if self.checkpoint is None else max(self.checkpoint, step)


def _mark(dialect: Dialect, block: Block, start: int, end: int) -> StepMark | None:
    line = block.text[start:end]
    match = dialect.step.search(line)
    if match is None or any(word in line[: match.start()].lower() for word in _ASIDE):
        return None
    step = _number(match, dialect, b"step")
    if step is None:
        return None
    return StepMark(offset=block.offset + start, step=step, total=_number(match, dialect, b"total"))


def _number(match: Any, dialect: Dialect, name: bytes) -> int | None:
    if name not in dialect.step.groupindex or (text := match.group(dialect.step.groupindex[name])) is None:
        return None
    digits = text.strip().replace(b",", b"")
    return int(digits) if digits.isdigit() and len(digits) <= 12 else None


def _lines(text: bytes, anchor: bytes) -> Iterator[tuple[int, int]]:
    """Where lines with the anchor begin and end, from the front. Of long lines the part around it."""
    position = 0
    while position < len(text):
        at = text.find(anchor, position)
        if at < 0:
            return
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        yield max(text.rfind(b"\n", 0, at) + 1, at - LINE_BYTES), min(end, at + LINE_BYTES)
        position = end + 1


def _lines_backwards(text: bytes, anchor: bytes) -> Iterator[tuple[int, int]]:
    """The same from the end."""
    position = len(text)
    while position > 0:
        at = text.rfind(anchor, 0, position)
        if at < 0:
            return
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        start = text.rfind(b"\n", 0, at) + 1
        yield max(start, at - LINE_BYTES), min(end, at + LINE_BYTES)
        position = start - 1


def _text(error: Exception) -> str:
    return " ".join(part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in error.args)
