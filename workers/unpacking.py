"""Reads files as they are, or unpacked when their content is gzip or zstd, whatever their name; piece by piece.

However large a log is, only a piece of it is in memory.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from recovery.faults.blocks import BLOCK_BYTES
from workers.screen import UNUSABLE, Trouble

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHUNK = BLOCK_BYTES
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPED = b"\x2a\x4d\x18"
"""What a frame that is skipped begins with, after one more byte."""

ZSTD_WINDOW_LOG = 27
"""Largest window that is unpacked (128 MiB), as the zstd command does without --long."""

STDIN = Path("-")


def pieces(file: Path) -> Iterator[bytes]:
    """The text of a file in pieces; `-` is standard input. Ends the command when it cannot be read."""
    name = "standard input" if file == STDIN else str(file)
    try:
        if file == STDIN:
            yield from _unpacked(cast(BufferedReader, sys.stdin.buffer))
            return
        if not file.is_file() and file.exists() and not file.is_fifo():
            raise Trouble(f"{file} is not a file, expected a log", UNUSABLE)
        with file.open("rb") as stream:
            yield from _unpacked(stream)
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


def _unpacked(stream: BufferedReader) -> Iterator[bytes]:
    begin = stream.peek(4)[:4]
    unpacked: IO[bytes] = stream
    if begin[:2] == GZIP:
        unpacked = cast(IO[bytes], gzip.GzipFile(fileobj=stream))
    elif begin == ZSTD or (begin[1:] == ZSTD_SKIPPED and begin[:1] >= b"\x50"):
        limit = {int(zstd.DecompressionParameter.window_log_max): ZSTD_WINDOW_LOG}
        unpacked = cast(IO[bytes], zstd.ZstdFile(stream, options=limit))
    while chunk := unpacked.read(CHUNK):
        yield chunk
