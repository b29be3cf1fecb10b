"""Loki as a log store: LogQL range queries, answers as one JSON document.

What a job printed is data here and never part of a question; only job numbers are. Tried against a double of the
documented API, not against a real server.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

from activities.telemetry.http_logs import Body, LogAccess, LogHttp, LogTrouble
from activities.telemetry.logsource import JOB_NAME, NS, Line
from activities.telemetry.store_reader import Page, StoreReader, StoreTiming
from activities.telemetry.store_shape import StoreShape, quoted, text_bytes

PATH = "/loki/api/v1/query_range"
PAGE_LINES = 5_000
"""The most that Loki gives by default (max_entries_limit_per_query)."""
JOBS_AT_ONCE = 100
"""They stand in the address, which proxies keep under 4 to 8 kB."""
LONGEST_SPAN = 7 * 86_400 * NS
"""Loki refuses longer ones than its max_query_length, 30 days by default."""
_TOO_MANY = re.compile(r"max entries limit per query exceeded.*\(\d+ > (\d+)\)")


def loki_source(access: LogAccess, shape: StoreShape | None = None, timing: StoreTiming | None = None) -> StoreReader:
    """Job logs out of Loki."""
    return StoreReader(Loki(access, shape or StoreShape()), timing)


class Loki:
    """A Store. `shape.tenant` is what X-Scope-OrgID says."""

    name = "loki"

    def __init__(self, access: LogAccess, shape: StoreShape) -> None:
        self.shape = shape
        self.page_lines = PAGE_LINES
        self.jobs_at_once = JOBS_AT_ONCE
        self.longest_span = LONGEST_SPAN
        tenant = {"X-Scope-OrgID": shape.tenant} if shape.tenant else {}
        self._http = LogHttp(access.model_copy(update={"headers": {**access.headers, **tenant}}))

    @property
    def deadline_s(self) -> float:
        return self._http.access.deadline_s

    async def close(self) -> None:
        await self._http.close()

    async def page(
        self, names: Sequence[str], begin: int, end: int, limit: int, *, newest_first: bool, ends: float
    ) -> Page:
        query = self.query(names)
        try:
            body = await self._ask(query, begin, end, limit, newest_first, ends)
        except LogTrouble as trouble:
            allowed = _TOO_MANY.search(str(trouble))
            if trouble.status != 400 or allowed is None or not 0 < int(allowed[1]) < limit:
                raise
            limit = self.page_lines = int(allowed[1])  # this server gives fewer
            body = await self._ask(query, begin, end, limit, newest_first, ends)
        return await asyncio.to_thread(self._parsed, body, limit, newest_first)

    async def sample(self, begin: int, end: int, limit: int, *, ends: float) -> Page:
        query = self._query(f'{self.shape.job_field}=~".+"')
        return self._parsed(await self._ask(query, begin, end, limit, True, ends), limit, True)

    async def _ask(self, query: str, begin: int, end: int, limit: int, newest_first: bool, ends: float) -> Body:
        question = {
            "query": query,
            "start": str(begin),
            "end": str(end),
            "limit": str(limit),
            "direction": "backward" if newest_first else "forward",
        }
        return await self._http.ask("GET", PATH, question, ends=ends)

    def query(self, names: Sequence[str]) -> str:
        jobs = "|".join(name for name in names if JOB_NAME.fullmatch(name))  # nothing in them means anything to RE2
        if not jobs:
            raise ValueError(f"names {list(names)!r:.80}: expected job numbers")
        return self._query(f"{self.shape.job_field}=~{quoted(jobs)}")

    def _query(self, matcher: str) -> str:
        shape = self.shape
        inside = shape.selector.strip().removeprefix("{").removesuffix("}").strip()
        if shape.job_is_label:
            return "{" + ", ".join(part for part in (inside, matcher) if part) + "}"
        return "{" + inside + "} | " + matcher

    def _parsed(self, body: Body, limit: int, newest_first: bool) -> Page:
        try:
            whole: Any = json.loads(body.data.decode("utf-8", "surrogateescape"))
            if whole["status"] != "success" or whole["data"]["resultType"] != "streams":
                raise ValueError(f"status {whole['status']!r}, type {whole['data'].get('resultType')!r}")
            streams = list(whole["data"]["result"])
        except json.JSONDecodeError:
            raise LogTrouble("the answer broke off, or is not JSON", again=True) from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise LogTrouble(f"the answer is not what Loki says: {type(error).__name__} {error}"[:200]) from None
        lines: list[Line] = []
        strange = 0
        for stream in streams:
            some, bad = self._stream(stream)
            lines += some
            strange += bad
        if strange and not lines:
            raise LogTrouble("the answer is not what Loki says: no entry is a time and a text")
        lines.sort(key=lambda line: line.at, reverse=newest_first)
        note = f"{strange} entries of the answer could not be read" if strange else ""
        return Page(tuple(lines), whole=len(lines) + strange < limit, note=note)

    def _stream(self, stream: Any) -> tuple[list[Line], int]:
        """The lines of one stream, and how many entries could not be read."""
        try:
            labels, values = dict(stream["stream"]), list(stream["values"])
        except (ValueError, LookupError, TypeError):
            return [], 1
        shape = self.shape
        name, node = shape.stream(labels), shape.node(labels)
        lines: list[Line] = []
        strange = 0
        for value in values:
            try:
                more = value[2] if len(value) > 2 and isinstance(value[2], dict) else {}
                job = labels.get(shape.job_field, more.get(shape.job_field))
                at, text = int(value[0]), value[1]
            except (ValueError, LookupError, TypeError):
                strange += 1
                continue
            if isinstance(job, str) and isinstance(text, str) and isinstance(value[0], str):
                lines.append(Line(at=at, job=job, stream=name, data=text_bytes(text), node=node))
            else:
                strange += 1
        return lines, strange
