"""Questions and answers about a failed attempt on n01–n04, for tests of attribution."""

from __future__ import annotations

from typing import Any

from recovery.attribution import AnswerStatus, AskedPhase, Attribution, EvidenceLine, OutsideSuspect, Question
from recovery.records import Confidence, FaultClass
from tests.recovery.situations import NODES, at

LINES = (
    EvidenceLine(ref="L1", source="log", nodes=("n02",), rank=5, text="rank 5: strange vendor error 0x17"),
    EvidenceLine(ref="L2", source="log", rank=1, text="[rank1] connection reset by peer"),
    EvidenceLine(ref="L3", source="tail", text="n03: fabric agent says link flapping"),
)


def question(**more: Any) -> Question:
    usual: dict[str, Any] = {
        "cluster": "prod",
        "job_id": "12345",
        "attempt": 0,
        "signal": "failed",
        "detected_at": at(601),
        "nodes": NODES,
        "start_time": at(10),
        "end_time": at(600),
        "user": "alice",
        "account": "physics",
        "lines": LINES,
    }
    return Question(**{**usual, **more})


def answered(*nodes: str, **more: Any) -> Attribution:
    usual: dict[str, Any] = {
        "provider": "http",
        "phase": AskedPhase.FAST,
        "attempt": 0,
        "status": AnswerStatus.ANSWERED,
        "category": FaultClass.HARDWARE,
        "confidence": Confidence.HIGH,
        "suspects": tuple(OutsideSuspect(node=node, confidence=Confidence.HIGH) for node in nodes),
    }
    return Attribution(**{**usual, **more})
