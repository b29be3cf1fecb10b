"""What stands before every request: who asks, may they, and did a browser's form come from our own page.

Endpoints name one of these as a dependency; none of them decides anything else.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from workers.console.access import Identity
from workers.console.problems import Problem
from workers.console.state import of

FORM_HEADER = "X-Relight-Form"
SIGN_IN = "/sign-in"


class SignInFirst(Exception):
    """A page is asked for by somebody we do not know."""

    def __init__(self, back: str) -> None:
        super().__init__("sign in first")
        self.back = back


def api_viewer(request: Request) -> Identity:
    identity = of(request).access.identify(request)
    if identity is None:
        raise Problem(401, "sign in, or send a token: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
    return identity


def api_operator(request: Request) -> Identity:
    identity = api_viewer(request)
    _may_act(identity)
    form = request.headers.get(FORM_HEADER, "")
    if identity.of_browser and not of(request).access.sessions.is_own_form(request, form):
        raise Problem(403, f"a browser must send the form token of our own page as {FORM_HEADER}; programs use a token")
    return identity


def page_viewer(request: Request) -> Identity:
    identity = of(request).access.identify(request)
    if identity is None:
        raise SignInFirst(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
    return identity


def page_operator(request: Request) -> Identity:
    identity = page_viewer(request)
    _may_act(identity)
    return identity


def _may_act(identity: Identity) -> None:
    if not identity.may_act:
        raise Problem(403, f"{identity.name} may look and not act: acting needs the role operator")


ApiViewer = Annotated[Identity, Depends(api_viewer)]
ApiOperator = Annotated[Identity, Depends(api_operator)]
PageViewer = Annotated[Identity, Depends(page_viewer)]
PageOperator = Annotated[Identity, Depends(page_operator)]
