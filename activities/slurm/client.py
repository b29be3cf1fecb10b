"""The Slurm client: typed questions and changes, asked of a gate through a transport.

It holds no state and takes no decision. Errors are those of activities.slurm.errors: a scheduler that is away raises
SlurmctldAway and is never told as an unknown job.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from activities.slurm import parse
from activities.slurm.answers import Changed, NodeChanged, Relatives, SweepRow
from activities.slurm.errors import GateBroken, RefusalKind, Refused, SlurmctldAway, SlurmdbdAway
from activities.slurm.transport import GateTransport
from recovery.maintenance import Window
from recovery.records import AttemptRow, ClusterFacts, JobState, JobView, Nodes, NodeView

GATE_VERSION = 1
MIN_START_IN_S = 5


class SlurmClient:
    """One cluster's Slurm. Safe to share between tasks: every call is one request."""

    def __init__(self, cluster: str, transport: GateTransport) -> None:
        self.cluster = cluster
        self._transport = transport

    async def close(self) -> None:
        """Ends a connection to a far gate."""
        await self._transport.close()

    # -------------------------------------------------------------------------------------------- looking

    async def ping(self) -> None:
        """Returns within milliseconds, or raises SlurmctldAway."""
        await self._ask("ping")

    async def stop_sign(self) -> str:
        """Why the gate changes nothing now (the STOP file in its folder); empty: it does."""
        return str((await self._ask("ping")).get("stop") or "")

    async def sweep(self, everything: bool = False) -> list[SweepRow]:
        """Every job that has a comment (with `everything`: every job), in one read."""
        words = ("sweep", "--all") if everything else ("sweep",)
        answer = await self._transport.call(words)
        return await asyncio.to_thread(lambda: parse.sweep_rows(_checked(answer)))  # megabytes on a large cluster

    async def job(self, job_id: str) -> JobView | None:
        """A fresh look at one job; None when Slurm does not know it (any more).

        `JobView.job_id` is the name to use from then on: task 12_3 for its raw id 14. An array as a whole is refused.
        """
        try:
            answer = await self._ask("job", job_id)
        except Refused as refused:
            if refused.kind is RefusalKind.UNKNOWN_JOB:
                return None
            raise
        return parse.job_view(self.cluster, answer["job"])

    async def attempts(self, job_id: str) -> tuple[AttemptRow, ...] | None:
        """The job's rows in accounting, oldest first; None where accounting is off. Raises SlurmdbdAway."""
        rows = (await self._ask("attempts", job_id))["rows"]
        return None if rows is None else parse.attempt_rows(rows)

    async def nodes(self) -> tuple[NodeView, ...]:
        """Every node, sorted by name."""
        raw = (await self._ask("nodes"))["nodes"]
        return tuple(sorted((parse.node_view(entry) for entry in raw), key=lambda node: node.name))

    async def topology(self) -> dict[str, Nodes]:
        """Nodes of each leaf switch or block; nothing where Slurm knows of none."""
        return parse.switches((await self._ask("topology"))["topology"])

    async def config(self) -> ClusterFacts:
        return parse.cluster_facts((await self._ask("config"))["config"])

    async def maintenance(self) -> tuple[Window, ...]:
        """Reservations for maintenance that Slurm knows."""
        return parse.maintenance((await self._ask("reservations"))["reservations"])

    async def relatives(
        self, job_id: str, children: Iterable[str] = (), *, failed_at: datetime | None = None
    ) -> Relatives:
        """Dependents and twins. `children`: jobs seen earlier (SweepRow.dependents) to depend on this one. `failed_at`:
        when it failed, where that was before its end; of a running job no twins are told without it."""
        words = ["relatives", job_id]
        known = sorted(set(children))
        if known:
            words += ["--children", ",".join(known)]
        words += ["--failed-at", _epoch(failed_at)] if failed_at is not None else []
        return parse.relatives(self.cluster, await self._ask(*words))

    # -------------------------------------------------------------------------------------------- changing

    async def restart(
        self,
        job_id: str,
        count: int,
        *,
        deadline: datetime,
        start_in_s: int,
        exclude: Sequence[str] | None = None,
        again: bool = False,
        allow: Iterable[str] = (),
        states: Iterable[JobState] = (),
        children: Iterable[str] = (),
        failed_at: datetime | None = None,
        dry_run: bool = False,
    ) -> Changed:
        """Requeue, then at once one update with the union of exclusions and the start time.

        `exclude` None leaves the job's exclusions as they are, an empty one clears them. `again`: an earlier run of
        this step may have requeued already (count + 1 seen): then only the lease is applied. `allow`: 'twin',
        'dependent'. `states`: TIMEOUT, PREEMPTED or DEADLINE where they may be restarted.
        """
        words = ["restart", job_id, str(count), _epoch(deadline), "--start-in", str(max(MIN_START_IN_S, start_in_s))]
        words += _listed("--exclude", exclude)
        words += ["--again"] if again else []
        words += _listed("--allow", tuple(allow) or None)
        words += _listed("--state-ok", tuple(state.value for state in states) or None)
        words += _listed("--children", tuple(children) or None)
        words += ["--failed-at", _epoch(failed_at)] if failed_at is not None else []
        return await self._change(words, dry_run)

    async def lease(
        self,
        job_id: str,
        count: int,
        *,
        deadline: datetime,
        exclude: Sequence[str] | None = None,
        start_in_s: int | None = None,
        dry_run: bool = False,
    ) -> Changed:
        """Sets exclusions (None: unchanged, empty: cleared), start time or both of a job that waits."""
        words = ["lease", job_id, str(count), _epoch(deadline), *_listed("--exclude", exclude)]
        if start_in_s is not None:
            words += ["--start-in", str(max(MIN_START_IN_S, start_in_s))]
        return await self._change(words, dry_run)

    async def stop(self, job_id: str, count: int, *, deadline: datetime, dry_run: bool = False) -> Changed:
        """scancel, also of an attempt that still waits."""
        return await self._change(["stop", job_id, str(count), _epoch(deadline)], dry_run)

    async def signal(
        self, job_id: str, count: int, signal: str, *, deadline: datetime, to: str = "steps", dry_run: bool = False
    ) -> Changed:
        """Signals a running job: its steps, its batch script or all of it."""
        words = ["signal", job_id, str(count), _epoch(deadline), "--signal", signal, "--to", to]
        return await self._change(words, dry_run)

    async def release(self, job_id: str, count: int, *, deadline: datetime, dry_run: bool = False) -> Changed:
        """Releases a job that Slurm itself held after a failed launch; never one that a person holds."""
        return await self._change(["release", job_id, str(count), _epoch(deadline)], dry_run)

    async def arm(self, job_id: str, count: int, *, deadline: datetime, dry_run: bool = False) -> Changed:
        """Requeue=1 while the job is alive."""
        return await self._change(["arm", job_id, str(count), _epoch(deadline)], dry_run)

    async def rearm(self, child: str, parent: str, *, deadline: datetime, dry_run: bool = False) -> Changed:
        """Lets a child wait for afterok:parent again after Slurm gave up on it. The views are the child's."""
        return await self._change(["rearm", child, parent, _epoch(deadline)], dry_run)

    async def hold(
        self, job_id: str, count: int, *, nodes: Sequence[str], minutes: int, most: int, deadline: datetime
    ) -> Changed:
        """A short reservation of the healthy ones of these nodes for the job's user; `most` nodes held in all."""
        words = ["hold", job_id, str(count), _epoch(deadline), *_listed("--nodes", nodes)]
        return await self._change([*words, "--minutes", str(minutes), "--most", str(most)], dry_run=False)

    async def unhold(self, job_id: str, count: int, *, deadline: datetime) -> bool:
        """Ends that reservation before its time; False when there is none (any more)."""
        return bool((await self._ask("unhold", job_id, str(count), _epoch(deadline)))["done"])

    # -------------------------------------------------------------------------------------------- nodes

    async def drain(
        self,
        node: str,
        job_id: str,
        *,
        why: str,
        until: datetime,
        leave: int,
        deadline: datetime,
        dry_run: bool = False,
    ) -> NodeChanged:
        """Takes a node out of service, unless others did or a partition would have fewer than `leave` usable ones."""
        words = ["drain", node, job_id, _epoch(deadline), "--why", _signature(why), "--until", _epoch(until)]
        words += ["--leave", str(leave), *(["--dry-run"] if dry_run else [])]
        return parse.node_changed(await self._ask(*words))

    async def undrain(self, node: str, job_id: str, *, why: str, until: datetime, deadline: datetime) -> NodeChanged:
        """Returns a node to service that was drained with the same job, signature and end; refused for any other."""
        words = ["undrain", node, job_id, _epoch(deadline), "--why", _signature(why), "--until", _epoch(until)]
        return parse.node_changed(await self._ask(*words))

    # -------------------------------------------------------------------------------------------- asking

    async def _change(self, words: list[str], dry_run: bool) -> Changed:
        return parse.changed(self.cluster, await self._ask(*words, *(["--dry-run"] if dry_run else [])))

    async def _ask(self, *words: str) -> dict[str, Any]:
        return _checked(await self._transport.call(words))


