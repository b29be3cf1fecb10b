"""`relight incidents`: faults that several jobs share, open and closed, and closing one by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from activities.audit.store import AuditStore
from recovery.incident_records import Incident
from recovery.nearest import meant
from workers.cli_jobs import opened_store
from workers.naming import check_cluster, login_name, settings_of
from workers.screen import Trouble, age, print_json, say, table


def list_incidents(config: Path | None, *, cluster: str | None, everything: bool, limit: int, as_json: bool) -> None:
    settings = settings_of(config)
    if cluster is not None:
        check_cluster(cluster, settings)
    with opened_store(settings) as store:
        found = incidents_of(
            store, [cluster] if cluster is not None else sorted(settings.clusters), everything=everything, limit=limit
        )
    if as_json:
        print_json([{"cluster": name, "summary": one.summary, **one.model_dump(mode="json")} for name, one in found])
        return
    if not found:
        say("no incidents" if everything else "no open incidents; --all lists closed ones too")
        return
    now = datetime.now(UTC)
    table(
        ["INCIDENT", "CLUSTER", "OPENED", "LAST SEEN", "JOBS", "STATE", "WHAT"],
        [_row(name, one, now) for name, one in found],
    )


def incidents_of(
    store: AuditStore, clusters: Sequence[str], *, everything: bool, limit: int
) -> list[tuple[str, Incident]]:
    """Incidents of the clusters, each with its cluster; of each cluster the newest first."""
    return [(name, one) for name in clusters for one in store.incidents(name, include_closed=everything, limit=limit)]


def _row(cluster: str, incident: Incident, now: datetime) -> list[str]:
    state = "open" if incident.is_open else f"closed by {incident.closed_by}: {incident.close_reason}"
    only = f" (all of {incident.only_user})" if incident.only_user else ""
    opened, last = age(incident.opened_at, now), age(incident.last_at, now)
    what = incident.summary + only
    return [incident.id, cluster, f"{opened} ago", f"{last} ago", str(incident.jobs), state, what]


def close_incident(config: Path | None, incident_id: str, *, by: str, reason: str, as_json: bool) -> None:
    settings = settings_of(config)
    with opened_store(settings) as store:
        closed = _close(store, sorted(settings.clusters), incident_id, by or login_name(), reason)
        known = {one.id for name in settings.clusters for one in store.incidents(name, include_closed=True)}
    if closed is None:
        raise Trouble(
            f"there is no incident {incident_id!r}{meant(incident_id, known)}; `relight incidents --all` lists them"
        )
    if as_json:
        print_json(closed)
        return
    say(f"{closed.id} is closed by {closed.closed_by}: {closed.close_reason}")


def _close(store: AuditStore, clusters: list[str], incident_id: str, by: str, reason: str) -> Incident | None:
    for cluster in clusters:
        closed = store.close_incident(cluster, incident_id, by=by, reason=reason)
        if closed is not None:
            return closed
    return None
