"""Commands about nodes: what is held against them, from what they are kept, and calling one well.

They read and write the audit store only; the worker returns a drained node to service.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities.audit.records import Drain, Excluded
from activities.audit.store import AuditStore
from recovery.recurrence import Suspicion
from workers.cli_jobs import opened_store
from workers.naming import check_cluster, check_nodes, login_name, nodes_of, settings_of
from workers.screen import UNUSABLE, Trouble, age, print_json, say, table
from workers.settings import Settings

MOST = 10_000
RETURN_WAIT_S = 10.0
"""How long `node clear` waits for the worker to return a drained node to service."""


def list_nodes(config: Path | None, *, cluster: str | None, as_json: bool) -> None:
    """Suspects, exclusions and drains of all nodes, or of one cluster's."""
    settings = settings_of(config)
    if cluster is not None:
        check_cluster(cluster, settings)
    with opened_store(settings) as store:
        told = held_against(store, [cluster] if cluster is not None else sorted(settings.clusters))
    if as_json:
        print_json(told)
        return
    if not told:
        say("nothing is held against any node")
        return
    now = datetime.now(UTC)
    table(["NODE", "WHAT", "WHY", "SINCE", "UNTIL"], [row for entry in told for row in _rows(entry, now)])


def show_node(config: Path | None, node: str, *, cluster: str | None, as_json: bool) -> None:
    """Everything about one node, also what is over."""
    settings = settings_of(config)
    name = _cluster(settings, cluster)
    check_node(node)
    with opened_store(settings) as store:
        told = everything_of(store, name, node)
        _check_name(store, name, node, (told["suspicions"], told["exclusions"], told["drains"]))
    if as_json:
        print_json(told)
        return
    now = datetime.now(UTC)
    rows = _rows(told, now)
    if rows:
        table(["NODE", "WHAT", "WHY", "SINCE", "UNTIL"], rows)
    else:
        say(f"nothing is held against {name}/{node}")
    for drain in told["past_drains"]:
        begun, ended = drain.drained_at or drain.granted_at, drain.ended_at
        say(f"was drained {_clock(begun)} to {_clock(ended)} ({drain.signature}): {drain.end_reason}")
    if told["cleared"] is not None:
        done = told["cleared"]
        say(f"last called well {_clock(done.at)} by {done.by}{f': {done.reason}' if done.reason else ''}")


def clear_node(config: Path | None, node: str, *, cluster: str | None, by: str, reason: str, as_json: bool) -> None:
    """Calls a node well: suspicions before now count no more, and a drain of ours ends."""
    settings = settings_of(config)
    name = _cluster(settings, cluster)
    check_node(node)
    if not reason.strip():
        raise Trouble("say --reason: it stands in the record of the node", UNUSABLE)
    with opened_store(settings) as store:
        facts = known(store, name, node).get(node, ([], [], []))
        _check_name(store, name, node, facts)
        suspicions, exclusions, drains = facts
        store.clear_node(name, node, by or login_name(), reason)
        waits = drains and not _returned(store, name, node)
    done = {
        "cluster": name,
        "node": node,
        "suspicions": len(suspicions),
        "excluded_from": [one.job_id for one in exclusions],
        "drained": bool(drains),
        "returned": bool(drains) and not waits,
    }
    if as_json:
        print_json(done)
        return
    past = {0: "nothing was suspected", 1: "the one suspicion counts no more"}
    say(f"{name}/{node}: called well; {past.get(len(suspicions), f'{len(suspicions)} suspicions count no more')}")
    if exclusions:
        jobs = ", ".join(one.job_id for one in exclusions)
        say(f"still excluded from jobs {jobs} until their next restart")
    if drains:
        last = "relight has returned it to service" if not waits else "the worker returns it to service when it can"
        say(f"{last}; `relight node show {node}` tells")


def _returned(store: AuditStore, cluster: str, node: str) -> bool:
    """Whether no drain of the node stands any more, within a moment."""
    ends = time.monotonic() + RETURN_WAIT_S
    while any(drain.node == node for drain in store.drains(cluster)):
        if time.monotonic() > ends:
            return False
        time.sleep(0.2)
    return True


