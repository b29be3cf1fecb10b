"""Makes any text fit for every database: what jobs print may hold NUL bytes, lone surrogates and terminal commands.

Text for people is cleaned and cut with a mark, names that identify something keep their identity when they are too
long, and text that must come back unchanged (paths, cursors) is escaped. Nothing in here ever raises for a value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from hashlib import sha256

CUT = " …[cut]"
"""Stands at the end of text that was longer than its column."""

_MAX_DEPTH = 20
_MAX_BITS = 1024  # Python refuses to print numbers of more than 4,300 digits
_SMALL_STRING = 500
_PLAIN_NAME = re.compile(r"[!-~]+")  # printable ASCII without the space, which MariaDB ignores at the end
_NOT_PLAIN = re.compile(r"[^!-~]")

# Control characters (a terminal obeys them), bidirectional overrides (a reader is fooled by them), lone surrogates
# (no UTF-8 exists for them) and NUL (PostgreSQL refuses it). Tab and newline stay.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)  # ␀ … ␟
    if code == 0x7F:
        return "␡"
    if code < 0xA0:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8, as Python's surrogateescape holds it
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}"


def clean(value: object) -> str:
    """The value as text that every database takes and no terminal obeys; unfit characters are shown, not dropped."""
    text = value if type(value) is str else str(value)
    return _UNFIT.sub(_visible, text)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters; a longer text ends in CUT."""
    return text if len(text) <= limit else text[: max(0, limit - len(CUT))] + CUT[:limit]


def words(value: object, limit: int) -> str:
    """Text for people: cleaned, then cut."""
    return cut(clean(value), limit)


def name(value: object, limit: int) -> str:
    """Text that identifies something: the same text gives the same name, different texts give different names.

    Plain short names stay as they are. Others get a digest, since cutting, cleaning or MariaDB's indifference to
    trailing spaces would make two of them one. The name of a name is the name itself.
    """
    text = str(value)
    if not text or (len(text) <= limit and _PLAIN_NAME.fullmatch(text)):
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return _NOT_PLAIN.sub("_", text)[: limit - len(digest) - 1] + "#" + digest


def escape(text: str) -> str:
    """ASCII text from which `unescape` gets back exactly the same text, surrogates and NUL included."""
    return text.encode("unicode_escape").decode("ascii")


def unescape(text: str) -> str:
    return text.encode("ascii").decode("unicode_escape")


def to_json(value: object, limit: int) -> str:
    """`value` as JSON text of at most `limit` characters, its strings cleaned.

    Too long a value first loses the ends of its long strings, then everything but a note and its beginning: the
    result is always valid JSON.
    """
    text = _dump(_plain(value, limit, _MAX_DEPTH))
    if len(text) <= limit:
        return text
    shorter = _dump(_plain(value, _SMALL_STRING, _MAX_DEPTH))
    if len(shorter) <= limit:
        return shorter
    return _dump({"cut": len(text), "start": cut(text, max(len(CUT), limit // 8))})  # escapes grow a text 6 times


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: object, longest: int, depth: int) -> object:
    """Only what JSON has, no deeper than `depth`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, longest, depth)
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_BITS else words(hex(value), longest)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return words(value, longest)
    if isinstance(value, bytes):
        return words(value.decode("utf-8", "surrogateescape"), longest)
    if isinstance(value, datetime):
        return value.isoformat()
    if depth == 0:
        return CUT.strip()
    if isinstance(value, Mapping):
        return {words(key, longest): _plain(item, longest, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, longest, depth - 1) for item in value]
    if isinstance(value, set | frozenset):
        return [_plain(item, longest, depth - 1) for item in sorted(value, key=str)]
    return words(value, longest)
