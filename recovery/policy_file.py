"""The policy file: named policies, how far relight may go where, and what a job may ask for.

Pure: text in, a checked `PolicyFile` out, or one error that lists every problem with file, line, key and reason.
Reading the file is the caller's.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recovery.directive import Directive
from recovery.maintenance import Maintenance, Window, in_calendar
from recovery.policy_numbers import BeforeRestart, Policy
from recovery.policy_scopes import ClusterScope, Job, MayAsk, Name, Only, Scope, operators_mode, scopes_of
from recovery.records import Mode, Record, gentlest
from recovery.tightening import tighten
from recovery.yaml_lines import Lines, Path, Problem, dotted, read_lines

BUILT_IN = "default"
"""The policy that always exists; a file may redefine it."""


class PlacedJob(Protocol):
    """A job with where it belongs, however it was read."""

    @property
    def partition(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def qos(self) -> str: ...
    @property
    def user(self) -> str: ...


class PolicyFileError(ValueError):
    """The file cannot be used. The text lists every problem, one a line."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class PolicyEntry(Policy):
    """One policy of the file. What it leaves out comes from the policy it extends, or from the built-in defaults."""

    extends: Name | None = None
    """Name of the policy whose values hold where this one says nothing."""


class PolicyDocument(BaseModel):
    """The policy file as it is written."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    version: Annotated[int, Field(strict=True, ge=1, le=1)] = 1
    """Version of the file's format."""
    default_policy: Name = BUILT_IN
    """Policy of jobs for which nothing else names one."""
    policies: dict[Name, PolicyEntry] = Field(default_factory=dict)
    """Named policies."""
    clusters: dict[str, ClusterScope] = Field(default_factory=dict)
    """How far relight may go, by cluster name. A cluster that is not named is in monitor mode."""
    may_ask: MayAsk = MayAsk()
    """What a job may ask for in its comment."""


class EffectivePolicy(Record):
    """The policy and mode that hold for one job."""

    policy: Policy
    name: str
    mode: Mode
    hash: str = Field(description="changes whenever the policy's values, its name or the mode change")
    opt_in: bool = Field(default=False, description="the site watches this job even if its comment does not opt in")
    refused: str = Field(default="", description="why the job's directive cannot be followed; treat as directive_error")
    mode_from: str = Field(default="", description="who sets the mode, for people: 'cluster prod'")
    policy_from: str = Field(default="", description="who names the policy, for people: 'partition gpu'")
    cut: tuple[str, ...] = Field(default=(), description="asks of the job beyond its limits: refused, the limit holds")


