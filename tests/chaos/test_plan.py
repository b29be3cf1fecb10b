"""A seed stands for one scenario for ever, and together the seeds reach every fault."""

from __future__ import annotations

from tests.chaos.plan import AT_RESTART, JobFault, Strike, plan

SEEDS = range(1, 301)


def test_a_seed_gives_the_same_plan_each_time() -> None:
    assert [plan(seed) for seed in SEEDS] == [plan(seed) for seed in SEEDS]
    assert len({plan(seed).told for seed in SEEDS}) > 290


def test_a_plan_is_the_same_on_every_machine() -> None:
    """Else a seed that somebody reports says nothing elsewhere."""
    assert plan(7).told == (
        "jobs: crash×2, user_error×2 (monitor), user_error×1; "
        "strikes: log_vanishes at 10.9 s, 13 s; "
        "slurmctld_kill at 18.2 s, 9.5 s; "
        "worker_kill at 18.8 s, 1.9 s; "
        "database_read_only at 19.8 s, 1.7 s"
    )


def test_every_fault_comes_up() -> None:
    assert {job.fault for seed in SEEDS for job in plan(seed).jobs} == set(JobFault)
    assert {strike.kind for seed in SEEDS for strike in plan(seed).strikes} == set(Strike)
    assert {job.monitor for seed in SEEDS for job in plan(seed).jobs} == {True, False}


def test_every_run_has_a_restart_to_disturb_and_room_for_all_jobs() -> None:
    for seed in SEEDS:
        scenario = plan(seed)
        assert (scenario.jobs[0].fault, scenario.jobs[0].monitor) == (JobFault.CRASH, False)
        assert sum(job.nodes for job in scenario.jobs) <= 8  # of ten: exclusions and dead nodes find room
        assert 1 <= len(scenario.strikes) <= 4
        assert len([strike for strike in scenario.strikes if strike.kind in AT_RESTART]) <= 1
