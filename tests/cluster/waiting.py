"""Waits for something to become true, with a deadline; the only place of the test tools that sleeps."""

import time
from collections.abc import Callable


class NeverHappened(AssertionError):
    """What was waited for did not happen before the deadline."""


def until(ready: Callable[[], object], what: str, *, timeout_s: float, every_s: float = 0.03) -> None:
    """Calls `ready` until it answers something true. `what` completes the sentence "… within N s"."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise NeverHappened(f"{what}: not within {timeout_s:g} s")
        time.sleep(every_s)
