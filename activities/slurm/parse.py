"""Turns the gate's raw fields into records. Pure: the only module that knows which field of Slurm means what."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from activities.slurm import hostlist, states
from activities.slurm.answers import Changed, DependencyLink, Dependent, NodeChanged, Relatives, SweepRow, Twin
from activities.slurm.errors import SlurmError
from recovery.maintenance import Window
from recovery.records import AttemptRow, ClusterFacts, JobState, JobView, Nodes, NodeView, is_unplaceable

Raw = Mapping[str, Any]

_OWN_HOLD = re.compile(r"relight_[0-9_]+\Z")
"""A reservation that the gate made to hold nodes: the job may use others as well, so it binds nothing."""

_NODE_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWERING_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT",
    "^": "REBOOT",
    "-": "PLANNED",
}
_NODE_WORDS = {"MAINT": "MAINTENANCE", "REBOOT_REQUESTED": "REBOOT", "REBOOT_ISSUED": "REBOOT", "DRAINED": "DRAIN"}


def job_view(cluster: str, raw: Raw) -> JobView:
    """A JobView from the gate's `job`. While the job waits, `start_time` is None and `eligible_time` is its lease."""
    row: Mapping[str, str] = raw["row"]
    show: Mapping[str, str] = raw["show"]
    completing = row["State"] == "COMPLETING"
    state = states.job_state(raw["base"]) if raw["base"] else JobState.COMPLETING
    waits = state is JobState.PENDING
    over = state.is_final or state is JobState.COMPLETING
    # While it waits or runs, Slurm still tells the exit status of the attempt before.
    code, signal = states.exit_status(show.get("ExitCode") or row["exit_code"]) if over else (0, 0)
    min_nodes = _first_number(show.get("NumNodes", "")) or _first_number(row["NumNodes"]) or 1
    num_cpus = _first_number(row["NumCPUs"]) or 1
    memory = states.mebibytes(show.get("MinMemoryNode", "0"))
    if "MinMemoryCPU" in show:
        memory = states.mebibytes(show["MinMemoryCPU"]) * math.ceil(num_cpus / min_nodes)
    return JobView(
        cluster=cluster,
        job_id=raw["id"],
        raw_id=int(row["JobID"]),
        array_job_id=states.number(row["ArrayJobID"]) if states.number(row["ArrayTaskID"]) is not None else None,
        array_task_id=states.number(row["ArrayTaskID"]),
        het_job_id=states.number(row["HetJobID"]) or None,
        name=row["Name"],
        user=row["UserName"],
        uid=int(row["UserID"]),
        account=states.optional(row["Account"]),
        partition=row["Partition"],
        qos=states.optional(row["QOS"]),
        state=state,
        completing=completing,
        reason=row["Reason"],
        priority=states.number(row["PriorityLong"]),
        restarts=int(row["RestartCnt"]),
        requeue=row["Requeue"] != "0",
        batch=row["BatchFlag"] != "0",
        exit_code=code,
        exit_signal=signal,
        submit_time=states.moment(row["SubmitTime"]),
        eligible_time=states.moment(row["EligibleTime"]),
        start_time=None if waits else states.moment(row["StartTime"]),
        end_time=states.moment(row["EndTime"]) if over else None,
        time_limit_s=states.duration_s(row["TimeLimit"]),
        nodes=_nodes(row["NodeList"], show.get("AllocNodeList", "")),
        batch_host=states.optional(row["BatchHost"]),
        min_nodes=min_nodes,
        min_cpus_node=_first_number(row["MinCpus"]) or 1,
        num_cpus=num_cpus,
        gpus=_gpus(show),
        min_memory_mb=memory,
        excluded=hostlist.expand(show.get("ExcNodeList", "")),
        required_nodes=hostlist.expand(show.get("ReqNodeList", "")),
        features=states.optional(row["Feature"]),
        reservation="" if _OWN_HOLD.match(row["Reservation"]) else states.optional(row["Reservation"]),
        dependency=states.optional(row["Dependency"]),
        comment=states.optional(row["Comment"]),
        work_dir=row["WorkDir"],
        command=states.optional(row["Command"]),
        stdout=show.get("StdOut", ""),
        stderr=show.get("StdErr", ""),
        looked_at=datetime.fromtimestamp(raw["at"], UTC),
    )


def _gpus(show: Mapping[str, str]) -> int | None:
    """Of the attempt, where Slurm tells: TRES name them where the site accounts for GPUs, JOB_GRES while it runs."""
    told = (states.gpus(show.get(key, "")) for key in ("AllocTRES", "JOB_GRES", "TRES", "ReqTRES"))
    return next((number for number in told if number is not None), None)


