"""`relight worker`: serves the configured clusters until it is told to stop.

It builds what the activities share, checks what it cannot work without, keeps one ClusterWatch alive per cluster, and
ends gracefully: running steps finish or are handed to the next worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError
from temporalio.worker import Worker

import workflows as own_workflows
from activities import contracts as c
from activities.attributing import AttributingActivities
from activities.audit.store import AuditStore, AuditUnavailable, SchemaTooNew, UnfitDatabase
from activities.deciding import DecidingActivities
from activities.draining import DrainingActivities
from activities.keeping import KeepingActivities
from activities.looking import LookingActivities
from activities.recording import RecordingActivities
from activities.site import NodeCheck, PolicySource, Site
from activities.slurm.client import SlurmClient
from activities.stepping import SteppingActivities
from activities.sweeping import SweepingActivities
from recovery.faults.catalogue import Catalogue, CatalogueError
from recovery.policy_file import PolicyFileError
from workers.attribution import attributors
from workers.connect import TemporalAway, connect
from workers.gates import gate_of
from workers.keeping_schedule import ensure_schedule
from workers.namespace import check_namespace
from workers.sandbox import runner
from workers.settings import ConfigError, Settings
from workers.telemetry import log_store, metrics_watch
from workflows.cluster_watch import ClusterWatch, watch_id
from workflows.history_keeper import HistoryKeeper
from workflows.job_recovery import JobRecovery

log = logging.getLogger("relight.worker")

ENSURE_EVERY_S = 60.0
CACHED_WORKFLOWS = 2_000
STICKY_S = 2
"""A signal after this worker's death waits this long before another worker is asked (the SDK's default is 10 s)."""
GRACE_S = 15


class CannotServe(Exception):
    """The worker cannot work like this; the message says what to change."""


def run(settings: Settings) -> int:
    """Serves until SIGINT or SIGTERM. Returns the exit code."""
    try:
        asyncio.run(_serve(settings))
    except CannotServe as problem:
        log.error("%s", problem)
        return 2
    return 0


def refuse_shadowed_packages() -> None:
    """relight's packages have plain names; another distribution with one of them must not answer in their place."""
    home = Path(own_workflows.__file__ or "").resolve().parent.parent
    for name in ("recovery", "activities", "workflows", "workers"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent.parent if spec is not None and spec.origin else None
        if found != home:
            raise CannotServe(
                f"the package {name!r} comes from {found}, not from relight in {home}: install relight into an "
                "environment of its own (pipx, uv tool, or a container)"
            )


async def _serve(settings: Settings) -> None:
    refuse_shadowed_packages()
    if not settings.clusters:
        raise CannotServe("no cluster is configured: add one under `clusters:` (see docs/operate.md)")
    site = await asyncio.to_thread(_site, settings)
    try:
        client = await connect(settings.temporal)
        await check_namespace(client)
    except (TemporalAway, ValueError) as problem:
        raise CannotServe(str(problem)) from None
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(max_workers=32, thread_name_prefix="relight"))
        loop.set_default_executor(threads)
        for worker in _workers(client, site, settings):
            await stack.enter_async_context(worker)
        ensuring = asyncio.create_task(_keep_watching(client, settings))
        log.info("watching %s; stop with SIGTERM", ", ".join(sorted(settings.clusters)))
        await stopping.wait()
        log.info("stopping: running activities get %s s", GRACE_S)
        ensuring.cancel()
    for watch in site.metrics.values():
        watch.close()
    for logs in site.logs.values():
        await logs.source.close()
    for name in settings.clusters:
        await site.client(name).close()
    site.store.close()


