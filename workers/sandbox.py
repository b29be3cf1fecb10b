"""The workflow sandbox with relight's own models passed through: they are pure, and copies of them cost memory."""

from __future__ import annotations

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

PASSED_THROUGH = ("recovery", "activities.contracts", "activities", "pydantic", "pydantic_core", "annotated_types")


def runner() -> SandboxedWorkflowRunner:
    """The sandboxed runner every worker and every test uses."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))
