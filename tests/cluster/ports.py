"""Hands out TCP ports on 127.0.0.1 that no other server of ours has or gets, also when many start at once.

A reservation is a set of locked files; whoever keeps them open keeps the ports. All ports lie below the range from
which the kernel takes the ports of outgoing connections, so that nothing can slip in between.
"""

import fcntl
import os
import random
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

FIRST, LAST, BLOCK = 20_000, 32_700, 10  # Linux hands out 32768 and up to clients


@dataclass(frozen=True)
class Reservation:
    first: int
    count: int
    locks: tuple[int, ...]  # file descriptors; the ports are ours while any copy of them is open

    def release(self) -> None:
        for descriptor in self.locks:
            os.close(descriptor)


def reserve(count: int) -> Reservation:
    """Reserves `count` ports in a row. Raises OSError when there is no such row left."""
    folder = Path(tempfile.gettempdir()) / f"relight-dev-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    blocks = -(-count // BLOCK)
    starts = list(range(FIRST, LAST - blocks * BLOCK, BLOCK))
    random.shuffle(starts)
    for start in starts:
        locks = _lock(folder, start, blocks)
        if locks and all(_is_free(port) for port in range(start, start + count)):
            return Reservation(start, count, locks)
        for descriptor in locks:
            os.close(descriptor)
    raise OSError(f"no {count} free TCP ports in a row between {FIRST} and {LAST}; stop some test servers")


def _lock(folder: Path, start: int, blocks: int) -> tuple[int, ...]:
    locks: list[int] = []
    for block in range(start, start + blocks * BLOCK, BLOCK):
        descriptor = os.open(folder / str(block), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        locks.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for taken in locks:
                os.close(taken)
            return ()
    return tuple(locks)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0
