"""Tells new lines of a log store from those handed out before, when the same stretch of time is read again.

Lines come late and out of order, so each read overlaps the one before. Known lines are kept by hash, bounded; after a
restart the cursor's count and sum of hashes tell whether a stretch is the same as before. In doubt a line is handed
out twice, never not at all. Nothing is asked here.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from activities.telemetry.logsource import (
    MAX_STREAMS,
    SHARED_STREAMS,
    Gap,
    JobCursor,
    Line,
    LogChunk,
    Span,
    StreamCursor,
    moment,
)

KNOWN_LINES = 20_000
"""Most lines of one job that are known by hash; a job that prints faster gets a shorter overlap."""
DIGEST = 1 << 64

Hashes = dict[int, int]
"""Of each known line, its time."""


@dataclass
class _Known:
    cursor: JobCursor
    streams: dict[str, Hashes] = field(default_factory=dict)


class StoreMemory:
    """What was handed out of each job's log lately."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Known] = {}

    def remembers(self, job_id: str, cursor: JobCursor) -> bool:
        """Whether its lines are known one by one. Otherwise it must be read from its cursor's floor on."""
        known = self._jobs.get(job_id)
        return known is not None and known.cursor == cursor

    def keep_only(self, job_ids: set[str]) -> None:
        for gone in self._jobs.keys() - job_ids:
            del self._jobs[gone]

    def sort_out(
        self,
        job_id: str,
        cursor: JobCursor,
        lines: Sequence[Line],
        *,
        read_from: int,
        read_to: int,
        window: int,
        gaps: tuple[Gap, ...],
    ) -> tuple[tuple[LogChunk, ...], JobCursor]:
        """The new ones among the lines, by stream, and the cursor behind them.

        `lines` are all that the store has from `read_from` up to `read_to`, and perhaps some behind that.
        """
        known = self._known(job_id, cursor, lines, read_from)
        cursors = cursor.by_stream
        chunks: list[LogChunk] = []
        for stream, found in _by_stream(cursors, lines).items():
            hashes = known.setdefault(stream, {})
            fresh: list[Line] = []
            for line in sorted(found, key=_time):
                if line.at < cursor.floor:
                    continue
                name = _hash(line)
                if name not in hashes:
                    hashes[name] = line.at
                    fresh.append(line)
            if fresh:
                before = cursors.get(stream)
                chunk = _chunk(job_id, stream, fresh, before, gaps)
                chunks.append(chunk)
                cursors[stream] = _behind(chunk, before)
        floor = max(cursor.floor, read_to - window, _bounded(known))
        streams = []
        for stream, one in cursors.items():
            kept = {name: at for name, at in known.get(stream, {}).items() if at >= floor}
            known[stream] = kept
            streams.append(one.model_copy(update={"count": len(kept), "digest": sum(kept) % DIGEST}))
        after = cursor.model_copy(update={"read_to": read_to, "floor": floor, "streams": tuple(streams)})
        self._jobs[job_id] = _Known(cursor=after, streams=known)
        return tuple(chunks), after

    def _known(self, job_id: str, cursor: JobCursor, lines: Sequence[Line], read_from: int) -> dict[str, Hashes]:
        if self.remembers(job_id, cursor):
            # A copy: the caller may come again with the older cursor, when it could not keep the new one.
            return {stream: dict(hashes) for stream, hashes in self._jobs[job_id].streams.items()}
        if read_from > cursor.floor:
            return {}
        known: dict[str, Hashes] = {}
        cursors = cursor.by_stream
        for stream, found in _by_stream(cursors, lines).items():
            before = cursors.get(stream)
            if before is None or not before.count:
                continue
            again = {_hash(line): line.at for line in found if cursor.floor <= line.at <= before.at}
            if (len(again), sum(again) % DIGEST) == (before.count, before.digest):
                known[stream] = again
        return known


def _chunk(
    job_id: str, stream: str, fresh: Sequence[Line], before: StreamCursor | None, gaps: tuple[Gap, ...]
) -> LogChunk:
    nodes = {line.node for line in fresh}
    return LogChunk(
        job_id=job_id,
        stream=stream,
        node=nodes.pop() if len(nodes) == 1 else "",
        lines=tuple(fresh),
        span=Span(moment(fresh[0].at), moment(fresh[-1].at)),
        offset=before.offset if before is not None else 0,
        late=sum(1 for line in fresh if before is not None and line.at < before.at),
        gaps=gaps,
    )


def _behind(chunk: LogChunk, before: StreamCursor | None) -> StreamCursor:
    data = chunk.data
    newest = chunk.lines[-1].at
    return StreamCursor(
        stream=chunk.stream,
        at=max(newest, before.at) if before is not None else newest,
        offset=chunk.offset + len(data),
        line=(before.line if before is not None else 1) + data.count(b"\n"),
    )


def _by_stream(cursors: Mapping[str, StreamCursor], lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines by the stream they are counted under. A job with very many ranks shares some."""
    own = {name for name in cursors if not name.startswith("more-")}
    sorted_out: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        name = line.stream
        if name not in own:
            if len(own) < MAX_STREAMS:
                own.add(name)
            else:
                name = f"more-{zlib.crc32(name.encode()) % SHARED_STREAMS}"
        sorted_out[name].append(line)
    return sorted_out


def _bounded(known: Mapping[str, Hashes]) -> int:
    """The floor above which no more than KNOWN_LINES lines are known; 0 where there are fewer anyway."""
    if sum(len(hashes) for hashes in known.values()) <= KNOWN_LINES:
        return 0
    times = sorted((at for hashes in known.values() for at in hashes.values()), reverse=True)
    # Behind the last one that fits: all lines of that very nanosecond stay out, or all of them in.
    return times[KNOWN_LINES - 1] + (1 if times[KNOWN_LINES] == times[KNOWN_LINES - 1] else 0)


def _hash(line: Line) -> int:
    """Of time, stream and text: the same line twice is one line, as shippers send a line again in doubt."""
    name = f"{line.at} {line.stream} ".encode()
    return int.from_bytes(blake2b(name + line.data, digest_size=8).digest(), "big")


def _time(line: Line) -> int:
    return line.at
