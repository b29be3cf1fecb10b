"""Learns how one job goes, from what its log showed at each sweep: how long its steps, pauses and start-ups take.

What was learned is kept over attempts and restarts of the sweep, bounded (under 1 kB as JSON). Time in which nobody
could look is never taken for silence, and nothing is learned from it. Whether the job hangs or lags is judged in
`hang.py` and `straggler.py`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pydantic import Field

from recovery.records import Record, Time

FIRST_LOOKS = 3
"""New steps seen in this many looks after a start are not learned from: compilation, caches, clocks that ramp up."""

WINDOWS = 12
"""Windows of steps that are remembered."""

WINDOW_STEPS = 8
"""Fewest steps in a window: a median of windows of fewer steps would follow chance."""

FIRST_WINDOWS = 4
"""So many windows tell what is usual."""

KNOWN_LOOKS = 5
"""Looks with new steps after which a typical wait is known, before any window is full."""

PAUSES = 6
"""Unannounced long pauses that are remembered."""

PHASES = 4
"""Start-ups, evaluations and saves that are remembered, each."""

PAUSE_TIMES = 5.0
"""Waiting this many times longer than typical for a new step is a pause, not a slow step."""

PAUSES_IN_A_ROW = 2
"""More pauses one after the other are no pauses: the job has become that slow."""

DRIFT = 1.15
"""A window up to this many times slower than usual still tells what is usual."""

NEW_USUAL = 2 * WINDOWS
"""After so many slow windows in a row the job is held to be meant to go like that (longer sequences, more layers)."""

WORDS = 3
"""Fault signatures remembered since the last step."""


class Phase(StrEnum):
    """What the log says that the job has begun beside training."""

    NONE = ""
    SAVE = "save"
    EVAL = "eval"


class Look(Record):
    """What one look at the job's log showed that was new."""

    at: Time
    attempt: int
    started: Time | None = Field(default=None, description="start of the attempt, as Slurm tells")
    readable: bool = Field(default=True, description="False: the log could not be read, nothing is known")
    grew: bool = Field(default=False, description="there were new lines, whatever they say")
    step: int | None = Field(default=None, description="of the last new line that tells a completed step")
    phase: Phase | None = Field(default=None, description="what was begun (or ended: NONE) after that line")
    words: tuple[str, ...] = Field(default=(), description="fault signatures told after that line")


class Window(NamedTuple):
    """Some steps in a row, without pauses."""

    steps: int = 0
    seconds: float = 0.0
    looks: int = 0
    """Looks that showed new steps."""
    longest: float = 0.0
    """Longest wait for a new step."""

    @property
    def step_s(self) -> float:
        """Seconds of a step, without the longest wait: one short evaluation does not make a window slow."""
        if self.looks < 3:
            return self.seconds / max(1, self.steps)
        return (self.seconds - self.longest) / (self.steps * (1 - 1 / self.looks))


