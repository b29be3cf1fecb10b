"""What a wrong name may have been meant to be, in words for its refusal. Never corrects a name by itself."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

MOST_MEANT = 3
MOST_KNOWN = 8


def meant(wrong: str, known: Collection[str]) -> str:
    """`; did you mean n07 or n17?`, else what there is, else nothing."""
    near = get_close_matches(wrong, known, n=MOST_MEANT, cutoff=0.6)
    if near:
        return f"; did you mean {' or '.join(sorted(near))}?"
    if not known:
        return ""
    shown = sorted(known)
    more = f" and {len(shown) - MOST_KNOWN} more" if len(shown) > MOST_KNOWN else ""
    return f"; known: {', '.join(shown[:MOST_KNOWN])}{more}"