# ------------------------------------------------------------------------------------------------ pieces

Facts = tuple[list[Suspicion], list[Excluded], list[Drain]]


def known(store: AuditStore, cluster: str, node: str | None = None) -> dict[str, Facts]:
    """What stands now, by node."""
    found: dict[str, Facts] = {}
    for suspicion in store.suspicions(cluster, None if node is None else [node], limit=MOST):
        found.setdefault(suspicion.node, ([], [], []))[0].append(suspicion)
    for excluded in store.exclusions(cluster):
        found.setdefault(excluded.node, ([], [], []))[1].append(excluded)
    for drain in store.drains(cluster):
        found.setdefault(drain.node, ([], [], []))[2].append(drain)
    return found if node is None else {name: facts for name, facts in found.items() if name == node}


def held_against(store: AuditStore, clusters: Sequence[str]) -> list[dict[str, Any]]:
    """What stands now against nodes of the clusters, node by node."""
    return [told_of(name, node, *facts) for name in clusters for node, facts in sorted(known(store, name).items())]


def everything_of(store: AuditStore, cluster: str, node: str) -> dict[str, Any]:
    """Everything about one node, also what is over."""
    told = told_of(cluster, node, *known(store, cluster, node).get(node, ([], [], [])))
    told["past_drains"] = [one for one in store.drains_of(cluster, node) if one.ended_at is not None]
    told["cleared"] = store.cleared(cluster, [node]).get(node)
    return told


def told_of(
    cluster: str, node: str, suspicions: Sequence[Suspicion], exclusions: Sequence[Excluded], drains: Sequence[Drain]
) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "node": node,
        "suspicions": list(suspicions),
        "exclusions": list(exclusions),
        "drains": list(drains),
    }


def _rows(told: dict[str, Any], now: datetime) -> list[list[str]]:
    name = f"{told['cluster']}/{told['node']}"
    rows = []
    for drain in told["drains"]:
        what = "drained" if drain.drained_at is not None else "to be drained"
        since = drain.drained_at or drain.granted_at
        why = f"{drain.signature}, job {drain.job_id}: {drain.how}"
        rows.append([name, what, why, _ago(since, now), _clock(drain.until)])
    for excluded in told["exclusions"]:
        why = f"a suspect of job {excluded.job_id}"
        rows.append(
            [name, f"excluded from job {excluded.job_id}", why, _ago(excluded.since, now), _clock(excluded.until)]
        )
    for one in told["suspicions"]:
        sure = f"suspected ({one.confidence.value}{', trusted' if one.trusted else ''})"
        what = one.signature or one.fault_class.value
        why = f"{what}, job {one.job_id} of {one.user}, attempt {one.attempt}: {one.how}"
        rows.append([name, sure, why, _ago(one.at, now), _clock(one.expires_at)])
    return rows


def _ago(at: datetime, now: datetime) -> str:
    return f"{age(at, now)} ago"


def _clock(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%MZ}" if at is not None else "-"


def _cluster(settings: Settings, cluster: str | None) -> str:
    names = sorted(settings.clusters)
    if cluster is None and len(names) != 1:
        raise Trouble(f"{len(names)} clusters are configured ({', '.join(names)}): say --cluster", UNUSABLE)
    name = cluster or names[0]
    check_cluster(name, settings)
    return name


def _check_name(store: AuditStore, cluster: str, node: str, facts: Facts) -> None:
    """A node that is on record may have left the cluster since."""
    if any(facts) or store.drains_of(cluster, node) or node in store.cleared(cluster, [node]):
        return
    told = store.facts(cluster)
    check_nodes((node,), cluster, told.nodes if told is not None else ())


def check_node(node: str) -> None:
    if nodes_of(node) != (node,):
        raise Trouble(f"{node!r} is not one node's name, expected something like n07", UNUSABLE)
