"""How a made-up log is told: a story takes a lab, makes things happen in it, and says what the diagnosis must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recovery.records import FaultClass, Retry
from tests.recovery.lookalike_lab import Lab


@dataclass(frozen=True)
class Expected:
    fault: bool
    fault_class: FaultClass
    retry: Retry
    exclude: frozenset[str] = frozenset()
    """Nodes that the next attempt should keep off."""
    happened_on: frozenset[str] = frozenset()
    """Nodes where it merely happened: they may be suspects, nobody else."""


HEALTHY = Expected(False, FaultClass.NONE, Retry.HANDS_OFF)

Tell = Callable[[Lab], Expected]


@dataclass(frozen=True)
class Story:
    tell: Tell
    per_node: Sequence[int]
    """How many ranks a node may have in it."""


STORIES: dict[str, Story] = {}


def story(*, per_node: Sequence[int] = (1, 2, 4)) -> Callable[[Tell], Tell]:
    """Adds a function to the stories; its name is that of the kind of log."""

    def added(tell: Tell) -> Tell:
        STORIES[tell.__name__] = Story(tell, per_node)
        return tell

    return added


def crash(lab: Lab, error: str, where: str = "loss = step()") -> int:
    """One rank ends with an error of its own after some steps, the others lose it. The rank."""
    lab.run()
    rank = lab.random.choice(lab.ranks)
    lab.traceback(rank, error, where)
    lab.fall({rank}, {rank: 1})
    return rank
