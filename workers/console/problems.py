"""Errors as the API tells them: application/problem+json, one sentence, no trace and nothing of the inside."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from activities.audit.store import AuditUnavailable, SchemaTooNew, UnfitDatabase
from workers.cli_operate import Refused
from workers.connect import TemporalAway
from workers.console.words import flat
from workers.screen import UNUSABLE, Trouble
from workers.settings import ConfigError

PROBLEM = "application/problem+json"


class Told(BaseModel):
    """A problem, as RFC 9457 writes it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = Field(description="what is wrong, and what to do")


class Problem(Exception):
    """Ends a request with this status and sentence."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


class StoreTooSlow(Exception):
    """The audit store did not answer within the console's deadline."""


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Told, "description": "What was asked cannot be given", "content": {PROBLEM: {}}},
    "5XX": {"model": Told, "description": "The audit store or Temporal cannot serve now", "content": {PROBLEM: {}}},
}


def problem_of(error: Exception) -> Problem:
    """Any error as what a client may know of it."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.status_code, str(error.detail), dict(error.headers or {}))
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return Problem(400, flat(f"{where}: {first['msg']}"))
    if isinstance(error, Refused):
        return Problem(409, str(error))
    if isinstance(error, Trouble):
        return Problem(400 if error.code == UNUSABLE else 404, str(error))
    if isinstance(error, AuditUnavailable | SchemaTooNew | UnfitDatabase | StoreTooSlow | TemporalAway | ConfigError):
        return Problem(503, str(error), {"Retry-After": "5"})
    return Problem(500, "the console failed at this; its log says why")


def title_of(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