def _site(settings: Settings) -> Site:
    try:
        policies, catalogue = PolicySource(settings.policy_file), Catalogue.built_in(*settings.catalogue)
        settings.evidence_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        store = AuditStore(settings.database_url)
        store.migrate()
    except (AuditUnavailable, SchemaTooNew, UnfitDatabase) as problem:
        raise CannotServe(f"the audit database cannot be used: {problem}") from None
    except (PolicyFileError, CatalogueError, ConfigError) as problem:
        raise CannotServe(str(problem)) from None
    except ValueError as problem:
        raise CannotServe(f"database.url: {problem}") from None
    except OSError as problem:
        raise CannotServe(f"{problem.filename}: {problem.strerror}; check policy_file and evidence_dir") from None
    return Site(
        store=store,
        clients={name: SlurmClient(name, gate_of(settings, name)) for name in settings.clusters},
        policies=policies,
        catalogue=catalogue,
        evidence_dir=settings.evidence_dir,
        sweep_interval_s=settings.sweep.interval_s,
        metrics={name: metrics_watch(settings, name, catalogue) for name in settings.clusters},
        logs={name: logs for name in settings.clusters if (logs := log_store(settings, name)) is not None},
        attributors=attributors(settings),
        node_checks={
            name: NodeCheck(command=check.command, timeout_s=check.timeout_s, every_s=check.every_s)
            for name, cluster in settings.clusters.items()
            if (check := cluster.node_check) is not None
        },
    )


def _workers(client: Client, site: Site, settings: Settings) -> list[Worker]:
    looking, stepping = LookingActivities(site), SteppingActivities(site)
    recording, deciding, draining = RecordingActivities(site), DecidingActivities(site), DrainingActivities(site)
    keeping = KeepingActivities(site, client)
    grace = timedelta(seconds=GRACE_S)
    made = [
        Worker(
            client,
            task_queue=c.EVIDENCE_QUEUE,
            activities=[recording.save_evidence],
            max_concurrent_activities=8,
            graceful_shutdown_timeout=grace,
        )
    ]
    if site.attributors is not None:
        made.append(
            Worker(
                client,
                task_queue=c.ATTRIBUTION_QUEUE,
                activities=[AttributingActivities(site).attribute],
                max_concurrent_activities=32,
                graceful_shutdown_timeout=grace,
            )
        )
    for name in settings.clusters:
        made += [
            Worker(
                client,
                task_queue=c.workflow_queue(name),
                workflows=[JobRecovery, ClusterWatch, HistoryKeeper],
                activities=[deciding.decide],
                workflow_runner=runner(),
                max_cached_workflows=CACHED_WORKFLOWS,
                sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_S),
                graceful_shutdown_timeout=grace,
            ),
            Worker(
                client,
                task_queue=c.slurm_queue(name),
                activities=[
                    looking.open_job,
                    looking.examine,
                    recording.plan,
                    recording.record,
                    recording.close_job,
                    stepping.restart,
                    stepping.settle,
                    stepping.guard,
                    stepping.stop,
                    stepping.release,
                    stepping.arm,
                    draining.drain,
                    keeping.keep_histories,
                ],
                max_concurrent_activities=100,
                graceful_shutdown_timeout=grace,
            ),
            Worker(
                client,
                task_queue=c.sweep_queue(name),
                activities=[SweepingActivities(site, client).sweep],
                max_concurrent_activities=1,
                graceful_shutdown_timeout=grace,
            ),
        ]
    return made


async def _keep_watching(client: Client, settings: Settings) -> None:
    """Ensures once a minute that each cluster has its one watch; Temporal's workflow id makes a second impossible."""
    unscheduled = set(settings.clusters)
    while True:
        for cluster in tuple(settings.clusters):
            try:
                await client.start_workflow(
                    ClusterWatch.run,
                    {"cluster": cluster},
                    id=watch_id(cluster),
                    task_queue=c.workflow_queue(cluster),
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    static_summary=f"watches all opted-in jobs of {cluster}",
                )
            except RPCError as problem:
                log.warning("the watch of %s could not be ensured, it is tried again: %s", cluster, problem)
        for cluster in sorted(unscheduled):
            try:
                await ensure_schedule(client, cluster, settings.retention.keep_histories_every_h)
                unscheduled.discard(cluster)
            except RPCError as problem:
                log.warning("histories of %s are not kept, it is tried again: %s", cluster, problem)
        await asyncio.sleep(ENSURE_EVERY_S)
