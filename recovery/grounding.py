"""Reads an answer of an attribution provider and keeps only what stands in the evidence or the allocation.

What is dropped is told, never followed. The contract of the answer is this file's `Answer`
(docs/reference/attribution-answer.schema.json). Pure.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recovery.attribution import EvidenceLine, OutsideSuspect, Question, is_everywhere
from recovery.records import Confidence, FaultClass, Record

SCHEMA_VERSION = "0.1.0"
EXPLANATION_LENGTH = 500
DROPPED = 20
"""Most dropped claims that are told one by one."""

Text = Annotated[str, Field(max_length=20_000)]
Name = Annotated[str, Field(max_length=1_000)]


class NonsenseAnswer(ValueError):
    """The answer does not keep to the contract. The text says where, and never quotes it at length."""


class _Strict(BaseModel):
    # Unknown keys are left alone: a service may say more than we read.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class NamedSuspect(_Strict):
    """A place that is held to be at fault. At least one of host and rank."""

    host: Name | None = Field(default=None, description="name of a node in scope.nodes, as it stands there")
    rank: int | None = Field(default=None, description="global rank; taken only where the evidence shows its host")
    confidence: Confidence = Field(default=Confidence.LOW, description="how sure")
    lines: tuple[Name, ...] = Field(default=(), max_length=256, description="names of evidence lines that say so")
    reason: Text = Field(default="", description="why, in a few words")


class Answer(_Strict):
    """The answer to an attribution request."""

    schema_version: Name = Field(default=SCHEMA_VERSION, description="of this contract")
    workload_id: Name | None = Field(default=None, description="when given, it must be the request's")
    session_id: Name | None = Field(default=None, description="handed back as continue_session in the slow phase")
    category: FaultClass = Field(description="what broke; `unknown` when it cannot be told")
    confidence: Confidence = Field(default=Confidence.LOW, description="how sure of the category")
    suspects: tuple[NamedSuspect, ...] = Field(default=(), max_length=1_024, description="where, most likely first")
    lines: tuple[Name, ...] = Field(default=(), max_length=256, description="names of evidence lines it rests on")
    explanation: Text = Field(default="", description="for people; the first 500 characters are kept")


class Grounded(Record):
    """An answer of which every claim stands in the evidence or the allocation."""

    category: FaultClass
    confidence: Confidence
    suspects: tuple[OutsideSuspect, ...] = ()
    lines: tuple[str, ...] = ()
    explanation: str = ""
    dropped: tuple[str, ...] = ()
    session: str = ""


def answer_schema() -> dict[str, Any]:
    """The contract as JSON schema."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Answer.model_json_schema()}


def read_answer(data: bytes | str) -> Answer:
    """The answer in JSON text. Raises NonsenseAnswer."""
    try:
        return Answer.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise NonsenseAnswer(plain(f"{where[:80]}: {first['msg']}", 200)) from None
    except (ValueError, RecursionError) as error:
        raise NonsenseAnswer(f"not JSON ({type(error).__name__})") from None


def grounded(answer: Answer, question: Question, *, must_cite: bool) -> Grounded:
    """What of the answer counts. `must_cite`: a host counts only with a line of the evidence that speaks of it.

    Raises NonsenseAnswer when it speaks of another workload.
    """
    if answer.workload_id is not None and answer.workload_id != question.job_id:
        raise NonsenseAnswer(f"it speaks of workload {plain(answer.workload_id, 40)!r}, not of {question.job_id}")
    ground = _Ground(question, must_cite)
    lines = ground.known(answer.lines)
    suspects: dict[str, OutsideSuspect] = {}
    for one in answer.suspects:
        node = ground.node(one)
        if node is not None and node not in suspects:
            suspects[node] = OutsideSuspect(node=node, confidence=one.confidence, reason=plain(one.reason, 200))
    if is_everywhere(len(suspects), len(question.nodes)):
        ground.drop(f"{len(suspects)} of {len(question.nodes)} hosts are named: none of them stands out")
        suspects = {}
    return Grounded(
        category=answer.category,
        confidence=answer.confidence,
        suspects=tuple(suspects.values()),
        lines=lines,
        explanation=plain(answer.explanation, EXPLANATION_LENGTH),
        dropped=ground.told(),
        session=plain(answer.session_id or "", 256),
    )


class _Ground:
    """What may be named in an answer to one question, and what was named beyond it."""

    def __init__(self, question: Question, must_cite: bool) -> None:
        self.must_cite = must_cite
        self.nodes = question.nodes
        self.lines = {line.ref: line for line in question.lines}
        self.ranks = set(question.ranks)
        self.host_of: dict[int, set[str]] = {}
        for line in question.lines:
            if line.rank is not None and len(line.nodes) == 1 and line.nodes[0] in question.nodes:
                self.host_of.setdefault(line.rank, set()).add(line.nodes[0])
        self._dropped: dict[str, None] = {}

    def drop(self, why: str) -> None:
        self._dropped[why] = None

    def told(self) -> tuple[str, ...]:
        told = tuple(self._dropped)
        more = len(told) - DROPPED
        return told if more <= 0 else (*told[:DROPPED], f"and {more} more")

    def known(self, refs: tuple[str, ...]) -> tuple[str, ...]:
        for ref in refs:
            if ref not in self.lines:
                self.drop(f"line {plain(ref, 40)!r}: not in the evidence")
        return tuple(dict.fromkeys(ref for ref in refs if ref in self.lines))

    def node(self, claim: NamedSuspect) -> str | None:
        """The node that a claim is about; None where nothing bears it out."""
        by_rank = self._of_rank(claim.rank) if claim.rank is not None else None
        if claim.host is None:
            found = by_rank
            if claim.rank is None:
                self.drop("a suspect without host and rank")
        else:
            found = self._of_name(claim.host)
            if found is None:
                self.drop(f"host {plain(claim.host, 60)!r}: not part of the job's allocation")
            elif claim.rank is not None and by_rank is not None and by_rank != found:
                self.drop(f"host {found!r}: rank {claim.rank} was seen on {by_rank}")
                found = None
        cited = self.known(claim.lines)
        if found is not None and self.must_cite and not any(self._speaks(self.lines[ref], found) for ref in cited):
            self.drop(f"host {found!r}: none of the lines it refers to speaks of it")
            return None
        return found

    def _of_name(self, host: str) -> str | None:
        if host in self.nodes:
            return host
        short = host.split(".", 1)[0].lower()
        alike = [node for node in self.nodes if node.split(".", 1)[0].lower() == short]
        return alike[0] if len(alike) == 1 else None

    def _of_rank(self, rank: int) -> str | None:
        hosts = self.host_of.get(rank, set())
        if rank not in self.ranks:
            self.drop(f"rank {plain(str(rank), 20)}: not in the evidence")
        elif len(hosts) != 1:
            self.drop(f"rank {rank}: the evidence does not show its host")
        return next(iter(hosts)) if len(hosts) == 1 else None

    def _speaks(self, line: EvidenceLine, node: str) -> bool:
        """Whether a line tells of a node: by what was derived from it, or by naming it as a word of its own."""
        if node in line.nodes or (line.rank is not None and node in self.host_of.get(line.rank, set())):
            return True
        words = "".join(letter if letter.isalnum() or letter in "-_" else " " for letter in line.text.lower()).split()
        return node.split(".", 1)[0].lower() in words


def plain(text: str, length: int) -> str:
    """Text of a stranger as one short printable line."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * length])
    return " ".join(shown.split())[:length]
