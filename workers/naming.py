"""Which configuration, which job, which nodes: the words of a command line, checked before anything is asked."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from recovery.nearest import meant
from workers.screen import UNUSABLE, Trouble
from workers.settings import ConfigError, Settings, load_settings

_JOB = re.compile(r"(?:(?P<cluster>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})-)?(?P<id>[1-9][0-9]{0,9}(?:_[0-9]{1,9})?)")

_SPAN = re.compile(r"([1-9][0-9]{0,4})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def settings_of(config: Path | None) -> Settings:
    """The effective configuration; ends the command when there is none that works."""
    try:
        return load_settings(config)
    except ConfigError as error:
        raise Trouble(str(error), UNUSABLE) from None


def job_of(text: str, settings: Settings) -> tuple[str, str]:
    """Cluster and job id of `prod-12345`, or of `12345` where only one cluster is configured."""
    match = _JOB.fullmatch(text.strip())
    if match is None:
        raise Trouble(f"{text!r} is not a job, expected CLUSTER-JOBID such as prod-12345 or prod-12345_7", UNUSABLE)
    names = sorted(settings.clusters)
    cluster = match["cluster"]
    if cluster is None:
        if len(names) != 1:
            example = f"{names[0]}-{match['id']}"
            raise Trouble(
                f"{text}: {len(names)} clusters are configured, expected one of them, as in {example}", UNUSABLE
            )
        cluster = names[0]
    check_cluster(cluster, settings)
    return cluster, match["id"]


def check_cluster(cluster: str, settings: Settings) -> None:
    if cluster not in settings.clusters:
        names = ", ".join(sorted(settings.clusters))
        raise Trouble(f"cluster {cluster!r} is not configured, expected one of: {names}", UNUSABLE)


def check_nodes(nodes: Sequence[str], cluster: str, known: Sequence[str]) -> None:
    """Ends the command where a node is not one of the cluster's. `known` empty: no worker has told them yet."""
    strangers = [node for node in nodes if known and node not in known]
    if strangers:
        raise Trouble(f"cluster {cluster} has no node {strangers[0]!r}{meant(strangers[0], known)}")


def nodes_of(text: str) -> tuple[str, ...]:
    """Node names of a host list such as n[01-03],n07."""
    from activities.slurm.hostlist import BadHostlist, expand

    try:
        return expand(text)
    except BadHostlist as error:
        raise Trouble(str(error), UNUSABLE) from None


def span_of(text: str, option: str) -> timedelta:
    """A time span such as 12h, 30d or 8w."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise Trouble(f"{option} {text!r} is not a time span, expected a number and m, h, d or w, as in 30d", UNUSABLE)
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def login_name() -> str:
    """Who sits here, as the system knows them; behind sudo, who called it."""
    caller = os.environ.get("SUDO_USER", "")
    if caller:
        return caller
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
