"""Tells a job's workflow what an operator wants, exactly as the `relight` command does: by an update, or a signal.

Who may do so was asked before; whether it can be done is the workflow's to say.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from temporalio.client import Client

from workers.cli_operate import ANSWER_LIMIT_S, Refused, ask
from workers.connect import TemporalAway, connect
from workers.console.problems import Problem
from workers.settings import TemporalSettings

Verb = Literal["pause", "resume", "force", "approve"]
REMEMBERED = 10_000


class Wish(BaseModel):
    """What is asked of a job's workflow. `action` goes with force, `yes` with approve."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str = Field(min_length=1, max_length=1_000, description="why; it stands in the record")
    action: Literal["restart", "stop", "release"] | None = None
    exclude: tuple[str, ...] = Field(default=(), max_length=256, description="nodes the next attempt keeps off")
    restart_count: int | None = Field(default=None, ge=0, description="refuse when the job is at another restart count")
    yes: bool | None = None
    signal: bool = Field(default=False, description="leave it for the next worker and do not wait for an answer")


class Answered(BaseModel):
    job: str
    accepted: bool | None = Field(description="null: left as a signal, nobody has answered")
    message: str
    state: str = ""


class Telling:
    """One connection to Temporal, made when it is first needed."""

    def __init__(self, temporal: TemporalSettings) -> None:
        self._temporal = temporal
        self._client: Client | None = None
        self._lock = asyncio.Lock()
        self._asked: OrderedDict[str, str] = OrderedDict()

    async def __call__(self, workflow_id: str, verb: Verb, wish: Wish, *, by: str, once: str = "") -> Answered:
        """Raises Problem, NotWatched, Refused, TemporalAway. The same `once` is carried out once."""
        words = words_of(verb, wish, by)
        name = self._name_once(workflow_id, verb, words, by, once)
        answer = await ask(await self._connected(), workflow_id, verb, words, signal=wish.signal, once=name)
        if wish.signal:
            return Answered(
                job=workflow_id, accepted=None, message=f"{verb} is left for the job's workflow as a signal"
            )
        if answer is None:
            raise Problem(
                504,
                f"no worker answered for {workflow_id} within {ANSWER_LIMIT_S:g} s; it may still hear this later. "
                "Is `relight worker` running? With `signal` it is left for the next one",
            )
        told = Answered(job=workflow_id, **{key: answer.get(key) for key in ("accepted", "message", "state")})
        if told.accepted is False:
            raise Refused(told.message)
        return told

    async def _connected(self) -> Client:
        async with self._lock:
            if self._client is None:
                self._client = await connect(self._temporal)
            return self._client

    def _name_once(self, workflow_id: str, verb: Verb, words: dict[str, Any], by: str, once: str) -> str | None:
        """The update's id: Temporal answers a second one of the same id like the first. Per job and person."""
        if not once:
            return None
        name = "console:" + sha256(f"{by}\0{once}".encode("utf-8", "surrogatepass")).hexdigest()[:40]
        asked = repr((verb, sorted(words.items())))
        key = f"{workflow_id} {name}"
        if self._asked.setdefault(key, asked) != asked:
            raise Problem(422, "this idempotency key was used for another demand on this job; take a new one")
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        return name


def words_of(verb: Verb, wish: Wish, by: str) -> dict[str, Any]:
    """The message to the workflow. Raises Problem for what does not belong together."""
    words: dict[str, Any] = {"by": by, "reason": wish.reason.strip()}
    if not words["reason"]:
        raise Problem(400, "reason: say why; it stands in the record")
    if verb == "force":
        if wish.action is None:
            raise Problem(400, "action: expected restart, stop or release")
        if wish.exclude and wish.action != "restart":
            raise Problem(400, f"exclude: goes with restart only, not with {wish.action}")
        words |= {"action": wish.action, "exclude": sorted(set(wish.exclude))}
        if wish.restart_count is not None:
            words["restart_count"] = wish.restart_count
    elif wish.action is not None or wish.exclude or wish.restart_count is not None:
        raise Problem(400, f"action, exclude and restart_count go with force, not with {verb}")
    if verb == "approve":
        if wish.yes is None:
            raise Problem(400, "yes: expected true or false")
        words["yes"] = wish.yes
    elif wish.yes is not None:
        raise Problem(400, f"yes: goes with approve, not with {verb}")
    return words


__all__ = ["Answered", "Telling", "TemporalAway", "Verb", "Wish", "words_of"]
