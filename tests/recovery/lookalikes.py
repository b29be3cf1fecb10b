"""All kinds of made-up logs, and one of a kind as a seed draws it."""

from __future__ import annotations

from tests.recovery import lookalikes_healthy, lookalikes_nodes, lookalikes_own
from tests.recovery.lookalike_lab import Lab
from tests.recovery.lookalike_stories import STORIES, Expected

__all__ = ["STORIES", "lookalikes_healthy", "lookalikes_nodes", "lookalikes_own", "made"]


def made(name: str, seed: int) -> tuple[Lab, Expected]:
    """A log of that kind and what is expected of its diagnosis."""
    story = STORIES[name]
    lab = Lab(seed, per_node=story.per_node)
    return lab, story.tell(lab)
