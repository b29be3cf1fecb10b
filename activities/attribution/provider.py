"""What every attribution provider is: asked one question with a deadline, it gives an Attribution and never raises.

Masking before, grounding after, and the words for what went wrong are the same for all of them and stand here.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Protocol

from activities.attribution.asking import NoAnswer
from recovery.attribution import AnswerStatus, AskedPhase, Attribution, Question, Trust
from recovery.grounding import Answer, NonsenseAnswer, grounded, plain
from recovery.masking import MaskRules, masked_question
from recovery.records import Record

log = logging.getLogger("relight.attribution")


class Terms(Record):
    """On which terms a provider is asked and believed."""

    name: str
    trust: Trust = Trust.WEAK
    may_stop: bool = False
    mask: MaskRules = MaskRules()
    log_lines: int = 0
    """Last lines of the job's log that are sent beside the lines of findings."""


class Provider(Protocol):
    """Somebody who may be asked why an attempt failed."""

    terms: Terms
    must_cite: bool
    """Whether a host it names must be borne out by a line of the evidence: it has no other."""

    async def answer(self, question: Question, phase: AskedPhase, session: str, *, ends: float) -> Answer:
        """The answer, not grounded yet. The question is masked. Raises NoAnswer or NonsenseAnswer."""
        ...


@dataclass(frozen=True)
class Attributors:
    """The configured providers, and how long they are waited for."""

    providers: tuple[Provider, ...]
    fast_s: float
    slow_s: float


async def ask(provider: Provider, question: Question, phase: AskedPhase, session: str, *, ends: float) -> Attribution:
    """What the provider says, grounded; or why it said nothing. `ends` is a moment of the monotonic clock."""
    terms, began = provider.terms, time.monotonic()
    plain_attribution = Attribution(
        provider=terms.name,
        phase=phase,
        attempt=question.attempt,
        about=question.about,
        status=AnswerStatus.FAILED,
        trust=terms.trust,
        may_stop=terms.may_stop,
    )
    sent = tuple(line for line in question.lines if line.source != "tail")
    if terms.log_lines:
        sent += tuple(line for line in question.lines if line.source == "tail")[-terms.log_lines :]
    question = question.model_copy(update={"lines": sent})
    try:
        answer = await provider.answer(masked_question(question, terms.mask), phase, session, ends=ends)
        ground = grounded(answer, question, must_cite=provider.must_cite)
        told = {name: getattr(ground, name) for name in type(ground).model_fields}
        told |= {"status": AnswerStatus.ANSWERED}
    except NoAnswer as none:
        told = {"status": none.status, "problem": str(none)}
    except NonsenseAnswer as nonsense:
        told = {"status": AnswerStatus.NONSENSE, "problem": f"the answer is not usable: {nonsense}"}
    except Exception as error:  # a provider must not be able to do more than to say nothing
        log.exception("attribution provider %s", terms.name)
        told = {"problem": plain(f"{type(error).__name__}: {error}", 300)}
    return plain_attribution.model_copy(update={**told, "took_s": round(time.monotonic() - began, 3)})
