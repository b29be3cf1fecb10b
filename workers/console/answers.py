"""Turns errors into answers: a problem for the API, a page for people. Knows no request by itself."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from activities.audit.store import AuditUnavailable, SchemaTooNew, UnfitDatabase
from workers.connect import TemporalAway
from workers.console.gatekeeping import SIGN_IN, SignInFirst
from workers.console.pages_frame import trouble_page
from workers.console.problems import PROBLEM, Problem, StoreTooSlow, Told, problem_of, title_of
from workers.screen import Trouble
from workers.settings import ConfigError

API = "/api/"
KINDS: tuple[type[Exception], ...] = (
    Problem, HTTPException, RequestValidationError, Trouble, AuditUnavailable, SchemaTooNew, UnfitDatabase,
    StoreTooSlow, TemporalAway, ConfigError, Exception,
)  # fmt: skip


def answer(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    title = title_of(problem.status)
    if not request.url.path.startswith(API):
        return trouble_page(request, problem.status, title, problem.detail, problem.headers)
    told = Told(title=title, status=problem.status, detail=problem.detail)
    return JSONResponse(told.model_dump(), problem.status, headers=problem.headers, media_type=PROBLEM)


def install(app: FastAPI) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        return answer(request, error)

    async def sign_in_first(request: Request, error: Exception) -> Response:
        back = error.back if isinstance(error, SignInFirst) else "/"
        return RedirectResponse(f"{SIGN_IN}?back={quote(back, safe='')}", 303)

    for kind in KINDS:
        app.add_exception_handler(kind, handle)
    app.add_exception_handler(SignInFirst, sign_in_first)
