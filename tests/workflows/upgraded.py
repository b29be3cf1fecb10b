"""JobRecovery as a later version might change it: one more activity before each step. For the tests of upgrades.

One class makes the change behind `workflow.patched()`, as it must be made; the other one as it must not.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import contracts as c
    from workflows.job_recovery import JobRecovery

PATCH = "note-each-step"
NOTED = "a step, noted by the new version"


class _Changed(JobRecovery):
    async def _write_beforehand(self) -> None:
        self._note(c.EventKind.WATCHDOG, NOTED)
        await self._record_heard()


@workflow.defn(name="JobRecovery")
class PatchedRecovery(_Changed):
    """A run that came past the place before the change goes on without it; all others have it."""

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> str:
        return await super().run(raw)

    async def _act(self, *arguments: Any, **more: Any) -> None:
        if workflow.patched(PATCH):
            await self._write_beforehand()
        await super()._act(*arguments, **more)


@workflow.defn(name="JobRecovery")
class UnpatchedRecovery(_Changed):
    """The same change made blindly: histories of earlier versions do not fit it."""

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> str:
        return await super().run(raw)

    async def _act(self, *arguments: Any, **more: Any) -> None:
        await self._write_beforehand()
        await super()._act(*arguments, **more)
