"""`relight scorecard`: what relight advised, compared with what people and Slurm really did. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from activities.audit.store import AuditStore
from recovery.hindsight_records import Case, Judgement, Story
from recovery.scorecard import LEAST_JOBS, LEAST_RIGHT, Scorecard, scorecard
from workers.cli_jobs import opened_store
from workers.naming import check_cluster, settings_of, span_of
from workers.screen import print_json, say, table

MOST_WRONG = 20
"""Wrong ones named, the newest; --json has all."""


def show_scorecard(config: Path | None, *, since: str, cluster: str | None, as_json: bool) -> None:
    span = span_of(since, "--since")
    settings = settings_of(config)
    if cluster is not None:
        check_cluster(cluster, settings)
    now = datetime.now(UTC)
    with opened_store(settings) as store:
        card = read_scorecard(store, [cluster] if cluster is not None else sorted(settings.clusters), span, now)
    if as_json:
        print_json(card)
        return
    if not card.cases:
        say(
            f"nothing to compare yet: no job that failed was advised upon within {since}. relight advises in every "
            "mode, also in monitor; `relight jobs --all` lists what it watches, --since 90d looks further back"
        )
    else:
        _print_cases(card, since)
    _print_harm(card)
    if card.cases:
        _print_trust(card)


def read_scorecard(store: AuditStore, clusters: Sequence[str], span: timedelta, now: datetime) -> Scorecard:
    """What was advised upon jobs of these clusters within the span before `now`, judged by what happened next."""
    stories: list[Story] = []
    truncated = False
    for name in clusters:
        found, more = store.stories(name, now - span)
        stories += found
        truncated = truncated or more
    return scorecard(stories, since=now - span, until=now, truncated=truncated)


def _print_cases(card: Scorecard, since: str) -> None:
    more = "; older ones are left out, there are too many" if card.truncated else ""
    say(f"{_count(len(card.cases), 'recommendation')} about {_count(card.jobs, 'job')} within {since}{more}")
    table(
        ["CLASS", "ADVICE", "CASES", "SAME", "OTHER", "RIGHT", "WRONG", "UNPROVEN", "OPEN", "ON SUSPECT", "SAVED"],
        [
            [
                one.fault_class.value,
                one.action.value,
                *(str(n) for n in (one.cases, one.agreed, one.differed, one.right, one.wrong, one.unproven, one.open)),
                str(one.failed_again_on_suspects),
                _long(one.saved_s),
            ]
            for one in card.tallies
        ],
    )
    say(
        f"time that would have been saved: {_long(card.saved_s)} ({card.saved.words}), from the failure until a person "
        f"brought the job back, less {card.reaction_s:.0f} s for relight ({_reaction(card.reaction_measured)})"
    )
    wrong = [case for case in card.cases if case.judgement is Judgement.WRONG]
    for case in wrong[-MOST_WRONG:]:
        say(f"wrong: {_told(case)}")
    if len(wrong) > MOST_WRONG:
        say(f"and {len(wrong) - MOST_WRONG} more that were wrong; --json tells all")


def _told(case: Case) -> str:
    return (
        f"{case.cluster}-{case.job_id} attempt {case.attempt + 1}, {case.fault_class.value}: "
        f"{case.action.value} by rule {case.rule} ({case.mode.value}); {case.why}"
    )


def _print_harm(card: Scorecard) -> None:
    harm = card.harm
    if not harm.restarts:
        return
    again = f"{harm.failed_again} failed again without getting further and burnt {harm.burnt.words}"
    again = again if harm.failed_again else "none failed again without getting further"
    longest = f", the longest {_long(harm.longest_wait_s)}" if harm.restarts > 1 else ""
    say(f"relight's own restarts: {harm.restarts}; {again}; {_long(harm.queue_wait_s)} in the queue{longest}")


def _print_trust(card: Scorecard) -> None:
    say(card.verdict)
    for one in card.trust:
        if not one.safe:
            say(f"not yet: {one.fault_class.value} in {one.cluster}/{one.partition or 'any partition'} ({one.why})")
    if not card.trust:
        return
    say(
        f"The rule: at least {LEAST_RIGHT} recommendations of {LEAST_JOBS} jobs that what happened next proves right, "
        "none that it proves wrong, and people did otherwise in at most half as many."
    )


def _reaction(measured: int) -> str:
    """How it is known what relight needs."""
    if measured == 0:
        return "assumed, it has restarted nothing yet"
    return "as its own one restart took" if measured == 1 else f"the median of its own {measured} restarts"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _long(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
