"""Compiles expressions: RE2 for what is captured, Hyperscan for finding many at once. Both take time that grows with
the text and never more, whatever stands in the expression. Nothing is known here of what they mean.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import hyperscan
import re2

ExpressionError = (re2.error, UnicodeEncodeError)
"""What `expression` raises."""


@lru_cache(maxsize=8_192)
def expression(pattern: str) -> Any:
    """An RE2 expression over bytes. Latin-1, so that every byte is a character and nothing needs decoding first."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_nl = False
    return re2.compile(pattern.encode("latin-1"), options)


def groups_of(pattern: str) -> frozenset[str]:
    """The names of the groups of an expression."""
    return frozenset(name.decode() for name in expression(pattern).groupindex)


def database(
    patterns: tuple[str, ...], *, places: tuple[str, ...] = (), presence_only: bool = False
) -> hyperscan.Database:
    """A block mode database of its own; pattern ids are their positions, those of `places` follow.

    With `presence_only` each of `patterns` is told once at most; `places` are told wherever they match. One thread at
    a time may scan with it.
    """
    loaded = hyperscan.loadb(compiled(patterns, places, presence_only=presence_only), hyperscan.HS_MODE_BLOCK)
    loaded.scratch = hyperscan.Scratch(loaded)
    return loaded


@lru_cache(maxsize=16)
def compiled(patterns: tuple[str, ...], places: tuple[str, ...] = (), *, presence_only: bool = False) -> bytes:
    """A serialised database. Compiling takes milliseconds a pattern, loading what was compiled next to nothing.

    Raises hyperscan.error for what cannot be expressed.
    """
    once = hyperscan.HS_FLAG_MULTILINE | (hyperscan.HS_FLAG_SINGLEMATCH if presence_only else 0)
    every = (*patterns, *places)
    fresh = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    fresh.compile(
        expressions=[pattern.encode("latin-1") for pattern in every],
        ids=list(range(len(every))),
        elements=len(every),
        flags=[once] * len(patterns) + [hyperscan.HS_FLAG_MULTILINE] * len(places),
    )
    return bytes(hyperscan.dumpb(fresh))


def said(error: Exception) -> str:
    """What an error of either library says, as text."""
    return " ".join(part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in error.args)
