"""Carries out what an operator demands of a job: checks it against what is known, then tells the job's workflow.

Pages and API demand in the same way; who may was asked before.
"""

from __future__ import annotations

from activities.audit.store import AuditStore
from recovery.records import Nodes
from workers.cli_operate import NotWatched, why_not_watched
from workers.console.problems import Problem
from workers.console.reading import Source
from workers.console.state import Console
from workers.console.telling import Answered, Verb, Wish
from workers.naming import check_nodes


async def demand(
    console: Console, cluster: str, job_id: str, verb: Verb, wish: Wish, *, by: str, once: str = ""
) -> Answered:
    """Raises Problem, Trouble, Refused, TemporalAway."""
    if wish.exclude:
        check_nodes(wish.exclude, cluster, await console.readings(_nodes, cluster))
    try:
        return await console.telling(f"{cluster}-{job_id}", verb, wish, by=by, once=once)
    except NotWatched as error:
        namespace = error.namespace

    def why(source: Source) -> str:
        return why_not_watched(source.store, cluster, job_id, namespace)

    raise Problem(404, await console.readings(why))


def _nodes(source: Source, cluster: str) -> Nodes:
    store: AuditStore = source.store
    facts = store.facts(cluster)
    return facts.nodes if facts is not None else ()
