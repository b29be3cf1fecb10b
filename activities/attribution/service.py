"""A service that takes the published NVIDIA Attribution adapter request (`POST /v1/attribution`).

The request's shape is theirs; the answer's is ours (recovery/grounding.py, docs/attribution.md), because theirs is not
published. Evidence lines go along only where the configuration says so.
"""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field

from activities.attribution.asking import Access, post
from activities.attribution.provider import Terms
from recovery.attribution import AskedPhase, Question
from recovery.grounding import SCHEMA_VERSION, Answer, read_answer
from recovery.records import Time

PATH = "/v1/attribution"
WORKFLOW_ID_LENGTH = 256


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Scope(_Part):
    """What it is about: the allocation of the failed attempt, and the ranks that the evidence names."""

    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    start_time: Time | None = None
    end_time: Time | None = None


class SentLine(_Part):
    """One line of evidence, masked."""

    ref: str = Field(description="name to refer to it by")
    text: str
    source: str = Field(description="relight's detector, or `tail`: one of the log's last lines")
    signature: str = ""
    nodes: tuple[str, ...] = ()
    rank: int | None = None
    at: Time | None = None


class FailureContext(_Part):
    """How it was noticed."""

    detected_at: Time
    detection_signal: str = Field(description="failed, node_fail, boot_fail, out_of_memory or hang")
    evidence: tuple[SentLine, ...] | None = Field(
        default=None, description="not part of the published request: sent only with `send_evidence`"
    )


class WorkloadContext(_Part):
    """Which attempt of which workflow."""

    workflow_id: str = Field(max_length=WORKFLOW_ID_LENGTH)
    attempt_index: int = Field(description="Slurm's restart count")
    job_end_time: Time | None = None


class AttributionRequest(_Part):
    """The body of `POST /v1/attribution`. Times are UTC, with their offset."""

    schema_version: str = SCHEMA_VERSION
    workload_id: str = Field(description="Slurm's job id")
    scope: Scope
    failure_context: FailureContext
    workload_context: WorkloadContext
    timeout_ms: int = Field(description="the caller's deadline: an answer after it is recorded at most")
    phase: AskedPhase
    continue_session: str | None = Field(default=None, description="session_id of the fast answer")
    user_id: str | None = Field(default=None, description="left out unless `mask.users` is off")


class AttributionService:
    """A Provider."""

    must_cite = False  # it may have evidence of its own

    def __init__(self, terms: Terms, access: Access, *, send_evidence: bool) -> None:
        self.terms = terms
        self._access, self._send_evidence = access, send_evidence

    async def answer(self, question: Question, phase: AskedPhase, session: str, *, ends: float) -> Answer:
        body = self.request(question, phase, session, left_s=ends - time.monotonic())
        given = await post(self._access, PATH, body.model_dump(mode="json", exclude_none=True), ends=ends)
        return read_answer(given)

    def request(self, question: Question, phase: AskedPhase, session: str, *, left_s: float) -> AttributionRequest:
        evidence = tuple(
            SentLine(**line.model_dump(include=set(SentLine.model_fields), exclude_none=True))
            for line in question.lines
        )
        return AttributionRequest(
            workload_id=question.job_id,
            scope=Scope(
                nodes=question.nodes,
                ranks=question.ranks,
                start_time=question.start_time,
                end_time=question.end_time,
            ),
            failure_context=FailureContext(
                detected_at=question.detected_at,
                detection_signal=question.signal,
                evidence=evidence if self._send_evidence else None,
            ),
            workload_context=WorkloadContext(
                workflow_id=f"{question.cluster}-{question.job_id}"[:WORKFLOW_ID_LENGTH],
                attempt_index=question.attempt,
                job_end_time=question.end_time,
            ),
            timeout_ms=max(1, int(left_s * 1_000)),
            phase=phase,
            continue_session=session or None,
            user_id=question.user or None,
        )
