"""Reads job logs as files: what is new since the last look, and one attempt as a whole. Synchronous, for threads.

A job's owner chooses the path, so everything is expected there: nothing, a folder, a FIFO, a device, somebody else's
file, a loop of links. None of it raises or blocks; it gives a note, because blind time must be told. Nothing is
understood here.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from activities.telemetry.output_path import output_paths
from recovery.faults.blocks import line_end
from recovery.records import JobView, Record

MIB = 1 << 20
BACKLOG_BYTES = 64 * MIB
"""Farthest that a reader looks back; what is older is skipped, and that is noted."""

FINGERPRINT_BYTES = 64
BLIND = "blind: "
"""How a note begins that says the log could not be read at all."""


class LogCursor(Record):
    """How far one file was read. As JSON under 1 kB besides the path."""

    path: str
    device: int = 0
    inode: int = 0
    offset: int = Field(default=0, description="behind the last whole line that was read")
    line: int = Field(default=1, description="number of the line that stands there")
    begin: int = Field(default=0, description="where the attempt begins in the file; not 0 with --open-mode=append")
    before: int = Field(
        default=0, description="where the attempt before that one began: slurmctld may forget a restart"
    )
    attempt: int = 0
    size: int = Field(default=0, description="of the file at the last look")
    mark: int = Field(default=0, description="checksum of the bytes before the offset: a rewritten file is recognised")

    @property
    def behind(self) -> int:
        """Bytes that are there and not read yet; an unfinished last line counts."""
        return max(0, self.size - self.offset)


@dataclass(frozen=True, slots=True)
class LogPart:
    """The text of one attempt in one file."""

    path: str
    data: bytes
    offset: int
    """Where `data` begins in the file."""

    def chunks(self, size: int = MIB) -> Iterator[bytes]:
        for start in range(0, len(self.data), size):
            yield self.data[start : start + size]


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """What could be read of an attempt's log, stdout first, and why not the rest."""

    parts: tuple[LogPart, ...]
    notes: tuple[str, ...]

    @property
    def blind(self) -> bool:
        return not self.parts


def read_new(
    path: str,
    cursor: LogCursor | None,
    uid: int,
    *,
    max_bytes: int = 8 * MIB,
    attempt: int | None = None,
    waiting: bool = False,
    any_owner: bool = False,
) -> tuple[bytes, LogCursor, str]:
    """Whole lines that are new since the cursor, the next cursor, and a note where something was in the way.

    The file must be a regular one and belong to `uid`; with `any_owner` its owner is not looked at. A truncated,
    replaced or rewritten file is read from its beginning.

    `attempt` is the restart count, `waiting` that this attempt has not started yet: what is in the file then is the
    last attempt's, so the new one begins behind it (it begins at 0 when its start truncates the file, as by default).
    """
    cursor = cursor if cursor is not None and cursor.path == path else LogCursor(path=path)
    try:
        with _opened(path, uid, any_owner) as (descriptor, found):
            rewritten = cursor.inode != 0 and not _is_same(descriptor, found, cursor)
            return _read_on(descriptor, found, _moved(cursor, rewritten, found, attempt, waiting), rewritten, max_bytes)
    except OSError as error:
        return b"", cursor, BLIND + _reason(path, error)