class PolicyFile:
    """A checked policy file."""

    def __init__(self, document: PolicyDocument, policies: Mapping[str, Policy], file: str) -> None:
        self.document = document
        self.file = file
        self._policies = dict(policies)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all policies, sorted."""
        return tuple(sorted(self._policies))

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits of the whole file's meaning."""
        return hashlib.sha256(self.document.model_dump_json().encode()).hexdigest()[:12]

    def policy(self, name: str) -> Policy:
        """The policy of that name; a name that no longer exists gives the default one."""
        return self._policies.get(name) or self._policies[self.document.default_policy]

    def mode_of(self, cluster: str) -> Mode:
        """Strongest mode that a job of the cluster may have."""
        place = self.document.clusters.get(cluster, ClusterScope())
        modes = [scope.mode for scope in place.scopes if scope.mode is not None]
        strongest = max(modes, key=lambda mode: mode.strength, default=Mode.MONITOR)
        return gentlest(strongest, place.at_most)

    def opts_in_somewhere(self, cluster: str) -> bool:
        """Whether jobs of this cluster may be watched although their comment says nothing."""
        return any(scope.opt_in for scope in self.document.clusters.get(cluster, ClusterScope()).scopes)

    def maintenance(self, cluster: str, partition: str, now: datetime) -> tuple[Window, ...]:
        """Windows of the calendar that are open or come next, for jobs of that partition."""
        return in_calendar(self.document.clusters.get(cluster, ClusterScope()).maintenance, partition, now)

    def of_job(
        self,
        cluster: str,
        job: PlacedJob,
        directive: Directive | None = None,
        *,
        mode: Mode | None = None,
        policy: str | None = None,
    ) -> EffectivePolicy:
        """What holds for a job as Slurm shows it; see `resolve`."""
        return self.resolve(
            cluster, job.partition, job.account, directive, qos=job.qos, user=job.user, mode=mode, policy=policy
        )

    def resolve(
        self,
        cluster: str,
        partition: str = "",
        account: str = "",
        directive: Directive | None = None,
        *,
        qos: str = "",
        user: str = "",
        mode: Mode | None = None,
        policy: str | None = None,
    ) -> EffectivePolicy:
        """What holds for a job. Never raises.

        The operator's closest place decides: cluster < account < QOS < partition < user. The job's comment, and
        `mode` and `policy` (what a person said when starting the workflow by hand), can only make it gentler.
        """
        asked = directive or Directive()
        job = Job(cluster=cluster, partition=partition, account=account, qos=qos, user=user)
        place = self.document.clusters.get(cluster, ClusterScope())
        ranks = scopes_of(place, job)
        chosen, mode_from = operators_mode(place, ranks, job)
        for who, gentler in (("the job's comment", asked.mode), ("the workflow's start", mode)):
            if gentler is not None and gentler.strength < chosen.strength:
                chosen, mode_from = gentler, who

        flat = [found for rank in ranks for found in rank]
        may = next((one.may_ask for _, one in reversed(flat) if one.may_ask is not None), self.document.may_ask)
        refused = self._refused(asked, may) or self._refused(Directive(policy=policy), may)
        named = [(scope.policy, who) for who, scope in flat if scope.policy]
        name, policy_from = named[-1] if named else (self.document.default_policy, "default_policy")
        if not refused and asked.policy is not None:
            name, policy_from = asked.policy, "the job's comment"
        if not refused and policy is not None:
            name, policy_from = policy, "the workflow's start"
        tightened = tighten(self.policy(name), asked, file=self.file, name=name, may=may)
        values = tightened.policy
        opt_ins = [scope.opt_in for _, scope in flat if scope.opt_in is not None]
        return EffectivePolicy(
            policy=values,
            name=name,
            mode=chosen,
            hash=hashlib.sha256(f"{values.hash} {name} {chosen.value}".encode()).hexdigest()[:12],
            opt_in=bool(opt_ins and opt_ins[-1]),
            refused=refused,
            mode_from=mode_from,
            policy_from=policy_from,
            cut=tightened.cut,
        )

    def _refused(self, asked: Directive, may: MayAsk) -> str:
        if asked.policy is not None:
            allowed = self.names if may.policies is None else may.policies
            if asked.policy not in allowed:
                names = ", ".join(allowed) or "none"
                return f"policy {asked.policy!r} is not one that a job may ask for here, expected one of: {names}"
        if asked.progress is not None and not may.progress:
            return "a job may not bring its own progress expression here (may_ask.progress is off)"
        if asked.stop_codes and not may.stop_codes:
            return "a job may not name its own stop codes here (may_ask.stop_codes is off)"
        if asked.elsewhere_codes and not may.elsewhere_codes:
            return "a job may not name its own elsewhere codes here (may_ask.elsewhere_codes is off)"
        if asked.before_restart is not None and not may.before_restart:
            return "a job may not name a signal here (may_ask.before_restart is off)"
        return ""


