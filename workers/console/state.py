"""What one console process holds for all requests: readings, access, the live feed, the way to Temporal."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from workers.console.access import Access
from workers.console.live import Live
from workers.console.metrics import Counted
from workers.console.reading import Readings
from workers.console.telling import Telling
from workers.settings import Settings


@dataclass(frozen=True)
class Console:
    settings: Settings
    readings: Readings
    access: Access
    live: Live
    telling: Telling
    counted: Counted


def of(request: HTTPConnection) -> Console:
    console: Console = request.app.state.console
    return console
