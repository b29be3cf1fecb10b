"""Reads what a training announces beside its steps: that it saves a checkpoint or evaluates, and that it is done.

Only used to be patient meanwhile (`hang.py`): a job that announces a phase that never ends is found later, not never.
"""

from __future__ import annotations

from recovery.faults.catalogue import expression
from recovery.pace import Phase

TEXT_BYTES = 64 << 10
"""Of a longer text only the end is looked at."""

_SAVED = expression(
    r"(?i)\bsaved\b.{0,60}\b(?:checkpoint|state|model)|\bcheckpoint\b.{0,100}\b(?:saved|complete|completed|written)\b"
)
_SAVING = expression(
    r"(?i)\b(?:saving|storing|writing)\b.{0,60}\b(?:checkpoint|model|state|snapshot|weights|optimizer)"
    r"|\b(?:start|begin)[a-z]{0,4}\b.{0,30}\b(?:checkpoint|saving|save)\b"
)
_EVALUATED = expression(
    r"(?i)\b(?:eval|validat)[a-z]{0,6}\b.{0,80}\b(?:loss|accuracy|acc|ppl|perplexity|done|finished|completed?|ended)\b"
)
_EVALUATING = expression(
    r"(?i)\b(?:running|start[a-z]{0,4}|begin[a-z]{0,4})\b.{0,30}\b(?:eval|evaluation|validation)\b"
    r"|\b(?:evaluating|validating)\b|\bvalidation dataloader\b"
)
_RULES = ((_SAVED, Phase.NONE), (_SAVING, Phase.SAVE), (_EVALUATED, Phase.NONE), (_EVALUATING, Phase.EVAL))


def announced(text: bytes) -> Phase | None:
    """The phase that the last telling line of a text leaves the job in; None when no line tells of one."""
    text = text[-TEXT_BYTES:].replace(b"\r", b"\n")
    last, found = -1, None
    for rule, phase in _RULES:
        for match in rule.finditer(text):
            line = text.rfind(b"\n", 0, match.start()) + 1
            # What is over counts in a line that has both words.
            if line > last or (line == last and phase is Phase.NONE):
                last, found = line, phase
    return found
