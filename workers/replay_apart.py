"""Replays a history in a process of its own, which is ended when it does not end by itself.

The SDK's core trusts histories: one that no worker wrote makes it panic or wait for ever, with pages of words.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from activities.contracts import DecideJob, Decision
from workers.replaying import Replayed

LEAST_LIMIT_S, EVENTS_PER_S = 60, 100
"""Longest replay of one history: a real one of 50,000 events takes seconds."""


def replay_apart(workflow_id: str, history: dict[str, Any]) -> Replayed:
    """Never raises for what stands in the history."""
    events = history.get("events")
    limit_s = LEAST_LIMIT_S + (len(events) if isinstance(events, list) else 0) // EVENTS_PER_S
    # -P: a folder named like one of ours, where the command was called, is not to answer in its place.
    words = [sys.executable, "-P", "-m", "workers.replaying"]
    try:
        ended = subprocess.run(
            words,
            input=json.dumps({"workflow_id": workflow_id, "history": history}).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
        told = json.loads(ended.stdout)
        decisions = [(DecideJob.model_validate(a), Decision.model_validate(b)) for a, b in told["decisions"]]
        return Replayed(decisions, str(told["problem"]))
    except subprocess.TimeoutExpired:
        return Replayed([], f"the replay did not end within {limit_s} s: no worker wrote such a history")
    except (ValueError, TypeError, KeyError):
        return Replayed([], "the replay broke off: no worker wrote such a history")
