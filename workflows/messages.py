"""What people and the sweep may say to a job's workflow.

Every message is one optional raw JSON value. Parsing never raises: a typed signal that arrives without its argument
would fail the workflow task for good, so whatever comes is either understood or refused with a sentence.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from recovery.records import Mode

_JOB_ID = re.compile(r"[1-9][0-9]{0,9}(_[0-9]{1,9})?")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
MAX_FORCED_EXCLUSIONS = 256


class _Message(BaseModel):
    """Input typed by people: unknown keys are refused, so that a misspelt one is not silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str = Field(default="", max_length=200, description="who asks, recorded as claimed")
    reason: str = Field(default="", max_length=1_000)


class PauseRequest(_Message):
    """`pause` and `resume`."""


class ForceRequest(_Message):
    """`force`: an operator's own decision."""

    action: Literal["restart", "stop", "release"]
    exclude: tuple[str, ...] = Field(default=(), max_length=MAX_FORCED_EXCLUSIONS)
    restart_count: int | None = Field(default=None, ge=0, description="the attempt it is meant for")

    @field_validator("exclude", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("exclude")
    @classmethod
    def _plain_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _NODE.fullmatch(name):
                raise ValueError(f"{name!r} is not a node name; write plain names, one per entry")
        return tuple(sorted(set(value)))


class ApproveRequest(_Message):
    """`approve`: the answer to a waiting advice."""

    yes: bool = True


class Answer(BaseModel):
    """The answer to an update."""

    accepted: bool
    message: str
    state: str


MessageT = TypeVar("MessageT", bound=_Message)


def parse(model: type[MessageT], raw: Any) -> tuple[MessageT | None, str]:
    """The message, or None and the sentence that says what was wrong. Nothing and null mean: all defaults."""
    if raw is None:
        raw = {}
    if isinstance(raw, str):
        raw = {"reason": raw}
    if not isinstance(raw, dict):
        return None, f"expected a JSON object such as {_example(model)}, got {type(raw).__name__}"
    try:
        return model.model_validate(raw), ""
    except ValidationError as error:
        return None, f"{_first_problem(error)}; expected an object such as {_example(model)}"
    except RecursionError:
        return None, "the input is nested too deeply"


def _example(model: type[_Message]) -> str:
    if model is ForceRequest:
        return '{"action": "restart", "exclude": ["n07"], "by": "oncall", "reason": "..."}'
    if model is ApproveRequest:
        return '{"yes": true, "by": "oncall", "reason": "..."}'
    return '{"by": "oncall", "reason": "..."}'


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "input"
    return f"{where}: {first['msg']}"[:300]


# ------------------------------------------------------------------------------------------------ start input


class StartRecovery(BaseModel):
    """Input of JobRecovery. `state` is what continue-as-new carries over; people leave it out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: str
    job_id: str = Field(description="number, or '<array id>_<task>'")
    mode: Mode | None = Field(default=None, description="gentler than the cluster's and the policy's, never stronger")
    policy: str | None = None
    paused: bool | None = None
    by: str = Field(default="", max_length=200)
    state: dict[str, Any] | None = None

    @field_validator("job_id", mode="before")
    @classmethod
    def _number_or_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("job_id")
    @classmethod
    def _is_job_id(cls, value: str) -> str:
        if not _JOB_ID.fullmatch(value):
            raise ValueError("expected a Slurm job id such as 12345, or 12_3 for an array task")
        return value

    @field_validator("cluster")
    @classmethod
    def _is_cluster(cls, value: str) -> str:
        if not _CLUSTER.fullmatch(value):
            raise ValueError("expected a cluster name such as prod")
        return value

    @property
    def workflow_id(self) -> str:
        return f"{self.cluster}-{self.job_id}"


START_EXAMPLE = '--input \'{"cluster": "prod", "job_id": 12345}\''


def parse_start(raw: Any) -> tuple[StartRecovery | None, str]:
    """The start input, or None and the sentence that says what to write instead."""
    if not isinstance(raw, dict):
        got = "nothing" if raw is None else type(raw).__name__
        return None, f"JobRecovery needs one JSON object as input, got {got}: {START_EXAMPLE}"
    try:
        return StartRecovery.model_validate(raw), ""
    except ValidationError as error:
        return None, f"JobRecovery cannot use its input: {_first_problem(error)}. Expected {START_EXAMPLE}"
    except RecursionError:
        return None, f"JobRecovery cannot use its input: it is nested too deeply. Expected {START_EXAMPLE}"
