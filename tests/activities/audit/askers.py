"""Runs calls on an audit store in several processes that begin together, as several workers would."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

from activities.audit.store import AuditStore
from activities.contracts import PermitAnswer
from tests.activities.audit.samples import all_at_once, request

T = TypeVar("T")

# Forks of one clean process that has imported everything: a Python started anew takes seconds on a busy machine.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["activities.audit.schema", __name__])


def in_processes(call: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """Calls a function of a module once in each of as many processes as there are argument lists."""
    start = _context.Barrier(len(arguments))
    with ProcessPoolExecutor(len(arguments), _context, initializer=_wait, initargs=(start,)) as pool:
        return [future.result(timeout=240) for future in [pool.submit(call, *one) for one in arguments]]


def _wait(start: Barrier) -> None:
    start.wait(timeout=200)


def ask(url: str, cluster: str, name: str, threads: int) -> list[str]:
    """Asks for permits from several threads at once; the step keys that were granted."""
    caps: dict[str, Any] = {"max_restarts_at_once": 7, "max_actions_per_hour": 100, "max_excluded_share": 0.05}
    requests = [request(cluster, f"{name}-{number}", nodes=(f"{name}-{number}",), **caps) for number in range(threads)]
    with AuditStore(url, timeout_s=60) as store:
        answers = all_at_once([lambda one=one: store.permit(one) for one in requests])  # type: ignore[misc]
    return [one.step_key for one, answer in zip(requests, answers, strict=True) if answer.granted]


def ask_within(url: str, cluster: str, name: str, threads: int, requests: dict[str, Any]) -> list[PermitAnswer]:
    """Asks for permits of as many jobs from as many threads at once; all answers."""
    asked = [request(cluster, f"{name}-{number}", nodes=(f"{name}-{number}",), **requests) for number in range(threads)]
    with AuditStore(url, timeout_s=120) as store:
        return all_at_once([lambda one=one: store.permit(one) for one in asked])  # type: ignore[misc]


def migrate(url: str) -> None:
    with AuditStore(url) as store:
        store.migrate()