class Pace(Record):
    """How one job goes. The first part is about the current attempt, the second was learned over all of them."""

    attempt: int = -1
    begun: Time | None = Field(default=None, description="first look at this attempt")
    looked_at: Time | None = None
    step: int | None = Field(default=None, description="last completed step; the counter may jump back")
    at: Time | None = Field(default=None, description="when that was seen")
    after_at: Time | None = Field(default=None, description="it was completed after this: the last look without it")
    blind_s: float = Field(default=0.0, description="seconds since then (or since `begun`) in which nobody could look")
    grew_at: Time | None = None
    looks: int = Field(default=0, description="looks that showed new steps")
    phase: Phase = Phase.NONE
    words: tuple[str, ...] = ()
    words_at: Time | None = None

    knows_steps: bool = Field(
        default=False, description="a completed step was ever read; otherwise nobody may understand how it writes them"
    )
    open: Window = Window()
    windows: tuple[Window, ...] = ()
    in_a_row: int = Field(default=0, description="pauses one after the other, up to now")
    pauses: tuple[tuple[int, float], ...] = Field(default=(), description="unannounced: after which step, how long")
    saves: tuple[float, ...] = ()
    evals: tuple[float, ...] = ()
    starts: tuple[float, ...] = Field(default=(), description="seconds from start to first step, of attempts")
    usual_s: float | None = Field(default=None, description="seconds of a step while nothing is wrong")
    slow: int = Field(default=0, description="windows in a row slower than usual, up to now")
    slow_at: Time | None = None

    @property
    def longest_s(self) -> float:
        """Longest normal wait for a new step; 0 while unknown."""
        return max((window.longest for window in (*self.windows, self.open)), default=0.0)

    def went_on_at(self, attempt: int, *, newer: bool = False) -> datetime | None:
        """A moment after which the attempt's latest step was certainly completed; None: not known. `newer`: there is
        one that was not there at the last look."""
        if attempt != self.attempt:
            return None
        if not newer:
            return self.after_at
        return self.looked_at if self.blind_s == 0 else self.at

    def quiet_s(self, now: datetime) -> float:
        """Seconds without a new completed step in which somebody looked."""
        since = self.at or self.begun
        return 0.0 if since is None else max(0.0, (now - since).total_seconds() - self.blind_s)

    def typical_wait_s(self) -> float | None:
        """Seconds between two looks that show new steps; None while unknown."""
        waits = [window.seconds / window.looks for window in self.windows if window.looks]
        if not waits and self.open.looks >= KNOWN_LOOKS:
            waits = [self.open.seconds / self.open.looks]
        return median(waits) if waits else None

    def pause_is_due(self) -> bool:
        """Whether a pause may follow the current step: always, unless all pauses came every N steps."""
        places = sorted({step for step, _ in self.pauses})
        if self.step is None or len(places) < 3:
            return bool(places)
        apart = [later - earlier for earlier, later in pairwise(places)]
        period = min(apart)
        slack = max(1, period // 20)
        if not all(_near_multiple(steps, period, slack) for steps in apart):
            return True
        return _near_multiple(self.step - places[-1], period, slack)

    def same_but_for_time(self, other: Pace) -> bool:
        """Whether nothing happened between two of its states but that time went by."""
        return self.model_copy(update={"looked_at": other.looked_at, "blind_s": other.blind_s}) == other


def after(pace: Pace, look: Look, *, window_s: float, outage_s: float) -> Pace:
    """The pace after one more look. `window_s`: least length of a window of steps; `outage_s`: a longer time between
    two looks means that nobody looked meanwhile."""
    if look.attempt != pace.attempt or pace.begun is None:
        pace = _next_attempt(pace, look)
    apart = (look.at - pace.looked_at).total_seconds() if pace.looked_at is not None else 0.0
    seen_at = pace.looked_at
    blind = pace.blind_s + (apart if not look.readable or apart > outage_s else 0.0)
    pace = pace.model_copy(update={"looked_at": look.at, "blind_s": round(blind, 1)})
    if not look.readable:
        return pace
    if look.grew:
        pace = pace.model_copy(update={"grew_at": look.at})
    if look.step is None or look.step == pace.step:
        return _without_step(pace, look)
    learned = _learned(pace, look, window_s)
    return learned.model_copy(
        update={
            "step": look.step,
            "at": look.at,
            "after_at": (seen_at if blind == 0 else pace.at) or look.started,
            "knows_steps": True,
            "blind_s": 0.0,
            "looks": pace.looks + 1,
            "phase": look.phase or Phase.NONE,
            "words": look.words[:WORDS],
            "words_at": look.at if look.words else None,
        }
    )


def _next_attempt(pace: Pace, look: Look) -> Pace:
    kept = ("knows_steps", "windows", "pauses", "saves", "evals", "starts", "usual_s")
    learned = {name: getattr(pace, name) for name in kept}
    return Pace(attempt=look.attempt, begun=look.at, **learned)


def _without_step(pace: Pace, look: Look) -> Pace:
    changes: dict[str, object] = {}
    if look.phase is not None and look.phase is not pace.phase:
        changes["phase"] = look.phase
    words = tuple(dict.fromkeys((*pace.words, *look.words)))[:WORDS]
    if words != pace.words:
        changes |= {"words": words, "words_at": pace.words_at or look.at}
    return pace.model_copy(update=changes) if changes else pace


def _learned(pace: Pace, look: Look, window_s: float) -> Pace:
    """What the steps of this look teach. Nothing where somebody could not look, or the counter jumped back."""
    assert look.step is not None
    if pace.at is None or pace.step is None:
        return _started(pace, look)
    steps, waited = look.step - pace.step, (look.at - pace.at).total_seconds()
    if steps <= 0 or pace.blind_s > 0 or pace.looks < FIRST_LOOKS:
        return pace
    if pace.phase is not Phase.NONE:
        name = "saves" if pace.phase is Phase.SAVE else "evals"
        known: tuple[float, ...] = getattr(pace, name)
        return pace.model_copy(update={name: (*known, round(waited, 1))[-PHASES:]})
    typical = pace.typical_wait_s()
    long = typical is not None and waited > PAUSE_TIMES * typical
    if long and pace.in_a_row < PAUSES_IN_A_ROW:
        pauses = (*pace.pauses, (pace.step, round(waited, 1)))[-PAUSES:]
        return pace.model_copy(update={"pauses": pauses, "in_a_row": pace.in_a_row + 1})
    before = pace.open
    window = Window(
        before.steps + steps,
        round(before.seconds + waited, 2),
        before.looks + 1,
        round(max(before.longest, waited), 2),
    )
    pace = pace.model_copy(update={"in_a_row": pace.in_a_row if long else 0, "open": window})
    if window.seconds < window_s or window.steps < WINDOW_STEPS:
        return pace
    return _closed(pace, window, look.at)


def _started(pace: Pace, look: Look) -> Pace:
    """The first step of an attempt. When it came is known only if somebody had looked before."""
    if look.started is None or pace.begun is None or pace.begun >= look.at or pace.blind_s > 0:
        return pace
    took = max(0.0, (look.at - look.started).total_seconds())
    return pace.model_copy(update={"starts": (*pace.starts, round(took, 1))[-PHASES:]})


def _closed(pace: Pace, window: Window, now: datetime) -> Pace:
    """A window is full: remember it, and what is usual."""
    windows = (*pace.windows, window)[-WINDOWS:]
    step_s = window.step_s
    usual, slow, slow_at = pace.usual_s, pace.slow, pace.slow_at
    if usual is None:
        if len(windows) >= FIRST_WINDOWS:
            usual = median(one.step_s for one in windows)
    else:
        slow, slow_at = (slow + 1, slow_at or pace.at or now) if step_s > DRIFT * usual else (0, None)
        if slow <= 1:  # one slow window is chance and counts, as a fast one does; more of them are told, not learned
            usual += 0.1 * (min(step_s, DRIFT * usual) - usual)
        if slow >= NEW_USUAL:
            usual, slow, slow_at = median(one.step_s for one in windows), 0, None
    return pace.model_copy(
        update={
            "open": Window(),
            "windows": windows,
            "usual_s": None if usual is None else float(f"{usual:.5g}"),
            "slow": slow,
            "slow_at": slow_at,
        }
    )


def _near_multiple(steps: int, period: int, slack: int) -> bool:
    rest = steps % period
    return min(rest, period - rest) <= slack