def sweep_rows(raw: Raw) -> list[SweepRow]:
    """Rows of the sweep. Array tasks that still wait together in one record are left out until they are their own."""
    fields: Sequence[str] = raw["fields"]
    links: dict[str, list[DependencyLink]] = {}
    for child, kind, parent in raw["links"]:
        links.setdefault(parent, []).append(DependencyLink(child=child, kind=kind))
    rows = []
    for cells in raw["rows"]:
        row = dict(zip(fields, cells, strict=True))
        task = row["ArrayTaskID"]
        if task not in {"N/A", ""} and not task.isdigit():
            continue
        rows.append(_sweep_row(row, links))
    return rows


def _nodes(listed: str, allocated: str) -> tuple[str, ...]:
    """While COMPLETING, `listed` are those that are not done yet and `allocated` are all."""
    return hostlist.expand(allocated if listed and allocated else listed)


def _why_stuck(row: Mapping[str, str], waits: bool, held: bool) -> str:
    """Told once, not with each node that Slurm names in its reason; only a restarted job can be stuck by our doing."""
    if waits and row["RestartCnt"] != "0" and is_unplaceable(row["Reason"]):
        return "unplaceable"
    return row["Reason"] if held else ""


def _sweep_row(row: Mapping[str, str], links: Mapping[str, list[DependencyLink]]) -> SweepRow:
    task = states.number(row["ArrayTaskID"])
    job_id = row["JobID"] if task is None else f"{row['ArrayJobID']}_{task}"
    state = states.job_state(row["State"])
    waits = state is JobState.PENDING
    over = state.is_final or state is JobState.COMPLETING
    code, signal = states.exit_status(row["exit_code"]) if over else (0, 0)
    comment = states.optional(row["Comment"])
    held = waits and row["PriorityLong"] == "0"
    start = None if waits else states.number(row["StartTime"])
    changes = (
        row["State"],
        row["RestartCnt"],
        row["SubmitTime"],
        "" if waits or state is JobState.COMPLETING else row["StartTime"],
        _why_stuck(row, waits, held),
        f"{zlib.crc32(comment.encode()):08x}",
    )
    return SweepRow(
        job_id=job_id,
        raw_id=int(row["JobID"]),
        array_job_id=None if task is None else int(row["ArrayJobID"]),
        array_task_id=task,
        het_job_id=states.number(row["HetJobID"]) or None,
        state=state,
        completing=row["State"] == "COMPLETING",
        restarts=int(row["RestartCnt"]),
        uid=int(row["UserID"]),
        user=row["UserName"],
        account=states.optional(row["Account"]),
        partition=row["Partition"],
        qos=states.optional(row["QOS"]),
        held=held,
        batch=row["BatchFlag"] != "0",
        submit=states.number(row["SubmitTime"]),
        start=start,
        end=states.number(row["EndTime"]) if over else None,
        exit_code=code,
        exit_signal=signal,
        node_count=states.number(row["NumNodes"]) or 0,
        node_list=row["NodeList"],
        reason=row["Reason"],
        dependency=states.optional(row["Dependency"]),
        dependents=tuple(links.get(job_id, ())),
        name=row["Name"],
        comment=comment,
        seen="|".join(changes),
    )


def attempt_rows(raw: Sequence[Mapping[str, str]]) -> tuple[AttemptRow, ...]:
    return tuple(_attempt_row(row) for row in raw)


def _attempt_row(row: Mapping[str, str]) -> AttemptRow:
    code, signal = states.exit_status(row["ExitCode"])
    return AttemptRow(
        raw_id=int(row["JobIDRaw"]),
        state=states.job_state(row["State"]),
        cancelled_by=states.cancelled_by(row["State"]),
        exit_code=code,
        exit_signal=signal,
        reason=row["Reason"],
        nodes=hostlist.expand(row["NodeList"]),
        submit_time=states.moment(row["Submit"]),
        start_time=states.moment(row["Start"]),
        end_time=states.moment(row["End"]),
        comment=row["Comment"],
    )


def node_view(raw: Mapping[str, str]) -> NodeView:
    state, flags = node_state(raw.get("State", ""))
    features = states.optional(raw.get("ActiveFeatures", "")) or states.optional(raw.get("AvailableFeatures", ""))
    return NodeView(
        name=raw["NodeName"],
        state=state,
        flags=flags,
        reason=raw.get("Reason", ""),
        partitions=_words(raw.get("Partitions", "")),
        features=_words(features),
        cpus=states.number(raw.get("CPUEfctv", "")) or states.number(raw.get("CPUTot", "")) or 0,
        memory_mb=states.number(raw.get("RealMemory", "")) or 0,
        boot_time=states.moment(raw.get("BootTime", "")),
        slurmd_start_time=states.moment(raw.get("SlurmdStartTime", "")),
    )


def switches(raw: Sequence[Mapping[str, str]]) -> dict[str, Nodes]:
    """Nodes by leaf switch (or block), from the gate's `topology`. Higher switches hold the same nodes once more."""
    found = {}
    for entry in raw:
        name = entry.get("SwitchName") or entry.get("BlockName", "")
        if name and entry.get("Level", "0") == "0":
            found[name] = hostlist.expand(entry.get("Nodes", ""))
    return {name: nodes for name, nodes in found.items() if nodes}