def read_attempt(
    view: JobView,
    *,
    max_bytes: int = BACKLOG_BYTES,
    cursors: Mapping[str, LogCursor] | None = None,
    any_owner: bool = False,
) -> AttemptLog:
    """The log of the current attempt: its output files from where the attempt begins, of long ones the end.

    `cursors` by path tell where it begins, for jobs with --open-mode=append; without one the whole file is taken.
    """
    parts: list[LogPart] = []
    notes: list[str] = []
    paths = job_files(view)
    if not paths:
        notes.append(f"{BLIND}the scheduler names no output file")
    for path in paths:
        try:
            with _opened(path, view.uid, any_owner) as (descriptor, found):
                begin = _begin(descriptor, found, (cursors or {}).get(path), view.restarts)
                start = max(begin, found.st_size - max_bytes // len(paths))
                data = _read(descriptor, start, found.st_size - start)
        except OSError as error:
            notes.append(BLIND + _reason(path, error))
            continue
        if start > begin:
            cut = data.find(b"\n") + 1
            data, start = data[cut:], start + cut
            notes.append(f"{path}: only the last {len(data)} bytes were read")
        parts.append(LogPart(path=path, data=data, offset=start))
    if parts and len(paths) > 2:
        notes = [note for note in notes if not note.startswith(BLIND)]  # files of tasks that do not exist
    return AttemptLog(parts=tuple(parts), notes=tuple(notes))


def can_read(path: str, uid: int) -> bool:
    """Whether it is a file of that owner that this account may read now."""
    try:
        with _opened(path, uid, any_owner=False):
            return True
    except OSError:
        return False


def job_files(view: JobView) -> tuple[str, ...]:
    """The job's output files, stdout first, each once."""
    names = [name for pattern in (view.stdout, view.stderr) if pattern for name in output_paths(pattern, view)]
    return tuple(dict.fromkeys(names))


def save_tail(
    paths: Sequence[str], folder: Path, *, uid: int, max_bytes: int = MIB, any_owner: bool = False
) -> tuple[str, ...]:
    """Keeps the end of each file as `folder`/<name>.tail, before a restart truncates it. Returns notes, never raises.

    Running it again replaces what it kept. Only the service account can read it: job logs hold secrets.
    """
    notes: list[str] = []
    for number, path in enumerate(dict.fromkeys(paths)):
        try:
            with _opened(path, uid, any_owner) as (descriptor, found):
                start = max(0, found.st_size - max_bytes)
                data = _read(descriptor, start, found.st_size - start)
        except OSError as error:
            notes.append(BLIND + _reason(path, error))
            continue
        name = f"{number}-{Path(path).name[-100:]}.tail"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = folder / f".{name}.{os.getpid()}"
            kept = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(kept, "wb") as file:
                file.write(data)
            draft.replace(folder / name)
        except OSError as error:
            notes.append(f"the end of {path} could not be kept in {folder}: {error.strerror}")
    return tuple(notes)


# ------------------------------------------------------------------------------------------------ files


class _Unfit(OSError):
    """The path leads to something that is not read."""


@contextmanager
def _opened(path: str, uid: int, any_owner: bool) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of a regular file of that owner. Never blocks on a FIFO, never opens a device."""
    if not path or "\0" in path:
        raise _Unfit(errno.EINVAL, "is not a path")
    if uid < 0 and not any_owner:
        raise _Unfit(errno.EPERM, "is not read, because the job's owner is not known")
    _check_kind(os.stat(path))
    # O_NONBLOCK and the second look: it may have been replaced since. Opening also refreshes what NFS has cached.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        _check_kind(found)
        if not any_owner and found.st_uid != uid:
            raise _Unfit(errno.EPERM, f"belongs to uid {found.st_uid}, not to the job's owner, uid {uid}")
        yield descriptor, found
    finally:
        os.close(descriptor)


def _check_kind(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _Unfit(errno.EINVAL, f"is {_KINDS.get(stat.S_IFMT(found.st_mode), 'not a regular file')}, not a file")


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _reason(path: str, error: OSError) -> str:
    shown = path.encode("utf-8", "backslashreplace").decode()
    if isinstance(error, _Unfit):
        return f"{shown} {error.strerror}"
    if error.errno == errno.ENOENT:
        return f"{shown} does not exist"
    if error.errno == errno.EACCES:
        return f"{shown} may not be read by relight's account"
    if error.errno == errno.ELOOP:
        return f"{shown} is a loop of links"
    return f"{shown} cannot be read: {error.strerror or error}"


def _read(descriptor: int, start: int, length: int) -> bytes:
    """Up to `length` bytes from `start`; fewer where the file became shorter meanwhile."""
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(descriptor, min(length, 16 * MIB), start)):
        pieces.append(piece)
        start += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def _moved(cursor: LogCursor, rewritten: bool, found: os.stat_result, attempt: int | None, waiting: bool) -> LogCursor:
    """The cursor before reading: back at the beginning of a rewritten file, and knowing where the attempt begins."""
    changes: dict[str, int] = {"offset": 0, "line": 1, "begin": 0, "before": 0} if rewritten else {}
    if attempt is not None:
        if attempt < cursor.attempt and not rewritten:
            changes |= {"begin": cursor.before, "before": 0}
        elif attempt != cursor.attempt and not rewritten:
            changes |= {"begin": cursor.offset, "before": cursor.begin if attempt == cursor.attempt + 1 else 0}
        if waiting:
            changes["begin"] = found.st_size
        changes["attempt"] = attempt
    return cursor.model_copy(update=changes) if changes else cursor


def _read_on(
    descriptor: int, found: os.stat_result, cursor: LogCursor, rewritten: bool, max_bytes: int
) -> tuple[bytes, LogCursor, str]:
    note = f"{cursor.path} was truncated or replaced: read from its beginning" if rewritten else ""
    offset = cursor.offset
    if found.st_size - offset > BACKLOG_BYTES:
        skipped = found.st_size - BACKLOG_BYTES - offset
        offset += skipped
        note = f"{cursor.path}: {skipped} bytes skipped, the log grows faster than it is read"
    data = _read(descriptor, offset, min(max_bytes, found.st_size - offset))
    # An unfinished line waits for its end, but not for ever.
    whole = line_end(data) or (len(data) if len(data) >= min(MIB, max_bytes) else 0)
    data = data[:whole]
    offset += whole
    changes = {
        "device": found.st_dev,
        "inode": found.st_ino,
        "offset": offset,
        "line": cursor.line + data.count(b"\n"),
        "size": found.st_size,
        "mark": _mark(descriptor, offset),
    }
    return data, cursor.model_copy(update=changes), note


def _is_same(descriptor: int, found: os.stat_result, cursor: LogCursor) -> bool:
    """Whether the file is still the one that was read: same inode, not shorter, same bytes before the offset."""
    if (found.st_dev, found.st_ino) != (cursor.device, cursor.inode) or found.st_size < cursor.offset:
        return False
    return _mark(descriptor, cursor.offset) == cursor.mark


def _begin(descriptor: int, found: os.stat_result, cursor: LogCursor | None, attempt: int) -> int:
    """Where an attempt begins in a file, as far as an earlier look can tell."""
    if cursor is None or cursor.inode == 0 or not _is_same(descriptor, found, cursor):
        return 0
    if cursor.attempt == attempt:
        return cursor.begin
    if cursor.attempt == attempt + 1:
        return cursor.before
    return cursor.offset if cursor.attempt < attempt else 0


def _mark(descriptor: int, offset: int) -> int:
    start = max(0, offset - FINGERPRINT_BYTES)
    return zlib.crc32(os.pread(descriptor, offset - start, start))
