"""A made-up training as the sweep sees it: what it prints and when, sampled every few seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from recovery.hang import Hang, judge
from recovery.pace import Look, Pace, Phase, after
from recovery.policy_numbers import Policy
from recovery.straggler import Straggler, window_s
from recovery.straggler import judge as judge_straggler
from tests.recovery.situations import at


@dataclass
class Printed:
    """Lines of the log with the second they came at: a step number, a phase or a fault's signature each."""

    lines: list[tuple[float, int | Phase | str]] = field(default_factory=list)
    now: float = 0.0
    step: int = 0

    def steps(self, count: int, *seconds: float, random: Random | None = None) -> Printed:
        """Completes steps; each takes one of `seconds`, or between the two of them where `random` is given."""
        for number in range(count):
            took = random.uniform(*seconds) if random is not None else seconds[number % len(seconds)]
            self.now += took
            self.step += 1
            self.lines.append((self.now, self.step))
        return self

    def pause(self, seconds: float, announced: Phase | None = None) -> Printed:
        if announced is not None:
            self.lines.append((self.now + 0.01, announced))
        self.now += seconds
        return self

    def says(self, words: str) -> Printed:
        """A fault's signature, or nothing that anybody knows ("")."""
        self.lines.append((self.now + 0.02, words))
        return self

    def back_to(self, step: int) -> Printed:
        self.step = step
        return self


@dataclass(frozen=True)
class Sampled:
    """One sweep's view."""

    second: float
    pace: Pace
    hang: Hang | None
    straggler: Straggler | None


def sampled(
    printed: Printed,
    policy: Policy,
    *,
    until: float | None = None,
    every: float = 2.0,
    jitter: float = 0.0,
    pace: Pace | None = None,
    attempt: int = 0,
    begins: float = 0.0,
    blind: Sequence[tuple[float, float]] = (),
    away: Sequence[tuple[float, float]] = (),
    random: Random | None = None,
) -> Iterator[Sampled]:
    """Sweeps over the log from its beginning. `blind`: seconds in which it could not be read; `away`: in which there
    was no sweep. Each pace goes through JSON, as the sweep's cursor does."""
    random = random or Random(1)
    pace = pace or Pace()
    hang: Hang | None = None
    lag: Straggler | None = None
    place, second = 0, 0.0
    last = printed.now if until is None else until
    while second <= last:
        if not any(start <= second < end for start, end in away):
            lost = any(start <= second < end for start, end in blind)
            look = Look(at=moment(begins + second), attempt=attempt, started=moment(begins), readable=not lost)
            if not lost:
                news = [line for line in printed.lines[place:] if line[0] <= second]
                place += len(news)
                look = _look(look, [what for _, what in news])
            pace = after(pace, look, window_s=window_s(policy), outage_s=max(30.0, 5 * every))
            pace = Pace.model_validate_json(pace.model_dump_json())
            hang = judge(pace, policy, look.at, before=hang)
            lag = judge_straggler(pace, policy, before=lag)
            yield Sampled(second, pace, hang, lag)
        second += every + random.uniform(0, jitter)


def moment(second: float) -> datetime:
    return at(0) + timedelta(seconds=second)


def _look(look: Look, news: list[int | Phase | str]) -> Look:
    step: int | None = None
    phase: Phase | None = None
    words: list[str] = []
    for line in news:
        if isinstance(line, Phase):
            phase = line
        elif isinstance(line, int):
            step, phase, words = line, None, []
        elif line:
            words.append(line)
    return look.model_copy(update={"grew": bool(news), "step": step, "phase": phase, "words": tuple(words)})
