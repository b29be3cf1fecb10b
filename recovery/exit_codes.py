"""Exit codes by agreement, as srun tells them in the log: `srun --kill-on-bad-exit=1` ends as if killed, and so Slurm
never learns the code of the task that asked for something. Pure; what a code means is the policy's.
"""

from __future__ import annotations

from collections.abc import Sequence

from recovery.context import weigh
from recovery.faults.scanner import Hit
from recovery.progress import StepMark
from recovery.records import Role, ToldCode

TASK_EXITED = "srun.task_exited"
MOST = 8
"""Most different codes kept of one attempt."""


def told_codes(hits: Sequence[Hit], marks: Sequence[StepMark]) -> tuple[ToldCode, ...]:
    """Codes of tasks that ended by themselves and were not survived, in the order of the log, each once."""
    found: dict[int, ToldCode] = {}
    for one in weigh(hits, marks):
        code = one.hit.fields.get("code", "")
        if not one.counts or one.hit.signature.id != TASK_EXITED or one.hit.signature.role is Role.CASCADE:
            continue
        if code.isdecimal() and 0 < int(code) <= 255 and len(found) < MOST:
            found.setdefault(int(code), ToldCode(code=int(code), node=one.hit.fields.get("node", "")))
    return tuple(found.values())
