"""How training frameworks write that a step was completed, and that a checkpoint was: expressions, nothing else.

Only what is completed counts: a checkpoint that is being saved does not, a step of an evaluation does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recovery.directive import MAX_PROGRESS
from recovery.faults.expressions import ExpressionError, expression, said


class DialectError(ValueError):
    """A job's own progress expression cannot be used. The message says why."""


@dataclass(frozen=True)
class Dialect:
    """How one framework writes a completed step. The expression is RE2 over bytes, applied to one line."""

    name: str
    anchor: bytes
    """Literal text that every such line holds; searched first, because that is quick. Empty: no such text."""
    text: str
    """Captures `step`; `total` where the line tells it; `epoch` where steps are counted anew in each epoch."""
    weak: bool = False
    """Also evaluation and data loading write such lines: counts only where nothing better is spoken."""

    @cached_property
    def step(self) -> Any:
        return expression(self.text)

    @cached_property
    def groups(self) -> Mapping[bytes, int]:
        """The numbers of its groups."""
        return dict(self.step.groupindex)


_COUNT = r"(?P<step>\d{1,12})(?:\]|\b)(?: ?(?:/|of) ?(?P<total>\d{1,12})\b)?"
_VALUE = (
    r".*\b(?:[a-z_]*loss|step_time|time|throughput|it/s|tokens|tps|lr|skipped|acc|seconds|done|finished|completed)\b"
)
"""What stands behind the step makes such a line a completed step and not a setting."""
_BAR = r"\| ?(?P<step>\d{1,12})/(?P<total>\d{1,12}) \[[\d:?]+<[\d:?]+, *[\d.?]+(?:it/s|s/it)"

DIALECTS: tuple[Dialect, ...] = (
    Dialect("Megatron-LM", b"iteration ", r"(?:^|[\] ])iteration +(?P<step>\d{1,12})/ *(?P<total>\d{1,12}) *\|"),
    Dialect(
        "global_step/max_steps",
        b"global_step/max_steps",
        r"global_step/max_steps'?: '?(?P<step>\d{1,12})/(?P<total>\d{1,12})",
    ),
    Dialect("[batch=…]", b"[batch=", r"\[batch=(?P<step>\d{1,12})(?:/(?P<total>\d{1,12}))?\]"),
    Dialect("num_updates", b"num_updates", r"num_updates\"?[=:] ?\"?(?P<step>\d{1,12})\b"),
    Dialect("step …", b"step", r"(?:^|[^A-Za-z_\d])(?:global_)?step(?:s|[_ ]num)?[ :=]+\[?" + _COUNT + _VALUE),
    Dialect("loss …, step …", b"step", r"\bloss ?[=:] ?[-+.\deE]+.*\b(?:global_)?step ?[=:] ?" + _COUNT),
    Dialect("Step …", b"Step", r"(?:^|[^A-Za-z_\d])Step[ :=]+\[?" + _COUNT + r".*\b[Ll]oss\b"),
    Dialect("iter …", b"iter", r"(?:^|[^A-Za-z_\d])iter(?:ation)?[ :=#]+" + _COUNT + r".*\b[a-z_]*loss\b"),
    Dialect("Lightning", b"Epoch ", r"\bEpoch (?P<epoch>\d{1,6}):? .*" + _BAR),
    Dialect("progress bar", b"it/s", _BAR, weak=True),
    Dialect("slow progress bar", b"s/it", _BAR, weak=True),
    Dialect(
        "bar without end", b"it [", r"(?:^|[:,] ?)(?P<step>\d{1,12})it \[[\d:]+, *[\d.?]+ ?(?:it/s|s/it)", weak=True
    ),
)

ASIDE = (b"eval", b"valid", b"test", b"sanity", b"predict", b"generat")
"""Words before a step (in small letters) that make it no step of the training."""

BAR_NAME = expression(r"(?P<name>[A-Za-z][A-Za-z0-9 _()/-]*): *\d{1,3}%\|")
NOT_TRAINING = (
    b"map", b"filter", b"load", b"fetch", b"token", b"cach", b"sav", b"cast", b"process", b"prepar", b"build", b"split",
    b"extract", b"merg", b"quantiz", b"pack", b"read", b"shard", b"files",
)  # fmt: skip
"""Words in the name of a progress bar that is not the training's."""

_AT_STEP = r"\b(?:step|iteration|iter)s?[ _:=-]*0*(?P<step>\d{1,12})\b"
CHECKPOINTS: tuple[Any, ...] = (
    expression(r"(?i)\bsaved (?:a )?checkpoint\b.{0,100}?" + _AT_STEP),
    expression(r"(?i)\bcheckpoint saved\b.{0,100}?" + _AT_STEP),
    expression(r"(?i)\bcheckpoint\b.{0,60}?" + _AT_STEP + r".{0,100}?\b(?:saved|complete|completed|finalized)\b"),
    expression(r"(?i)\bcheckpoint global_?step_?(?P<step>\d{1,12}) is ready\b"),
    expression(
        r"(?i)\bfinished (?:async[_ -]?)?sav(?:e|ing)\b.{0,60}\bcheckpoints?\b.{0,200}?[/ ](?P<step>\d{1,12})\b"
    ),
)
"""Lines that tell of a completed checkpoint, by its step."""

BEGUN = expression(r"(?i)\bsaving model checkpoint to \S{0,400}checkpoint-(?P<step>\d{1,12})\b")
"""A checkpoint that is saved before the next step begins: done as soon as a later step is."""

CHECKPOINT_MARK = (
    r"(?i)saved (?:a )?checkpoint|checkpoint saved|checkpoint .*(?:saved|complete|finalized)\b"
    r"|checkpoint global_?step_?\d+ is ready|finished (?:async[_ -]?)?sav(?:e|ing)\b.*checkpoint"
    r"|saving model checkpoint to"
)
"""Hyperscan pattern for the lines that may tell of one; see Scanner's `marks`."""


def own_dialect(text: str) -> Dialect:
    """The dialect of a job's own `progress` expression. Raises DialectError with what to write instead."""
    if len(text) > MAX_PROGRESS:
        reason = f"has {len(text)} characters, at most {MAX_PROGRESS} are taken; shorten it"
        raise DialectError(f"the progress expression {reason}")
    try:
        step = expression(text)
    except ExpressionError as error:
        raise DialectError(
            f"the progress expression {text!r} is not understood by RE2 ({said(error)}); look-arounds and"
            " back-references do not exist there"
        ) from error
    if b"step" not in step.groupindex:
        raise DialectError(f"the progress expression {text!r} has no group named step; write (?P<step>\\d+)")
    return Dialect("own", b"", text)
