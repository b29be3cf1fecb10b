"""Commands that start something: the worker, and the demo of a source checkout."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import workers
from workers.naming import settings_of
from workers.screen import UNUSABLE, Trouble


def run_worker(config: Path | None) -> None:
    """Runs until it is told to stop. Never returns normally: ends with the worker's exit code."""
    settings = settings_of(config)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    for chatty in ("alembic", "asyncssh", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("temporalio.activity").addFilter(without_stack_of_the_cancelled)
    os.umask(os.umask(0o027) | 0o027)  # what it writes holds lines of jobs' logs: nobody else may read it
    from workers.connect import TemporalAway
    from workers.worker import run

    try:
        code = run(settings)
    except TemporalAway as error:
        raise Trouble(str(error)) from None
    raise SystemExit(code)


def without_stack_of_the_cancelled(record: logging.LogRecord) -> bool:
    """An activity that Temporal took away (it was out of reach for too long) is told in one line: nothing is broken."""
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        record.exc_info = None
    return True


def checkout() -> Path | None:
    """The source checkout this package runs from; None when it is installed."""
    root = Path(workers.__file__ or "").resolve().parent.parent
    return root if (root / "dev").is_file() and (root / "pyproject.toml").is_file() else None


def run_demo(arguments: Sequence[str]) -> None:
    """Hands over to `./dev demo`."""
    root = checkout()
    if root is None:
        raise Trouble(
            "the demo needs a checkout of relight's source (it builds a small Slurm cluster): "
            "clone the repository and run ./dev demo there",
            UNUSABLE,
        )
    script = root / "dev"
    os.execv(script, [str(script), "demo", *arguments])  # noqa: S606 - its own file, plain arguments
