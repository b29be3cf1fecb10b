"""Looks at processes through /proc: who is alive, in which PID namespace, with which command line.

It only looks. Whoever stops a process asks here for its id first, so that nothing is ever stopped by its name alone.
"""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def everyone() -> Iterator[int]:
    """Ids of all processes that can be seen, as this process numbers them."""
    return (int(entry) for entry in os.listdir(PROC) if entry.isdigit())


def _stat_fields(pid: int) -> list[str]:
    # The second field is the name in parentheses and may itself contain blanks and parentheses.
    text = (PROC / str(pid) / "stat").read_text(errors="replace")
    return text[text.rindex(")") + 2 :].split()


def state(pid: int) -> str:
    """One letter as in ps (R, S, D, T, Z, …), or "" when there is no such process."""
    try:
        return _stat_fields(pid)[0]
    except (OSError, ValueError):
        return ""


def alive(pid: int) -> bool:
    """A zombie is dead: it only waits for its parent to read its exit status. But a zombie with threads that have not
    ended yet still holds its files and ports."""
    letter = state(pid)
    if letter == "Z":
        try:
            return len(os.listdir(PROC / str(pid) / "task")) > 1
        except OSError:
            return False
    return letter not in ("", "X")


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; with the id it names a process for good. 0 = gone."""
    try:
        return int(_stat_fields(pid)[19])
    except (OSError, ValueError):
        return 0


def children(pid: int) -> tuple[int, ...]:
    """Direct children of all threads of a process."""
    found: list[int] = []
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        pass
    return tuple(sorted(found))


def namespace(pid: int) -> str:
    """Name of the PID namespace a process lives in, such as "pid:[4026531836]"; "" when it is gone."""
    try:
        return os.readlink(PROC / str(pid) / "ns" / "pid")
    except OSError:
        return ""


def nesting(pid: int) -> tuple[int, ...]:
    """The process's id in each PID namespace from ours inwards; a namespace's first process ends in 1."""
    try:
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return tuple(int(number) for number in line.split()[1:])
    except OSError:
        pass
    return ()


def command_line(pid: int) -> tuple[str, ...]:
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in raw.removesuffix(b"\0").split(b"\0")) if raw else ()


def program(pid: int) -> str:
    """File name of the running program, links resolved; "" when unknown."""
    try:
        return Path(os.readlink(PROC / str(pid) / "exe")).name
    except OSError:
        return ""


def environment(pid: int) -> dict[str, str]:
    """The environment the process was started with (later changes of its own do not show)."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(word).partition("=") for word in raw.split(b"\0") if b"=" in word)
    return {name: value for name, _, value in pairs}
