"""VictoriaLogs as a log store: LogsQL questions, answers of one JSON object a line.

What a job printed is data here and never part of a question; only job numbers are. Tried against a real server.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from activities.telemetry.http_logs import AnswerTooLarge, Body, LogAccess, LogHttp, LogTrouble
from activities.telemetry.logsource import JOB_NAME, NS, Line, moment
from activities.telemetry.store_reader import Page, StoreReader, StoreTiming
from activities.telemetry.store_shape import StoreShape, quoted, text_bytes

PATH = "/select/logsql/query"
PAGE_LINES = 10_000
FEWEST_LINES = 500
_NO_ROOM = "requires more than"
"""What it says when it may not sort so many lines within its memory."""
JOBS_AT_ONCE = 300
"""A question may have 16 kB by default."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")


def victorialogs_source(
    access: LogAccess, shape: StoreShape | None = None, timing: StoreTiming | None = None
) -> StoreReader:
    """Job logs out of VictoriaLogs."""
    return StoreReader(VictoriaLogs(access, shape or StoreShape()), timing)


class VictoriaLogs:
    """A Store. `shape.tenant` is `AccountID:ProjectID`."""

    name = "victorialogs"

    def __init__(self, access: LogAccess, shape: StoreShape) -> None:
        self.shape = shape
        self.page_lines = PAGE_LINES
        self.jobs_at_once = JOBS_AT_ONCE
        self.longest_span = 366 * 86_400 * NS
        account, _, project = shape.tenant.partition(":")
        tenant = {"AccountID": account, "ProjectID": project or "0"} if shape.tenant else {}
        self._http = LogHttp(access.model_copy(update={"headers": {**access.headers, **tenant}}))

    @property
    def deadline_s(self) -> float:
        return self._http.access.deadline_s

    async def close(self) -> None:
        await self._http.close()

    async def page(
        self, names: Sequence[str], begin: int, end: int, limit: int, *, newest_first: bool, ends: float
    ) -> Page:
        query = self.query(names, begin, end, limit, newest_first=newest_first)
        try:
            body = await self._ask(query, ends)
        except LogTrouble as trouble:
            if _NO_ROOM not in str(trouble) or limit <= FEWEST_LINES:
                raise
            self.page_lines = max(FEWEST_LINES, limit // 4)  # a small server, or long lines
            raise AnswerTooLarge(str(trouble), status=trouble.status) from None
        return await asyncio.to_thread(self._parsed, body, limit)

    async def sample(self, begin: int, end: int, limit: int, *, ends: float) -> Page:
        query = self._query(f"{quoted(self.shape.job_field)}:*", begin, end, limit, newest_first=True)
        return self._parsed(await self._ask(query, ends), limit)

    async def _ask(self, query: str, ends: float) -> Body:
        left = max(1.0, ends - time.monotonic())
        question = {"query": query, "timeout": f"{left:.0f}s"}
        return await self._http.ask("POST", PATH, question, ends=ends, partial=True)

    def query(self, names: Sequence[str], begin: int, end: int, limit: int, *, newest_first: bool) -> str:
        jobs = ",".join(quoted(name) for name in names if JOB_NAME.fullmatch(name))
        if not jobs:
            raise ValueError(f"names {list(names)!r:.80}: expected job numbers")
        return self._query(f"{quoted(self.shape.job_field)}:in({jobs})", begin, end, limit, newest_first=newest_first)

    def _query(self, which: str, begin: int, end: int, limit: int, *, newest_first: bool) -> str:
        shape = self.shape
        filters = [f"_time:[{_stamp(begin)}, {_stamp(end)})", which]
        if shape.selector:
            filters.insert(0, f"({shape.selector})")
        fields = ", ".join(("_time", "_msg", *(quoted(name) for name in shape.all_fields)))
        order = "_time desc" if newest_first else "_time"
        return f"{' '.join(filters)} | fields {fields} | sort by ({order}) limit {limit}"

    def _parsed(self, body: Body, limit: int) -> Page:
        # Bytes that are no UTF-8 must come through: a job prints what it likes.
        texts = body.data.split(b"\n")
        unfinished = texts.pop()
        lines: list[Line] = []
        strange = 0
        last = ""
        for text in texts:
            line = self._line(text)
            if line is None:
                strange += bool(text.strip())
                last = text.decode("utf-8", "replace") if text.strip() else last
            else:
                lines.append(line)
                last = ""
        count = len(lines) + strange
        if strange and not lines:
            raise LogTrouble(f"the answer is not what VictoriaLogs says: {last[:120]!r}")
        if body.cut:
            return Page(tuple(lines), whole=False, note=body.cut, broken=body.broken)
        if unfinished or last:
            # Broken off, or an error told behind the lines.
            said = (last or unfinished[:120].decode("utf-8", "replace"))[:120]
            return Page(tuple(lines), whole=False, note=f"the answer broke off: {said!r}", broken=True)
        note = f"{strange} lines of the answer could not be read" if strange else ""
        return Page(tuple(lines), whole=count < limit, note=note)

    def _line(self, text: bytes) -> Line | None:
        try:
            entry: Any = json.loads(text.decode("utf-8", "surrogateescape"))
            at = _nanoseconds(entry["_time"])
            job, message = entry[self.shape.job_field], entry.get("_msg", "")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None
        if not isinstance(job, str) or not isinstance(message, str):
            return None
        shape = self.shape
        return Line(at=at, job=job, stream=shape.stream(entry), data=text_bytes(message), node=shape.node(entry))


def _stamp(ns: int) -> str:
    """A time as LogsQL reads it, to the nanosecond."""
    return f"{moment(ns).strftime('%Y-%m-%dT%H:%M:%S')}.{ns % NS:09d}Z"


def _nanoseconds(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.40} is not a time")
    return _second(match[1]) * NS + int((match[2] or "0").ljust(9, "0"))


@lru_cache(maxsize=10_000)
def _second(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
