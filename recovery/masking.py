"""Takes secrets, folders and names of people out of text before it may leave the site. Pure.

It finds what looks like a secret; what does not look like one it cannot know. What must not leave under any
circumstances must not be sent: see docs/attribution.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recovery.attribution import Question
from recovery.faults.expressions import expression
from recovery.records import Record

MASK = "***"
SHORTEST_NAME = 3
"""Shorter names of users would mask ordinary words."""

_SYSTEM = frozenset({b"usr", b"opt", b"lib", b"lib64", b"bin", b"sbin", b"proc", b"sys", b"dev", b"etc", b"run"})
"""Folders that every machine has: paths below them tell of the software, not of the user."""

_SECRETS = (
    (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*", rb"***"),
    (r"([a-zA-Z][a-zA-Z0-9+.-]{1,20}://)[^/\s@]+@", rb"\1***@"),
    (r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}", rb"\1\2***"),
    (r"(?i)\b(token)(\s+)[A-Za-z0-9._~+/=-]{20,}", rb"\1\2***"),
    (r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}", rb"***"),
    (r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|nvapi-|xox[abeprs]-|AKIA|ASIA)[A-Za-z0-9_-]{10,}", rb"***"),
    (r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*)?", rb"***"),
    (r"\b[0-9a-f]{40}\b", rb"***"),
)
_ASSIGNED = (
    r"(?i)([a-z0-9_.-]*(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
    r"[a-z0-9_-]*[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s\"',;&)}\]]+)"
)
_OPTION = r"(?i)(--?[a-z0-9-]*(?:password|passwd|secret|token|api-?key|access-?key)\s+)([^\s-][^\s]*)"
_PATH = r"(^|[^A-Za-z0-9_/.<-])(/[^\s/:;,\"'()<>|=]+(?:/[^\s/:;,\"'()<>|=]+)+/?)"
_MAIL = r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"


class MaskRules(Record):
    """What is taken out."""

    secrets: bool = True
    paths: bool = True
    users: bool = True
    more: tuple[str, ...] = ()


def masked_question(question: Question, rules: MaskRules) -> Question:
    """The question as it may be sent. Hosts and ranks stay: they are what is asked about."""
    names = (question.user, question.account)
    lines = tuple(line.model_copy(update={"text": masked(line.text, rules, names)}) for line in question.lines)
    gone = {"user": "", "account": ""} if rules.users else {}
    return question.model_copy(update={"lines": lines, **gone})


def masked(text: str, rules: MaskRules, names: Sequence[str] = ()) -> str:
    """A text as it may be sent; `names` are users and accounts."""
    data = text.encode("utf-8", "surrogateescape")
    for pattern in rules.more:
        data = expression(pattern).sub(MASK.encode(), data)
    if rules.secrets:
        for pattern, instead in _SECRETS:
            data = expression(pattern).sub(instead, data)
        data = expression(_ASSIGNED).sub(_without_value, data)
        data = expression(_OPTION).sub(_without_value, data)
    if rules.paths:
        data = expression(_PATH).sub(_without_folders, data)
    if rules.users:
        data = expression(_MAIL).sub(rb"USER", data)
        for name in names:
            if len(name) >= SHORTEST_NAME:
                data = expression(_word(name)).sub(rb"\1USER\2", data)
    return data.decode("utf-8", "replace")


def _without_value(match: Any) -> bytes:
    """`key=***`. Numbers stay: trainings print counts of tokens in every line."""
    key, value = match.group(1), match.group(2)
    number = value.replace(b".", b"").replace(b"_", b"").isdigit()
    return bytes(match.group(0)) if number else bytes(key) + MASK.encode()


def _without_folders(match: Any) -> bytes:
    before, path = match.group(1), match.group(2)
    parts = path.rstrip(b"/").split(b"/")
    if parts[1] in _SYSTEM:
        return bytes(match.group(0))
    return bytes(before + b"/" + MASK.encode() + b"/" + parts[-1])


def _word(name: str) -> str:
    """The name as a word of its own, also beside `_` and digits."""
    letters = name.encode("utf-8", "surrogateescape")
    quoted = "".join(chr(one) if one < 128 and chr(one).isalnum() else f"\\x{one:02x}" for one in letters)
    return rf"(?i)(^|[^A-Za-z]){quoted}(\b|[_0-9])"
