"""The operator's places of a policy file: cluster, account, QOS, partition, user, and which of them decides for a job.

Only shapes and precedence; reading and checking a file stands in `policy_file.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from recovery.maintenance import Maintenance
from recovery.policy_numbers import RestartOn, Switch
from recovery.records import Mode, gentlest

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class MayAsk(BaseModel):
    """What a job may ask for in its comment. A comment can only ever make its treatment gentler in mode and budget."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    policies: tuple[Name, ...] | None = None
    """Policies a job may name; left out: any of this file."""
    progress: Switch = True
    """Whether a job may bring its own expression for progress lines."""
    stop_codes: Switch = True
    """Whether a job may name exit codes that mean: do not restart me."""
    elsewhere_codes: Switch = True
    """Whether a job may name exit codes that ask for other hardware."""
    before_restart: Switch = True
    """Whether a job may name the signal that it gets before it is restarted."""
    restart_on: Annotated[tuple[RestartOn, ...], Field(max_length=2)] = ()
    """Endings beyond the policy's own `restart_on` that a job may name: TIMEOUT, PREEMPTED."""


class Only(BaseModel):
    """An allow-list. A job that is outside one of its lists is in monitor mode here. A list that is left out says
    nothing; an empty one lets nobody in."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    partitions: tuple[str, ...] | None = None
    """Only jobs of these partitions; one in several partitions must have all of them here."""
    accounts: tuple[str, ...] | None = None
    """Only jobs of these accounts."""
    qos: tuple[str, ...] | None = None
    """Only jobs of these QOS."""
    users: tuple[str, ...] | None = None
    """Only jobs of these users."""


class Scope(BaseModel):
    """What holds in one cluster, account, QOS or partition, or for one user."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    mode: Mode | None = None
    """How far relight may go here: monitor, approve or act. The closest place that says a mode decides."""
    policy: Name | None = None
    """Policy of jobs here that name none themselves."""
    opt_in: Switch | None = None
    """Watch jobs here although their comment does not opt in."""
    only: Only | None = None
    """Allow-list: jobs here that are not on it are in monitor mode, whatever closer places say."""
    may_ask: MayAsk | None = None
    """What jobs here may ask for in their comment; the closest place that says it decides."""


class ClusterScope(Scope):
    """What holds in one cluster, and closer in."""

    mode: Mode | None = Mode.MONITOR
    """Mode of jobs here for which no closer place says one; a new cluster starts in monitor."""
    at_most: Mode | None = None
    """Strongest mode anywhere in this cluster, whatever closer places say: the brake for all of it."""
    accounts: dict[str, Scope] = Field(default_factory=dict)
    """By account name; closer than the cluster."""
    qos: dict[str, Scope] = Field(default_factory=dict)
    """By QOS name; closer than the account."""
    partitions: dict[str, Scope] = Field(default_factory=dict)
    """By partition name; closer than the QOS."""
    users: dict[str, Scope] = Field(default_factory=dict)
    """By user name; the closest of all."""
    maintenance: Annotated[tuple[Maintenance, ...], Field(max_length=1000)] = ()
    """Calendar of windows before which no job is restarted that could not save a checkpoint any more."""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The cluster and every place in it."""
        closer = (self.accounts, self.qos, self.partitions, self.users)
        return (self, *(scope for places in closer for scope in places.values()))


@dataclass(frozen=True)
class Job:
    """Where a job belongs. A waiting job may name several partitions ("a,b")."""

    cluster: str
    partition: str = ""
    account: str = ""
    qos: str = ""
    user: str = ""


Ranks = Sequence[Sequence[tuple[str, Scope]]]
"""Places that apply, by rank, the farthest rank first. A rank holds several where a job names several partitions."""


def scopes_of(place: ClusterScope, job: Job) -> Ranks:
    """The places that apply to the job: cluster < account < QOS < partition < user."""
    ranks: list[list[tuple[str, Scope]]] = [[(f"cluster {job.cluster}", place)]]
    kinds: tuple[tuple[str, str, Mapping[str, Scope]], ...] = (
        ("account", job.account, place.accounts),
        ("qos", job.qos, place.qos),
        ("partition", job.partition, place.partitions),
        ("user", job.user, place.users),
    )
    for kind, name, known in kinds:
        parts = name.split(",") if kind == "partition" else [name]
        ranks.append([(f"{kind} {part}", known[part]) for part in parts if part in known])
    return [rank for rank in ranks if rank]


def operators_mode(place: ClusterScope, ranks: Ranks, job: Job) -> tuple[Mode, str]:
    """The mode that the operator allows, and who says so.

    The closest rank that says a mode decides; of several partitions the gentlest. Then the brakes of the cluster and
    the allow-lists, which no closer place can loosen.
    """
    mode, who = place.mode or Mode.MONITOR, f"cluster {job.cluster}"
    for rank in ranks[1:]:
        said = [(scope.mode, name) for name, scope in rank if scope.mode is not None]
        # Of several partitions all are in question until the job runs; one that says nothing says what holds so far.
        if said and len(said) < len([part for part in job.partition.split(",") if part]) and _is_partition(rank):
            said.append((mode, who))
        if said:
            mode, who = min(said, key=lambda one: one[0].strength)
    if place.at_most is not None and gentlest(mode, place.at_most) is not mode:
        mode, who = place.at_most, f"cluster {job.cluster} (at_most)"
    for rank in ranks:
        for name, scope in rank:
            outside = _outside(scope.only, job) if scope.only is not None else ""
            if outside and mode is not Mode.MONITOR:
                mode, who = Mode.MONITOR, f"the allow-list of {name} ({outside})"
    return mode, who


def _is_partition(rank: Sequence[tuple[str, Scope]]) -> bool:
    return rank[0][0].startswith("partition ")


def _outside(only: Only, job: Job) -> str:
    """Which list of the allow-list the job is not on; empty: it is on all."""
    kinds = (
        ("partitions", job.partition, only.partitions),
        ("accounts", job.account, only.accounts),
        ("qos", job.qos, only.qos),
        ("users", job.user, only.users),
    )
    for kind, name, allowed in kinds:
        if allowed is not None and not set(name.split(",")) <= set(allowed):
            return kind
    return ""
