"""Keeps prepared data folders (an empty database, an accounting schema) in a cache, because copying one is quicker.

A template appears under its name only when it is complete; two processes that need the same one build it once.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

KEPT = 12  # newest templates that stay in the cache


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "relight-dev"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def copy(kind: str, recipe: tuple[str, ...], build: Callable[[Path], None], target: Path) -> None:
    """Fills `target` (which must not exist) from the template of this kind and recipe, built first when missing.

    The recipe holds everything the content depends on: versions, names, options. `build` fills a new folder.
    """
    digest = hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:16]
    template = cache_folder() / f"{kind}-{digest}"
    with (cache_folder() / f"{template.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.is_dir():
            _build(build, template)
            _forget_old(kind)
        os.utime(template)
        subprocess.run(["cp", "--archive", "--reflink=auto", template, target], check=True, timeout=300)


def _build(build: Callable[[Path], None], template: Path) -> None:
    # Built where every system user can reach it; the cache lies below root's home, which is closed to them.
    with tempfile.TemporaryDirectory(prefix="relight-template-") as workplace:
        os.chmod(workplace, 0o755)
        made = Path(workplace) / "data"
        build(made)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=template.parent))
        try:
            subprocess.run(["cp", "--archive", made, partial / "data"], check=True, timeout=300)
            (partial / "data").rename(template)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _forget_old(kind: str) -> None:
    found = sorted(
        (entry for entry in cache_folder().glob(f"{kind}-*") if entry.is_dir()),
        key=lambda entry: -entry.stat().st_mtime,
    )
    for entry in found[KEPT:]:
        with (cache_folder() / f"{entry.name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # somebody is copying it right now
            shutil.rmtree(entry, ignore_errors=True)
