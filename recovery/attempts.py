"""What is known of a job's attempts, put together from several looks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from recovery.records import Attempt, AttemptRow, JobState, JobView, Progress


def merged(known: Attempt, newer: Attempt) -> Attempt:
    """What is known after a newer look: a field the newer look leaves at its default tells nothing."""
    assert known.number == newer.number
    told = {
        name: getattr(newer, name)
        for name, field in Attempt.model_fields.items()
        if name != "number" and getattr(newer, name) != field.get_default(call_default_factory=True)
    }
    for name in ("last_step", "last_checkpoint"):
        both = [value for value in (getattr(known, name), getattr(newer, name)) if value is not None]
        if both:
            told[name] = max(both)
    if known.state.is_final and not newer.state.is_final:
        told.pop("state", None)
        if known.end_time is not None:
            told.pop("end_time", None)  # accounting moves the end of a requeued attempt to its requeue
    return known.model_copy(update=told)


def with_attempts(known: Sequence[Attempt], newer: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """All attempts, oldest first, with the newer looks merged in."""
    by_number = {attempt.number: attempt for attempt in known}
    for attempt in newer:
        old = by_number.get(attempt.number)
        by_number[attempt.number] = attempt if old is None else merged(old, attempt)
    return tuple(by_number[number] for number in sorted(by_number))


def with_all_nodes(view: JobView, known: Sequence[Attempt], row: AttemptRow | None) -> JobView:
    """While COMPLETING, Slurm tells only the nodes that are not done yet, as if the job had never had more.

    `row` is accounting's of the attempt whose nodes are completing; a requeued job waits already underneath.
    """
    if not view.completing:
        return view
    waits = view.state is JobState.PENDING
    number = view.restarts - 1 if waits else view.restarts
    recorded = {node for attempt in known if attempt.number == number for node in attempt.nodes}
    nodes = tuple(sorted({*view.nodes, *recorded, *(row.nodes if row is not None else ())}))
    needed = max(view.min_nodes, len(nodes))
    return view.model_copy(update={"min_nodes": needed, "nodes": view.nodes if waits else nodes})


def current_attempt(view: JobView, progress: Progress) -> Attempt:
    """The attempt a look at the job shows."""
    mine = progress if progress.attempt == view.restarts else Progress()
    started = view.state is not JobState.PENDING
    return Attempt(
        number=view.restarts,
        state=view.state,
        submit_time=view.submit_time,
        start_time=view.start_time if started else None,
        end_time=view.end_time if view.state.is_final else None,
        nodes=view.nodes if started else (),
        gpus=view.gpus if started else None,
        excluded=view.excluded,
        exit_code=view.exit_code if view.state.is_final else 0,
        exit_signal=view.exit_signal if view.state.is_final else 0,
        first_step=mine.first_step,
        last_step=mine.step,
        last_checkpoint=mine.checkpoint,
    )


def attempts_in_accounting(rows: Sequence[AttemptRow], newest: int) -> tuple[Attempt, ...]:
    """Accounting's rows, oldest first, as attempts; `newest` is the restart count of the last row."""
    attempts = []
    for number, row in zip(range(newest - len(rows) + 1, newest + 1), rows, strict=True):
        if number < 0:
            continue
        over = row.state.is_final or row.state is JobState.REQUEUED
        attempts.append(
            Attempt(
                number=number,
                state=row.state,
                submit_time=row.submit_time,
                start_time=row.start_time,
                end_time=row.end_time if over else None,
                nodes=row.nodes,
                exit_code=row.exit_code,
                exit_signal=row.exit_signal,
            )
        )
    return tuple(attempts)


def view_of_earlier(view: JobView, attempt: Attempt, row: AttemptRow | None) -> JobView:
    """The job as it was in an earlier attempt: that attempt's nodes, times and ending, today's everything else."""
    return view.model_copy(
        update={
            "restarts": attempt.number,
            "state": row.state if row is not None else attempt.state,
            "completing": False,
            "reason": row.reason if row is not None else "",
            "nodes": (row.nodes if row is not None else ()) or attempt.nodes,
            "batch_host": "",
            "submit_time": attempt.submit_time,
            "start_time": attempt.start_time or (row.start_time if row is not None else None),
            "end_time": attempt.end_time or (row.end_time if row is not None else None),
            "exit_code": attempt.exit_code,
            "exit_signal": attempt.exit_signal,
        }
    )


def with_restarters(
    attempts: Sequence[Attempt], restarts: int, *, ours: bool, requeue_exit: Sequence[int] = ()
) -> tuple[Attempt, ...]:
    """Says who started each following attempt, where that is not on record: Slurm itself, somebody else, or relight.

    `ours`: the current attempt (restart count `restarts`) was started by relight's own restart.
    """
    told = []
    for attempt in attempts:
        if attempt.restarted_by or attempt.number >= restarts:
            told.append(attempt)
            continue
        by_itself = attempt.state in {JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL}
        if ours and attempt.number == restarts - 1:
            who = "relight"
        elif by_itself or attempt.exit_code in requeue_exit:
            who = "slurm"
        else:
            who = "other"
        told.append(attempt.model_copy(update={"restarted_by": who}))
    return tuple(told)