def node_state(text: str) -> tuple[str, tuple[str, ...]]:
    """`IDLE+DRAIN`, `DOWN*`, `MIXED+CLOUD+NOT_RESPONDING`: the base state and the flags, in one spelling."""
    base, *flags = text.strip().split("+")
    found = {_NODE_WORDS.get(flag, flag) for flag in flags}
    while base and base[-1] in _NODE_MARKS:
        found.add(_NODE_MARKS[base[-1]])
        base = base[:-1]
    return base, tuple(sorted(found))


def maintenance(raw: Sequence[Mapping[str, str]]) -> tuple[Window, ...]:
    """The reservations with the flag MAINT. One whose node list cannot be read takes all nodes: the careful side."""
    found = []
    for entry in raw:
        begins, ends = states.moment(entry.get("StartTime", "")), states.moment(entry.get("EndTime", ""))
        if begins is None or ends is None or "MAINT" not in entry.get("Flags", "").split(","):
            continue
        name = entry.get("ReservationName", "")
        try:
            nodes = hostlist.expand(states.optional(entry.get("Nodes", "")))
        except SlurmError:
            nodes = ()
        found.append(Window(begins=begins, ends=ends, reason=f"Slurm reservation {name}", nodes=nodes))
    return tuple(sorted(found, key=lambda window: window.begins))


def cluster_facts(raw: Mapping[str, str]) -> ClusterFacts:
    match = re.search(r"cred_expire=(\d+)", raw.get("AuthInfo", ""))
    min_job_age = states.seconds(raw.get("MinJobAge", ""))
    kill_wait = states.seconds(raw.get("KillWait", ""))
    return ClusterFacts(
        cluster_name=raw.get("ClusterName", ""),
        slurm_version=raw.get("SLURM_VERSION", ""),
        min_job_age_s=300 if min_job_age is None else min_job_age,
        cred_expire_s=int(match.group(1)) if match else 120,  # slurm.conf's default
        kill_wait_s=30 if kill_wait is None else kill_wait,
        job_requeue=raw.get("JobRequeue", "1") != "0",
        stores_comment="job_comment" in raw.get("AccountingStoreFlags", ""),
        accounting=raw.get("AccountingStorageType", "").endswith("slurmdbd"),
        requeue_exit=exit_codes(raw.get("RequeueExit", "")),
    )


def exit_codes(text: str) -> tuple[int, ...]:
    """`100-109,5`, as RequeueExit holds them. Exit codes end at 255."""
    codes: set[int] = set()
    for part in states.optional(text).split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit():
            last = int(high) if high.isdigit() else int(low)
            codes.update(range(int(low), min(last, 255) + 1))
    return tuple(sorted(codes))


def relatives(cluster: str, raw: Raw) -> Relatives:
    return Relatives(
        view=job_view(cluster, raw["job"]),
        twins=tuple(
            Twin(
                job_id=entry["id"],
                state=states.job_state(entry["state"]),
                submit_time=_epoch(entry["submit"]),
                start_time=_epoch(entry["start"]),
                same=tuple(entry["same"]),
            )
            for entry in raw["twins"]
        ),
        dependents=tuple(
            Dependent(
                job_id=entry["id"],
                kind=entry["kind"],
                state=states.job_state(entry["state"]),
                user=entry["user"],
                reason=entry["reason"],
                never_satisfied=entry["never_satisfied"],
                started=entry["started"],
                how=entry["how"],
            )
            for entry in raw["dependents"]
        ),
    )


def changed(cluster: str, raw: Raw) -> Changed:
    return Changed(
        done=raw["done"],
        already=raw["already"],
        held=tuple(raw.get("held", ())),
        leased=raw.get("leased", False),
        dry_run=raw["dry_run"],
        unknown=tuple(raw.get("unknown", ())),
        note=raw["note"],
        acted_at=_epoch(raw["acted_at"]),
        window_ms=raw.get("window_ms"),
        before=job_view(cluster, raw["before"]),
        view=job_view(cluster, raw["job"]) if raw["job"] else None,
    )


def node_changed(raw: Raw) -> NodeChanged:
    return NodeChanged(
        done=raw["done"],
        already=raw["already"],
        dry_run=raw["dry_run"],
        note=raw["note"],
        acted_at=_epoch(raw["acted_at"]),
        window_ms=raw["window_ms"],
        before=node_view(raw["before"]),
        view=node_view(raw["node"]) if raw["node"] else None,
    )


def _epoch(value: float | None) -> datetime | None:
    return None if value is None else datetime.fromtimestamp(value, UTC)


def _first_number(text: str) -> int | None:
    """`2`, `2-4` (at least two, at most four), `1K` is not used by the fields read here."""
    match = re.match(r"\d+", text)
    return int(match.group()) if match else None


def _words(text: str) -> tuple[str, ...]:
    return tuple(part for part in states.optional(text).split(",") if part)
