"""Commands that read the audit store: the list of jobs and the story of one. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from activities.audit.records import Event, JobRow, Life
from activities.audit.store import AuditStore, AuditUnavailable, SchemaTooNew, UnfitDatabase
from recovery.incident_records import Incident
from recovery.nearest import meant
from recovery.records import JobState
from workers.naming import check_cluster, job_of, settings_of
from workers.screen import UNUSABLE, Trouble, age, print_json, say, table
from workers.settings import ConfigError, Settings
from workers.story import story
from workflows.state import Phase

PAGE = 500
MOST_EVENTS = 20_000


@contextmanager
def opened_store(settings: Settings) -> Iterator[AuditStore]:
    """The audit store, for a command; what is wrong with it ends the command."""
    try:
        with AuditStore(settings.database_url, existing=True) as store:
            if store.missing_file is not None:
                raise Trouble(
                    f"database.url: there is no SQLite file {store.missing_file.absolute()}. Check the path (`relight "
                    "config check` prints the configuration in force); if it is right, start a worker, which creates "
                    "the file"
                )
            store.ping()
            yield store
    except (ValueError, ConfigError) as error:
        raise Trouble(f"database.url: {error}", UNUSABLE) from None
    except (AuditUnavailable, SchemaTooNew, UnfitDatabase) as error:
        raise Trouble(str(error)) from None


def list_jobs(
    config: Path | None,
    *,
    cluster: str | None,
    user: str | None,
    state: str | None,
    everything: bool,
    limit: int,
    as_json: bool,
) -> None:
    settings = settings_of(config)
    if cluster is not None:
        check_cluster(cluster, settings)
    if state is not None:
        _check_state(state)
    with opened_store(settings) as store:
        rows: list[JobRow] = []
        offset = 0
        while len(rows) < limit:
            page = store.jobs(cluster, user=user, include_closed=everything, limit=PAGE, offset=offset)
            rows += [row for row in page if state is None or _is_in(row, state)]
            offset += PAGE
            if len(page) < PAGE:
                break
        rows, opened = with_incidents(store, rows[:limit])
        others = [] if rows else store.jobs(cluster, include_closed=everything, limit=PAGE)
    if as_json:
        print_json(rows)
        return
    for incident in opened:
        say(f"incident {incident.id}: {incident.summary}; see `relight incidents`")
    if not rows:
        say(_none(others, user, everything=everything))
        return
    now = datetime.now(UTC)
    head = ["JOB", "USER", "NAME", "STATE", "PHASE", "MODE", "ATTEMPT", "STEP", "LAST FINDING", "LAST ADVICE", "SEEN"]
    table(head, [_row(row, now) for row in rows])


def _check_state(state: str) -> None:
    phases = [one.value for one in Phase]
    known = {one.lower(): one for one in (*(one.value for one in JobState), *phases)}
    if state.lower() not in known:
        near = meant(state.lower(), known)
        near = near if near.endswith("?") else f"; phases are {', '.join(phases)}"
        raise Trouble(f"--state {state!r} is neither a state of Slurm nor a phase{near}", UNUSABLE)


def _none(others: list[JobRow], user: str | None, *, everything: bool) -> str:
    """Why the list is empty."""
    if not others:
        more = "" if everything else "; --all lists those too that Slurm has forgotten"
        return f"no jobs{more}. A job opts in with: #SBATCH --comment=relight"
    users = {row.user for row in others}
    if user is not None and user not in users:
        return f"no jobs of user {user!r}{meant(user, users)}"
    return f"no such jobs; without the filter there are {len(others)}{' or more' if len(others) == PAGE else ''}"


def with_incidents(store: AuditStore, rows: list[JobRow]) -> tuple[list[JobRow], list[Incident]]:
    """The rows, each with the open incident its job belongs to, and those incidents."""
    clusters = sorted({row.cluster for row in rows})
    opened = [(cluster, incident) for cluster in clusters for incident in store.open_incidents(cluster)]
    of_job = {
        (cluster, member.partition(":")[0]): incident.id for cluster, incident in opened for member in incident.members
    }
    marked = [row.model_copy(update={"incident": of_job.get((row.cluster, row.job_id), "")}) for row in rows]
    return marked, [incident for _, incident in opened]


def _is_in(row: JobRow, state: str) -> bool:
    wanted = state.lower()
    return wanted in {row.state.lower(), row.phase.lower()} or (wanted == "paused" and row.paused)


def _row(row: JobRow, now: datetime) -> list[str]:
    phase = "paused" if row.paused else "stopped" if row.stopped else row.phase
    total = f"/{row.total_steps}" if row.total_steps is not None else ""
    step = f"{row.step}{total}" if row.step is not None else "-"
    advice = f"waits {row.waits}" if row.waits else row.last_advice
    advice = f"[{row.incident}] {advice}" if row.incident else advice
    return [
        f"{row.cluster}-{row.job_id}",
        row.user,
        _cut(row.name, 24),
        row.state,
        phase or "-",
        row.mode or "-",
        str(row.attempt),
        step,
        _cut(row.last_finding, 44) or "-",
        _cut(advice, 60) or "-",
        f"{age(row.updated_at, now)} ago",
    ]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def recorded_life(store: AuditStore, cluster: str, job_id: str) -> Life:
    """The job's latest life; without one the command ends with a sentence."""
    life = store.latest_life(cluster, job_id)
    if life is None:
        known = [row.job_id for row in store.jobs(cluster, include_closed=True, limit=PAGE)]
        near = meant(job_id, known)
        raise Trouble(
            f"relight has no record of job {cluster}-{job_id}{near}{'' if near.endswith('?') else '.'} `relight jobs "
            "--all` lists those it has; a job opts in by its comment: #SBATCH --comment=relight"
        )
    return life


def events_of(store: AuditStore, life: Life) -> list[Event]:
    """The log of one life, oldest first, the first MOST_EVENTS of it."""
    events: list[Event] = []
    while len(events) < MOST_EVENTS:
        after = events[-1].id if events else 0
        page = store.events(life.cluster, life.job_id, life_id=life.life_id, after_id=after, limit=PAGE)
        events += page
        if len(page) < PAGE:
            break
    return events


def show_job(config: Path | None, job: str, *, as_json: bool) -> None:
    settings = settings_of(config)
    cluster, job_id = job_of(job, settings)
    with opened_store(settings) as store:
        life = recorded_life(store, cluster, job_id)
        attempts = store.attempts(life.life_id)
        events = events_of(store, life)
    if as_json:
        print_json({"job": f"{cluster}-{job_id}", "life": life, "attempts": attempts, "events": events})
        return
    for line in story(life, attempts, events):
        say(line)
