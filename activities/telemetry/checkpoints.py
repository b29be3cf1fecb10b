"""Finds the newest completed checkpoint in the folder a job names, by names and times alone. Synchronous, for threads.

A job's owner chooses the folder, so it is looked into only as far as that user may, no link inside is followed, and the
listing is bounded. No file's content is read but Megatron's and DeepSpeed's one-line marks. It never raises.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import re2

MAX_ENTRIES = 10_000
"""Most names of one folder that are looked at."""

MAX_INSIDE = 1_000
"""The same inside one checkpoint that is a folder."""

QUIET = timedelta(seconds=10)
"""A checkpoint without a mark of completion counts when nothing was written to it for so long, or when a later one was
begun: one that was being written when the job died is none."""

MAX_MARK = 64
"""Longest content of a mark file that is read (bytes)."""

_STEP = re2.compile(
    r"^(?:.*[^a-z])?(?:step|steps|iter|iteration|global_step|checkpoint|ckpt|chkpt|model|weights|state|save)[=_.-]?0*(\d{1,15})"
    r"(?:[^0-9].*)?$|^0*(\d{1,15})(?:\.[a-z0-9]{1,16})?$"
)
_UNFINISHED = re2.compile(r"^\.|~$|(?:^|[^a-z])(?:tmp|temp|partial|part|incomplete|inprogress|writing)(?:[^a-z]|$)")
_DONE_INSIDE = frozenset(
    {".metadata", "trainer_state.json", "_checkpoint_metadata", "commit_success.txt", "metadata.json", "_success"}
)
_MEGATRON, _DEEPSPEED = "latest_checkpointed_iteration.txt", "latest"


@dataclass(frozen=True)
class Found:
    """The newest completed checkpoint (its step, None: there is none), when it was written, and what was in the way."""

    step: int | None = None
    at: datetime | None = None
    note: str = ""


@dataclass(frozen=True)
class _Entry:
    name: str
    step: int
    written: datetime
    marked: bool


def newest_checkpoint(folder: str, uid: int, *, since: datetime, until: datetime) -> Found:
    """The highest completed step saved in `folder` between the two moments, as user `uid` could see it."""
    try:
        with _opened(folder, uid) as descriptor:
            names, cut = _names(descriptor, MAX_ENTRIES)
            entries = [entry for name in names if (entry := _entry(descriptor, name)) is not None]
            done = _told_done(descriptor, names)
    except OSError as error:
        return Found(note=f"blind: checkpoint_dir {_shown(folder)} {_reason(error)}")
    note = f"checkpoint_dir {_shown(folder)}: only {MAX_ENTRIES} of its entries were looked at" if cut else ""
    good = [
        entry for entry in entries if since <= entry.written <= until + QUIET and _is_done(entry, entries, done, until)
    ]
    best = max(good, key=lambda entry: entry.step, default=None)
    return Found(best.step, best.written, note) if best is not None else Found(note=note)


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name: iter_0001000, global_step50, checkpoint-300, epoch=1-step=20.ckpt, 400."""
    low = name.lower()
    if _UNFINISHED.search(low):
        return None
    match = _STEP.search(low)
    return int(match.group(1) or match.group(2)) if match else None


def _is_done(entry: _Entry, all_of_them: list[_Entry], done: int | None, until: datetime) -> bool:
    if done is not None and entry.step > done:
        return False
    if entry.marked or done is not None or entry.written <= until - QUIET:
        return True
    return any(other.step > entry.step and other.written >= entry.written for other in all_of_them)


def _entry(descriptor: int, name: str) -> _Entry | None:
    step = step_of(name)
    if step is None:
        return None
    try:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode):
            return _Entry(name, step, _moment(found.st_mtime), marked=False) if found.st_size else None
        if not stat.S_ISDIR(found.st_mode):
            return None
        inside = os.open(name, _FOLDER, dir_fd=descriptor)
    except OSError:
        return None  # gone meanwhile, or closed even to its owner's folder: no checkpoint that can be told
    try:
        names, _ = _names(inside, MAX_INSIDE)
        times = [found.st_mtime]
        for one in names:
            try:
                times.append(os.stat(one, dir_fd=inside, follow_symlinks=False).st_mtime)
            except OSError:
                continue
    finally:
        os.close(inside)
    if not names:
        return None
    marked = any(one.lower() in _DONE_INSIDE for one in names)
    return _Entry(name, step, _moment(max(times)), marked)


def _told_done(descriptor: int, names: list[str]) -> int | None:
    """The step that the framework's own mark file names as the last completed one; None without such a file."""
    for name in (_MEGATRON, _DEEPSPEED):
        if name not in names:
            continue
        try:
            mark = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError:
            continue
        try:
            regular = stat.S_ISREG(os.fstat(mark).st_mode)
            text = os.read(mark, MAX_MARK).decode("utf-8", "replace").strip() if regular else ""
        except OSError:
            text = ""
        finally:
            os.close(mark)
        if text.isascii() and text.isdecimal():
            return int(text)
        if name == _DEEPSPEED and (step := step_of(text)) is not None:
            return step
    return None


# ------------------------------------------------------------------------------------------------ folders

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def _opened(folder: str, uid: int) -> Iterator[int]:
    """A descriptor of the folder, reached step by step as far as that user may. The path itself may hold links, as
    sites have them (/ckpt); they are resolved first, and no link is followed on the resolved way."""
    if uid < 0:
        raise PermissionError(errno.EPERM, "is not looked into, because the job's owner is not known")
    if not folder.startswith("/") or "\0" in folder:
        raise OSError(errno.EINVAL, "is not an absolute path")
    parts = [part for part in os.path.realpath(folder, strict=True).split("/") if part]
    groups = _groups(uid)
    here = os.open("/", _FOLDER)
    try:
        for number, part in enumerate(parts):
            there = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = there
            last = number == len(parts) - 1
            if not _may(os.fstat(here), uid, groups, 0o5 if last else 0o1):
                raise PermissionError(errno.EACCES, f"may not be read by the job's owner, uid {uid}")
        yield here
    finally:
        os.close(here)


def _may(found: os.stat_result, uid: int, groups: frozenset[int], bits: int) -> bool:
    """What the mode bits give that user. Access lists are not looked at."""
    if uid == 0:
        return True
    shift = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    return (found.st_mode >> shift) & bits == bits


def _groups(uid: int) -> frozenset[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    try:
        return frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    except OSError:
        return frozenset({user.pw_gid, *(group.gr_gid for group in grp.getgrall() if user.pw_name in group.gr_mem)})


def _names(descriptor: int, most: int) -> tuple[list[str], bool]:
    names: list[str] = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if len(names) >= most:
                return names, True
            names.append(entry.name)
    return names, False


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "does not exist"
    if error.errno == errno.ELOOP:
        return "is a loop of links"
    if error.errno == errno.ENOTDIR:
        return "is not a folder"
    if error.errno == errno.EACCES and error.filename is not None:
        return "may not be read by relight's account"
    return (error.strerror or str(error)).rstrip(".")


def _shown(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()[:200]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
