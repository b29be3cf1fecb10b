"""How a job's workflow tells the story: look, decide, act, verify. Temporal is real, the activities are scripted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError

from activities import contracts as c
from recovery.records import Action, Advice, JobState, Mode, OutcomeKind
from tests.workflows.scripted import (
    Scripted,
    eventually,
    keep_calm,
    restart_when_failed,
    serving,
    start,
    state_of,
    view,
)
from workflows import telling
from workflows.state import RecoveryState

FAILED = JobState.FAILED


async def _observe(handle: Any, *changes: str) -> None:
    await handle.signal("observe", {"changes": list(changes or ("state",))})


async def test_a_failed_job_is_planned_restarted_and_verified(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=restart_when_failed)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled and script.told(c.EventKind.OUTCOME), "the restart is verified")
        assert [name for name, _ in script.steps] == [c.RESTART]
        step = script.steps[0][1]
        assert step.exclude == ("n02",)
        assert step.restart_count == 0
        assert [plan.step_key for plan in script.plans] == [step.step_key]
        assert script.settled[0].restarts == 1
        told = await state_of(handle)
        assert told["exclusions"] == ["n02"]
        assert told["phase"] == "recovering"
        await handle.terminate()


async def test_the_recovery_ends_with_the_first_new_step(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=restart_when_failed)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the restart is verified")
        script.first_step = 41
        await _observe(handle, "progress")
        await eventually(
            lambda: any("41" in text for text in script.told(c.EventKind.OUTCOME)), "the first step is told"
        )
        assert (await state_of(handle))["phase"] == "watching"
        await handle.terminate()


async def test_a_restarted_job_is_left_alone_while_it_runs(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=restart_when_failed)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled, "the restart is verified")
        for _ in range(3):
            looks = script.looks
            await _observe(handle)
            await eventually(lambda before=looks: script.looks > before, "it looked again")
        assert len(script.steps) == 1
        await handle.terminate()


async def test_monitor_mode_records_the_advice_and_takes_no_step(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=restart_when_failed, mode=Mode.MONITOR)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.ADVICE), "the advice is recorded")
        await _observe(handle)
        await eventually(lambda: script.looks >= 2, "it looked again")
        assert len(script.told(c.EventKind.ADVICE)) == 1
        assert script.steps == []
        assert script.plans == []
        await handle.terminate()


def _needs_yes(request: c.DecideJob) -> Advice:
    return restart_when_failed(request, needs_approval=True, approve_within_s=600)


async def test_approve_mode_waits_for_a_yes(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=_needs_yes, mode=Mode.APPROVE)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.ADVICE), "the advice is recorded")
        assert (await state_of(handle))["phase"] == "waiting_approval"
        assert (await state_of(handle))["waits"].startswith("for a yes to restart (at most until ")
        (waits,) = script.told(c.EventKind.WAITS)
        assert f"relight approve {cluster}-12345 --yes, or --no" in waits
        assert script.steps == []
        answer = await handle.execute_update("approve", {"yes": True, "by": "oncall"})
        assert answer["accepted"] is True
        await eventually(lambda: script.settled, "the restart is verified")
        assert script.plans[0].approved_by == "oncall"
        await handle.terminate()


async def test_a_no_leaves_the_job_alone(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=_needs_yes, mode=Mode.APPROVE)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.ADVICE), "the advice is recorded")
        await handle.signal("approve", {"yes": False, "by": "oncall", "reason": "debugging"})
        await eventually(lambda: script.told(c.EventKind.OPERATOR), "the no is recorded")
        await _observe(handle)
        await eventually(lambda: script.looks >= 3, "it looked again")
        assert script.steps == []
        assert (await state_of(handle))["phase"] == "left_alone"
        await handle.terminate()


@pytest.mark.parametrize(("silence", "steps"), [(Action.LEAVE_ALONE, 0), (Action.RESTART, 1)])
async def test_silence_does_what_the_policy_says(client: Client, cluster: str, silence: Action, steps: int) -> None:
    def advise(request: c.DecideJob) -> Advice:
        return restart_when_failed(request, needs_approval=True, approve_within_s=1, on_silence=silence)

    script = Scripted(view=view(FAILED), advise=advise, mode=Mode.APPROVE)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.WATCHDOG), "the deadline passes")
        await _observe(handle)
        if steps:
            await eventually(lambda: script.settled, "the restart is verified")
        else:
            await eventually(lambda: script.looks >= 3, "it looked again")
        assert len(script.steps) == steps
        await handle.terminate()


async def test_a_parked_job_is_moved_up_by_a_yes(client: Client, cluster: str) -> None:
    script = Scripted(
        view=view(FAILED), advise=_needs_yes, mode=Mode.APPROVE, park=True, outcomes=[OutcomeKind.WAITING]
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled, "the job is parked")
        assert script.steps[0][1].lease_s == 43_200
        await handle.execute_update("approve", {"by": "oncall"})
        await eventually(lambda: len(script.steps) == 2, "it is moved up")
        assert script.steps[1][0] == c.GUARD
        assert script.steps[1][1].restart_count == 1
        assert script.steps[1][1].start_delay_s == 5
        await handle.terminate()


async def test_a_parked_job_is_cancelled_by_a_no(client: Client, cluster: str) -> None:
    script = Scripted(
        view=view(FAILED), advise=_needs_yes, mode=Mode.APPROVE, park=True, outcomes=[OutcomeKind.WAITING]
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled, "the job is parked")
        await handle.execute_update("approve", {"yes": False, "by": "oncall"})
        await eventually(lambda: len(script.steps) == 2, "it is cancelled")
        assert script.steps[1][0] == c.STOP
        await handle.terminate()


async def test_a_job_that_was_still_completing_when_the_question_was_asked_is_parked_all_the_same(
    client: Client, cluster: str
) -> None:
    script = Scripted(
        view=view(FAILED, completing=True),
        advise=_needs_yes,
        mode=Mode.APPROVE,
        park=True,
        outcomes=[OutcomeKind.WAITING],
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.ADVICE), "the question is asked")
        assert script.steps == []
        script.view = view(FAILED)
        await _observe(handle)
        await eventually(lambda: script.settled, "the job is parked")
        assert script.steps[0][1].lease_s == 43_200
        assert len(script.told(c.EventKind.ADVICE)) == 1
        await handle.terminate()


async def test_a_permit_is_waited_for_and_its_denial_ends_the_matter(client: Client, cluster: str) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    script = Scripted(
        view=view(FAILED),
        advise=restart_when_failed,
        permits=[c.PermitAnswer(granted=False, until=soon, reason="10 restart at once"), c.PermitAnswer(granted=True)],
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled, "the permit comes and the restart is verified")
        assert len(script.plans) == 2
        await handle.terminate()

    denied = Scripted(
        view=view(FAILED), advise=restart_when_failed, permits=[c.PermitAnswer(granted=False, reason="frozen")] * 9
    )
    async with serving(client, denied, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: denied.told(c.EventKind.WATCHDOG), "the denial is recorded")
        assert denied.steps == []
        await handle.terminate()


async def test_exclusions_that_the_permit_withholds_are_not_made(client: Client, cluster: str) -> None:
    withheld = c.PermitAnswer(granted=True, withheld=True, reason="5 jobs failed with a file system error")
    script = Scripted(view=view(FAILED), advise=restart_when_failed, permits=[withheld])
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled, "the restart is verified")
        assert script.plans[0].advice.exclude == ("n02",)
        assert [(name, step.exclude, step.keep_excluded) for name, step in script.steps] == [(c.RESTART, (), ())]
        assert (await state_of(handle))["exclusions"] == []
        await handle.terminate()


async def test_exclusions_that_find_no_room_are_left_out_when_the_wait_is_over(client: Client, cluster: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    script = Scripted(
        view=view(FAILED),
        advise=lambda request: restart_when_failed(request, exclude=("n01", "n02")),
        permits=[
            c.PermitAnswer(granted=False, until=later, reason="10 nodes are excluded already"),
            c.PermitAnswer(granted=True, left_out=("n02",), reason="10 nodes are excluded already"),
        ],
        permit_wait_s=1,
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled, "the restart is verified")
        assert [plan.last_ask for plan in script.plans] == [False, True]
        assert [(name, step.exclude) for name, step in script.steps] == [(c.RESTART, ("n01",))]
        assert (await state_of(handle))["exclusions"] == ["n01"]
        assert script.told(c.EventKind.WATCHDOG) == []
        await handle.terminate()


async def test_a_turn_is_waited_for_from_the_first_answer_on(client: Client, cluster: str) -> None:
    """An outage in which the permit could not even be asked for is no waiting for it."""
    turn = c.PermitAnswer(granted=False, until=datetime.now(UTC) + timedelta(seconds=1), reason="takes its turn")
    script = Scripted(
        view=view(FAILED),
        advise=lambda request: restart_when_failed(request, exclude=()),
        permits=[turn, c.PermitAnswer(granted=True)],
        permit_wait_s=2,
        plan_takes_s=3,
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled, "its turn comes and the restart is verified")
        assert script.told(c.EventKind.WATCHDOG) == []
        await handle.terminate()


async def test_what_a_job_waits_for_is_shown_and_its_deadline_holds_however_often_it_is_woken(
    client: Client, cluster: str
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    script = Scripted(
        view=view(FAILED),
        advise=restart_when_failed,
        permits=[c.PermitAnswer(granted=False, until=later, reason="10 restart at once")] * 10_000,
        permit_wait_s=3,
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.plans, "it asks for the permit")
        waiting: list[RecoveryState] = []
        while not script.told(c.EventKind.WATCHDOG):
            told = await state_of(handle)
            if told["waits"]:
                waiting.append(RecoveryState.model_validate(told))
            asked = len(script.plans)
            await _observe(handle)
            await eventually(
                lambda before=asked: len(script.plans) > before or script.told(c.EventKind.WATCHDOG), "it asks again"
            )
        assert len({one.permit_wait for one in waiting}) == 1
        assert waiting[0].waits.startswith("for a permit: 10 restart at once (since ")
        assert "| waits | `for a permit: 10 restart at once" in telling.details(waiting[0], later)
        (given_up,) = script.told(c.EventKind.WATCHDOG)
        assert "no permit (10 restart at once)" in given_up
        assert (await state_of(handle))["waits"] == ""
        await handle.terminate()


async def test_steps_that_never_hold_are_given_up(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=restart_when_failed, step_fails=100)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        for _ in range(12):
            await _observe(handle)
            looks = script.looks
            await eventually(lambda before=looks: script.looks > before or script.told("watchdog"), "it looked again")
        await eventually(lambda: script.told(c.EventKind.WATCHDOG), "it gives up")
        assert len(script.steps) == 6
        assert len({request.step_key for _, request in script.steps}) == 6
        await handle.terminate()


async def test_a_restart_that_dies_at_once_is_counted_against_relight(client: Client, cluster: str) -> None:
    script = Scripted(
        view=view(FAILED),
        advise=restart_when_failed,
        outcomes=[OutcomeKind.DIED_AT_START, OutcomeKind.RESTARTED],
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: len(script.settled) == 2, "it is restarted again")
        assert script.decided[-1].own_faults == 1 or any(request.own_faults == 1 for request in script.decided)
        assert [request.restart_count for _, request in script.steps] == [0, 1]
        await handle.terminate()


async def test_a_forgotten_requeue_is_decided_again(client: Client, cluster: str) -> None:
    script = Scripted(
        view=view(FAILED), advise=restart_when_failed, outcomes=[OutcomeKind.UNDONE, OutcomeKind.RESTARTED]
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: len(script.settled) == 1, "the first restart is watched")
        script.view = view(FAILED)
        await _observe(handle)
        await eventually(lambda: len(script.settled) == 2, "it is restarted again")
        assert [request.restart_count for _, request in script.steps] == [0, 0]
        await handle.terminate()


async def test_blame_that_comes_while_the_restarted_job_waits_is_guarded_and_the_start_stays(
    client: Client, cluster: str
) -> None:
    known = False

    def advise(request: c.DecideJob) -> Advice:
        seen = request.examination.view
        assert seen is not None
        if seen.state is not JobState.PENDING or not known or "n01" in seen.excluded:
            return restart_when_failed(request)
        return Advice(
            action=Action.GUARD, rule="blamed_late", reason="an Xid", restart_count=seen.restarts, exclude=("n01",)
        )

    script = Scripted(view=view(FAILED), advise=advise, outcomes=[OutcomeKind.WAITING])
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the restart is verified and waits")
        known = True
        await _observe(handle, "metrics")
        await eventually(lambda: len(script.settled) == 2, "the guard is verified")
        (_, restart), (name, guard) = script.steps
        assert (name, guard.restart_count, guard.exclude, guard.keep_excluded) == (c.GUARD, 1, ("n01",), ("n02",))
        assert (restart.keep_start, guard.keep_start) == (False, True)
        assert (script.settled[1].restarts, script.settled[1].ours) == (1, ("n01", "n02"))
        assert (await state_of(handle))["exclusions"] == ["n01", "n02"]
        await handle.terminate()


async def test_an_operator_can_force_a_restart_with_exclusions(client: Client, cluster: str) -> None:
    def advise(request: c.DecideJob) -> Advice:
        if request.force is None:
            return keep_calm(request)
        return Advice(action=Action.RESTART, rule="force", reason="oncall", exclude=request.force.exclude)

    script = Scripted(advise=advise)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        await handle.signal("force", {"action": "restart", "exclude": ["n07"], "by": "oncall", "reason": "…"})
        await eventually(lambda: script.settled, "the restart is verified")
        assert script.steps[0][1].exclude == ("n07",)
        assert script.steps[0][1].force is True
        await _observe(handle)
        await eventually(lambda: script.decided[-1].force is None, "it is done once")
        assert len(script.steps) == 1
        await handle.terminate()


def _as_forced(request: c.DecideJob) -> Advice:
    if request.force is None:
        return keep_calm(request)
    if "n99" in request.force.exclude:
        return Advice(action=Action.LEAVE_ALONE, rule="force", reason="refused: node n99 is not known", restart_count=0)
    return Advice(action=Action.RESTART, rule="force", reason="oncall", restart_count=0, exclude=request.force.exclude)


async def test_a_demand_that_waits_for_its_permit_outlasts_what_wakes_it(client: Client, cluster: str) -> None:
    later = datetime.now(UTC) + timedelta(minutes=4)
    script = Scripted(
        view=view(),
        advise=_as_forced,
        permits=[c.PermitAnswer(granted=False, until=later, reason="10 restart at once"), c.PermitAnswer(granted=True)],
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.looks >= 1, "it looked")
        await handle.signal("force", {"action": "restart", "exclude": ["n02"], "by": "oncall"})
        await eventually(lambda: script.plans, "it is planned and waits")
        await _observe(handle)
        await eventually(lambda: script.steps, "it is done all the same")
        assert script.steps[0][1].exclude == ("n02",)
        assert len({plan.step_key for plan in script.plans}) == 1
        await handle.terminate()


async def test_each_refused_demand_gets_its_answer_on_record(client: Client, cluster: str) -> None:
    script = Scripted(view=view(), advise=_as_forced)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.looks >= 1, "it looked")
        for number in (1, 2):
            await handle.signal("force", {"action": "restart", "exclude": ["n99"], "by": "oncall"})
            await eventually(
                lambda number=number: len(script.told(c.EventKind.ADVICE)) == number, f"answer {number} is on record"
            )
        assert len({row.key for row in script.rows if row.kind == c.EventKind.ADVICE}) == 2
        assert script.steps == []
        await handle.terminate()


async def test_force_is_refused_in_monitor_mode_and_for_another_attempt(client: Client, cluster: str) -> None:
    script = Scripted(mode=Mode.MONITOR)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        while not (await state_of(handle))["policy"]:
            pass
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await handle.execute_update("force", {"action": "restart"})
        assert "monitor mode" in str(refusal.value.cause)
        script.mode = Mode.ACT
        await _observe(handle)
        await eventually(lambda: len(script.decided) >= 2, "it looked again")
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await handle.execute_update("force", {"action": "restart", "restart_count": 3})
        assert "restart count 3" in str(refusal.value.cause)
        await handle.terminate()


async def test_pause_reaches_the_decision_and_resume_ends_it(client: Client, cluster: str) -> None:
    script = Scripted()
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        said = await handle.execute_update("pause", {"by": "oncall", "reason": "debugging"})
        assert said["state"] == "paused"
        await eventually(lambda: script.decided[-1].paused, "the pause is known")
        assert (await state_of(handle))["paused_by"] == "oncall"
        said = await handle.execute_update("resume")
        assert (said["accepted"], said["state"]) == (True, "")  # the next look tells
        await eventually(lambda: not script.decided[-1].paused, "the pause is over")
        told = [(row.summary, row.by) for row in script.rows if row.kind == c.EventKind.OPERATOR]
        assert told == [("paused: debugging", "oncall"), ("resumed", "somebody who gave no name")]
        await handle.terminate()


@pytest.mark.parametrize("name", ["pause", "resume", "force", "approve", "observe"])
@pytest.mark.parametrize(
    "raw",
    [None, "just text", 17, [], {"action": 5}, {"by": 3, "surprise": True}, {"exclude": ["a b"]}, {"yes": "perhaps"}],
)
async def test_no_signal_can_wedge_the_workflow(client: Client, cluster: str, name: str, raw: Any) -> None:
    script = Scripted()
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        if raw is None:
            await handle.signal(name)
        else:
            await handle.signal(name, raw)
        looks = script.looks
        await _observe(handle)
        await eventually(lambda: script.looks > looks, "it still looks")
        told = await state_of(handle)
        assert told["closed"] is False
        assert script.steps == []
        await handle.terminate()


async def test_a_refused_signal_is_on_the_record(client: Client, cluster: str) -> None:
    script = Scripted()
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        await handle.signal("force", {"action": "explode"})
        await eventually(lambda: script.told(c.EventKind.OPERATOR), "the refusal is recorded")
        assert script.told(c.EventKind.OPERATOR)[0].startswith("refused force: action")
        await handle.terminate()


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"cluster": "prod"}, "job_id"),
        ({"cluster": "prod", "job_id": "abc"}, "expected a Slurm job id"),
        ({"cluster": "prod", "job_id": 12345, "jobid": 3}, "jobid"),
        ("prod-12345", "needs one JSON object"),
        (17, "needs one JSON object"),
    ],
)
async def test_a_start_that_cannot_be_understood_fails_at_once(
    client: Client, cluster: str, raw: Any, sentence: str
) -> None:
    async with serving(client, Scripted(), cluster=cluster):
        handle = await start(client, raw, cluster=cluster)
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert sentence in str(failure.value.cause)


async def test_a_wrong_id_and_a_wrong_cluster_are_named(client: Client, cluster: str) -> None:
    async with serving(client, Scripted(), cluster=cluster):
        raw = {"cluster": cluster, "job_id": 12345}
        handle = await start(client, raw, workflow_id=f"{cluster}-second-mind", cluster=cluster)
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert f"'{cluster}-12345'" in str(failure.value.cause)
        handle = await start(client, {"cluster": "nope", "job_id": 1}, workflow_id="nope-1", cluster=cluster)
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert "relight-nope" in str(failure.value.cause)


async def test_a_job_slurm_does_not_know_is_refused_with_the_reason(client: Client, cluster: str) -> None:
    script = Scripted(view=None, refused="Slurm on prod does not know job 12345")
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert "does not know job 12345" in str(failure.value.cause)


async def test_the_workflow_closes_when_slurm_has_purged_the_job(client: Client, cluster: str) -> None:
    script = Scripted(view=view(JobState.COMPLETED))
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        script.view = None
        await _observe(handle, "gone")
        assert "purged" in await handle.result()
        assert len(script.closed) == 1
        assert script.told(c.EventKind.MISSED) == []


async def test_a_job_purged_before_it_was_looked_at_is_recorded_as_missed(client: Client, cluster: str) -> None:
    script = Scripted(view=view(JobState.RUNNING))
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        script.view = None
        await _observe(handle, "gone")
        await handle.result()
        assert "raise MinJobAge" in script.told(c.EventKind.MISSED)[0]