def parse(text: str, name: str) -> PolicyFile:
    """The policy file in `text`; `name` is what errors call it. Empty text means all defaults: monitor everywhere.

    Raises PolicyFileError, which lists every problem.
    """
    read = read_lines(text, name)
    if read.problems:
        raise PolicyFileError(read.problems)
    data = {} if read.data is None else read.data
    if not isinstance(data, dict):
        raise PolicyFileError((Problem(name, 1, "", f"expected keys such as policies and clusters, not {data!r:.60}"),))
    merged = _extended(data, read, name)
    try:
        document = PolicyDocument.model_validate(merged.data)
    except ValidationError as error:
        raise PolicyFileError(_problems(error, merged, read, name)) from None
    policies = {BUILT_IN: Policy()}
    for key, entry in document.policies.items():
        policies[key] = Policy.model_validate(entry.model_dump(exclude={"extends"}))
    unknown = _unknown_names(document, policies, read, name)
    if unknown:
        raise PolicyFileError(unknown)
    return PolicyFile(document, policies, name)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the file, for editors and for checking it elsewhere."""
    schema = PolicyDocument.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "relight policy file",
        **{key: value for key, value in schema.items() if key != "title"},
    }


class _Merged:
    """The data with `extends` followed, and where each value of a policy really stands."""

    def __init__(self, data: dict[str, Any], homes: dict[Path, Path]) -> None:
        self.data = data
        self.homes = homes


def _extended(data: dict[str, Any], read: Lines, name: str) -> _Merged:
    written = data.get("policies")
    if not isinstance(written, dict) or not all(isinstance(entry, dict | None) for entry in written.values()):
        return _Merged(data, {})  # the model tells what is wrong with it
    problems: list[Problem] = []
    merged: dict[str, dict[str, Any]] = {}
    homes: dict[Path, Path] = {}
    for key in written:
        chain = _chain(key, written, read, name, problems)
        values: dict[str, Any] = {}
        for link in reversed(chain):
            for field, value in (written[link] or {}).items():
                values[field] = value
                homes[("policies", key, field)] = ("policies", link, field)
        own = (written[key] or {}).get("extends")
        values.pop("extends", None)
        merged[key] = values if own is None else {**values, "extends": own}
    if problems:
        raise PolicyFileError(tuple(dict.fromkeys(problems)))
    return _Merged({**data, "policies": merged}, homes)


def _chain(key: str, written: dict[str, Any], read: Lines, name: str, problems: list[Problem]) -> list[str]:
    """The policy and those it extends, nearest first."""
    chain = [key]
    while True:
        path = ("policies", chain[-1], "extends")
        parent = (written[chain[-1]] or {}).get("extends")
        if parent is None or (parent == BUILT_IN and BUILT_IN not in written):
            return chain
        if parent in chain:
            circle = " -> ".join([*chain[chain.index(parent) :], str(parent)])
            problems.append(Problem(name, read.line(path), dotted(path), f"goes in a circle ({circle})"))
            return chain
        if not isinstance(parent, str) or parent not in written:
            reason = f"{parent!r:.80} is not a policy of this file{_meant(str(parent), [*written, BUILT_IN])}"
            problems.append(Problem(name, read.line(path), dotted(path), reason))
            return chain
        chain.append(parent)


def _unknown_names(
    document: PolicyDocument, policies: Mapping[str, Policy], read: Lines, name: str
) -> tuple[Problem, ...]:
    used: list[tuple[Path, str]] = [(("default_policy",), document.default_policy)]
    used += [(("may_ask", "policies", at), value) for at, value in enumerate(document.may_ask.policies or ())]
    for cluster, place in document.clusters.items():
        root: Path = ("clusters", cluster)
        used += [((*root, "policy"), place.policy)] if place.policy else []
        found: list[tuple[Path, Scope]] = [(root, place)]
        for kind in ("accounts", "qos", "partitions", "users"):
            found += [((*root, kind, key), scope) for key, scope in getattr(place, kind).items()]
        used += [((*at, "policy"), scope.policy) for at, scope in found[1:] if scope.policy]
        for at, scope in found:
            may = scope.may_ask.policies if scope.may_ask is not None else None
            used += [((*at, "may_ask", "policies", number), value) for number, value in enumerate(may or ())]
    return tuple(
        Problem(name, read.line(path), dotted(path), f"{value!r} is not a policy of this file{_meant(value, policies)}")
        for path, value in used
        if value not in policies
    )


def _problems(error: ValidationError, merged: _Merged, read: Lines, name: str) -> tuple[Problem, ...]:
    found: dict[tuple[int | None, str], Problem] = {}
    for item in error.errors():
        path: Path = tuple(part for part in item["loc"] if part != "[key]")
        path = merged.homes.get(path[:3], path[:3]) + path[3:]
        problem = Problem(name, read.line(path), dotted(path), _reason(item, path))
        found.setdefault((problem.line, problem.key), problem)
    return tuple(found.values())


def _reason(item: Any, path: Path) -> str:
    if item["type"] == "extra_forbidden":
        return f"is not known{_meant(str(path[-1]), _known_keys(path[:-1]))}"
    message = str(item["msg"])
    if item["type"] == "value_error":
        return message.removeprefix("Value error, ")
    expected = "a mapping of keys to values" if "dictionary" in message else message.removeprefix("Input should be ")
    return f"is {item['input']!r:.80}, expected {expected[0].lower()}{expected[1:]}"


_INSIDE: dict[str, type[BaseModel]] = {"may_ask": MayAsk, "only": Only, "before_restart": BeforeRestart}
"""Groups of keys that stand in several places."""


def _known_keys(parent: Path) -> tuple[str, ...]:
    if parent and parent[-1] in _INSIDE:
        return tuple(_INSIDE[str(parent[-1])].model_fields)
    if len(parent) > 1 and parent[-2] == "maintenance":
        return tuple(field.alias or name for name, field in Maintenance.model_fields.items())
    shapes: dict[int, type[BaseModel]] = {0: PolicyDocument}
    if parent[:1] == ("policies",):
        shapes[2] = PolicyEntry
    if parent[:1] == ("clusters",):
        shapes |= {2: ClusterScope, 4: Scope}
    shape = shapes.get(len(parent))
    return tuple(shape.model_fields) if shape else ()


def _meant(wrong: str, known: Any) -> str:
    near = difflib.get_close_matches(wrong, list(known), n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f", expected one of: {', '.join(sorted(known))}" if known else ""