def _checked(answer: bytes) -> dict[str, Any]:
    """The gate's document, or the error it tells of."""
    try:
        document = json.loads(answer)
        version, ok = document["v"], document["ok"]
    except (ValueError, KeyError, TypeError) as error:
        raise GateBroken(f"the gate's answer is no document of its own: {answer[:120]!r}") from error
    if version != GATE_VERSION:
        raise GateBroken(f"the gate speaks version {version}, this relight expects {GATE_VERSION}: install its gate.py")
    if ok:
        found: dict[str, Any] = document
        return found
    error_found = dict(document.get("error") or {})
    kind, message = str(error_found.pop("kind", "")), str(error_found.pop("message", ""))
    if kind == "slurmctld_away":
        raise SlurmctldAway(message, unsure=bool(error_found.get("unsure")))
    if kind == "slurmdbd_away":
        raise SlurmdbdAway(message)
    known = kind in RefusalKind._value2member_map_
    raise Refused(RefusalKind(kind) if known else RefusalKind.GATE_ERROR, message or kind, error_found)


def _epoch(moment: datetime) -> str:
    return str(int(moment.timestamp()))


def _signature(text: str) -> str:
    """A signature as one word that the gate takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")[:64] or "fault"


def _listed(option: str, values: Sequence[str] | None) -> list[str]:
    return [] if values is None else [option, ",".join(sorted(set(values)))]
