"""Reads files as they are, or unpacked when their content is gzip or zstd, whatever their name; piece by piece.

However large a log is, only a piece of it is in memory; whatever it is, reading it comes to an end: a file that grows
is read as far as it was, a pipe must give something, and what unpacks to far more than itself is refused.
"""

from __future__ import annotations

import gzip
import io
import os
import select
import stat
import sys
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from recovery.faults.blocks import BLOCK_BYTES
from workers.screen import UNUSABLE, Trouble

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHUNK = BLOCK_BYTES
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPED = b"\x2a\x4d\x18"
"""What a frame that is skipped begins with, after one more byte."""

ZSTD_WINDOW_LOG = 27
"""Largest window that is unpacked (128 MiB), as the zstd command does without --long."""

MOST_TIMES = 1_000
"""So many times its own size a packed log may have; logs of nothing but one line repeated come near to it."""

ALWAYS_BYTES = 4 << 30
"""What may be unpacked of a file however small it is: a short log of one line repeated has a larger ratio."""

QUIET_S = 60.0
"""How long a pipe that is named like a file may give nothing (seconds): nobody may ever write into it."""

STDIN = Path("-")


def pieces(file: Path) -> Iterator[bytes]:
    """The text of a file in pieces; `-` is standard input. Ends the command when it cannot be read."""
    name = "standard input" if file == STDIN else str(file)
    try:
        if file == STDIN:
            yield from _unpacked(cast(BufferedReader, sys.stdin.buffer))
            return
        with _opened(file) as stream:
            yield from _unpacked(stream)
    except _TooLarge as error:
        advice = "if it is a log nevertheless, unpack it first"
        raise Trouble(f"{name} unpacks to more than {error} bytes, which no log does; {advice}", UNUSABLE) from None
    except (EOFError, zlib.error, gzip.BadGzipFile, zstd.ZstdError) as error:
        raise Trouble(f"{name} is damaged: {error}", UNUSABLE) from None
    except OSError as error:
        raise Trouble(f"{name} cannot be read: {error.strerror or error}", UNUSABLE) from None


def written(file: Path) -> datetime | None:
    """When a file was last written to; None where that says nothing (standard input, a pipe)."""
    try:
        found = os.stat(file) if file != STDIN and file.is_file() else None
    except OSError:
        return None
    return datetime.fromtimestamp(found.st_mtime, UTC) if found is not None else None


def _opened(file: Path) -> BufferedReader:
    """A regular file as far as it is written now, or a pipe; nothing else is opened, and none waits for ever."""
    kind = os.stat(file).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
        raise Trouble(f"{file} is not a file, expected a log", UNUSABLE)
    # O_NONBLOCK: opening a pipe waits for its writer otherwise.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode):
        return BufferedReader(_Bounded(descriptor, found.st_size), CHUNK)
    if stat.S_ISFIFO(found.st_mode):
        return BufferedReader(_Pipe(descriptor, str(file)), CHUNK)
    os.close(descriptor)
    raise Trouble(f"{file} is not a file, expected a log", UNUSABLE)


class _Bounded(io.RawIOBase):
    """A file up to the size that it had when it was opened: a job may write as quickly as it is read."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._file = io.FileIO(descriptor)
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        data = self._file.read(min(len(memoryview(buffer)), self._left)) or b""
        memoryview(buffer)[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Pipe(io.RawIOBase):
    """A pipe that must give something now and then."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        if not select.select([self._descriptor], [], [], QUIET_S)[0]:
            reason = f"gave nothing for {QUIET_S:g} s, expected a log; is anybody writing into it?"
            raise Trouble(f"{self._name} is a pipe and {reason}", UNUSABLE)
        os.set_blocking(self._descriptor, True)  # what is there is given at once all the same
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class _TooLarge(Exception):
    """More was unpacked than a log can hold."""


class _Packed:
    """Counts what is read of a packed stream."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.taken += len(data)
        return data


def _unpacked(stream: BufferedReader) -> Iterator[bytes]:
    begin = stream.peek(4)[:4]
    packed = _Packed(stream)
    if begin[:2] == GZIP:
        unpacked = cast(IO[bytes], gzip.GzipFile(fileobj=cast(IO[bytes], packed), mode="rb"))
    elif begin == ZSTD or (begin[1:] == ZSTD_SKIPPED and begin[:1] >= b"\x50"):
        limit = {int(zstd.DecompressionParameter.window_log_max): ZSTD_WINDOW_LOG}
        unpacked = cast(IO[bytes], zstd.ZstdFile(cast(BufferedReader, packed), options=limit))
    else:
        while chunk := stream.read(CHUNK):
            yield chunk
        return
    given = 0
    while chunk := unpacked.read(CHUNK):
        given += len(chunk)
        if given > ALWAYS_BYTES + MOST_TIMES * packed.taken:
            raise _TooLarge(f"{ALWAYS_BYTES + MOST_TIMES * packed.taken:,}")
        yield chunk
