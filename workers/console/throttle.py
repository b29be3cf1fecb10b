"""Tells who guesses tokens: after some failures an address, and after many everybody with a wrong one, is sent away."""

from __future__ import annotations

import time
from collections import OrderedDict, deque

WINDOW_S = 60.0
MOST_OF_ONE = 5
MOST_OF_ALL = 60
REMEMBERED = 1000


class Throttle:
    """Counts failures within a sliding minute. Memory is bounded, however many addresses fail."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=MOST_OF_ALL)

    def failed(self, place: str) -> None:
        now = time.monotonic()
        self._of.setdefault(place, deque(maxlen=MOST_OF_ONE)).append(now)
        self._of.move_to_end(place)
        while len(self._of) > REMEMBERED:
            self._of.popitem(last=False)
        self._all.append(now)

    def is_hot(self, place: str) -> bool:
        now = time.monotonic()
        mine = self._of.get(place, ())
        return _recent(mine, now) >= MOST_OF_ONE or _recent(self._all, now) >= MOST_OF_ALL


def _recent(times: deque[float] | tuple[()], now: float) -> int:
    return sum(1 for one in times if now - one < WINDOW_S)
