"""Text as pages and answers show it: without control characters, cut, with times and ages in words.

Escaping for HTML is the templates' work and happens to everything that is put into them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from activities.audit.text import words


def shown(text: object, limit: int = 2_000) -> str:
    """Text of a user: what could command a terminal or fool a reader is made visible, what is too long is cut."""
    return words(text, limit)


def flat(text: object, limit: int = 300) -> str:
    """The same on one line."""
    return " ".join(shown(text, limit).split())


def clock(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}Z" if time is not None else "–"


def span(length: timedelta | float | None) -> str:
    """A length of time in its two largest units."""
    if length is None:
        return "–"
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    whole = int(max(0.0, seconds))
    if whole >= 2 * 86_400:
        return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole} s"
