"""Small logs as training jobs write them, for the tests of scanning, progress and blame."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from recovery.diagnose import Diagnosis, diagnose_files, log_scanner
from recovery.faults.catalogue import Catalogue
from recovery.records import JobState, JobView, Nodes

NOW = datetime(2026, 11, 12, 3, 30, tzinfo=UTC)
CATALOGUE = Catalogue.built_in()
SCANNER = log_scanner(CATALOGUE)
"""One for all tests, which run one after another: making one takes a while."""

NODES: Nodes = ("n01", "n02", "n03", "n04")


def view(*, nodes: Nodes = NODES, state: JobState = JobState.RUNNING, restarts: int = 0, uid: int = 1000) -> JobView:
    return JobView(
        cluster="prod",
        job_id="4711",
        raw_id=4711,
        user="alice",
        uid=uid,
        state=state,
        restarts=restarts,
        nodes=nodes,
        batch_host=nodes[0] if nodes else "",
        looked_at=NOW,
    )


def step(number: int, total: int = 50000) -> str:
    return (
        f" [2026-11-12 03:14:15] iteration {number:8d}/{total:8d} | consumed samples: {number * 32:12d} | elapsed time"
        " per iteration (ms): 5211.4 | learning rate: 3.000000E-04 | global batch size:    32 | lm loss: 7.802939E+00 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def steps(first: int, last: int, total: int = 50000) -> str:
    return "".join(step(number, total) for number in range(first, last + 1))


def saved(number: int) -> str:
    return f"  successfully saved checkpoint at iteration {number:7d} to /ckpt/run7\n"


def hosts(nodes: Iterable[str] = NODES, per_node: int = 2) -> str:
    """Every rank says where it runs."""
    return "".join(
        f"> rank {index * per_node + local} local_rank {local} host {node} pid {1000 + local}\n"
        for index, node in enumerate(nodes)
        for local in range(per_node)
    )


def lost(rank: int, peer: str = "10.0.0.3") -> str:
    """A rank that lost its peer."""
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f"[rank{rank}]: RuntimeError: [pair.cc:553] Connection closed by peer [{peer}]:60849.\n"
    )


def waited(rank: int) -> str:
    return (
        f"[rank{rank}]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete\n"
    )


def table(*entries: tuple[str, int, int], script: str = "train.py") -> str:
    """A launcher's failure table of (host, rank, exit code)."""
    text = f"{script} FAILED\nFailures:\n"
    for host, rank, code in entries:
        text += (
            "[0]:\n  time      : 2026-11-12_03:14:20\n"
            f"  host      : {host}\n  rank      : {rank} (local_rank: {rank % 2})\n"
            f"  exitcode  : {code} (pid: 4242) \n  error_file: <N/A>\n"
        )
    return text + "=" * 40 + "\n"


def told(*files: tuple[str, str], nodes: Nodes | None = NODES, now: datetime = NOW, **more: Any) -> Diagnosis:
    """The diagnosis of files, each with name and text."""
    texts = [(name, [text.encode()]) for name, text in files]
    return diagnose_files(texts, CATALOGUE, allocation=nodes, now=now, scanner=SCANNER, **more)
