"""Blame: the first cause, suspects of the own allocation only, and the courage not to know."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.blame import attribute
from recovery.records import Confidence, FaultClass, Finding, JobState, Nodes, Retry, Role, Verdict
from tests.recovery.logs import NODES, NOW, view


def finding(
    signature: str = "cuda.ecc",
    *,
    fault_class: FaultClass = FaultClass.HARDWARE,
    role: Role = Role.ROOT,
    retry: Retry = Retry.YES,
    nodes: Nodes = (),
    line: int | None = None,
    rank: int | None = None,
    peer: str | None = None,
    trusted: bool = False,
    at: int | None = None,
) -> Finding:
    return Finding(
        id=f"{signature}:{line}:{rank}:{'+'.join(nodes)}",
        attempt=0,
        detector="scheduler" if trusted else "log",
        signature=signature,
        fault_class=fault_class,
        role=role,
        retry=retry,
        at=None if at is None else NOW + timedelta(seconds=at),
        seen_at=NOW,
        nodes=nodes,
        rank=rank,
        peer=peer,
        trusted=trusted,
        summary=f"{signature} happened",
        line=line,
    )


def cascade(line: int, **more: object) -> Finding:
    return finding(
        "net.connection_lost",
        fault_class=FaultClass.INTERCONNECT,
        role=Role.CASCADE,
        line=line,
        **more,  # type: ignore[arg-type]
    )


FAILED = finding("scheduler.failed", fault_class=FaultClass.UNKNOWN, role=Role.SYMPTOM, trusted=True)


def suspects(verdict: Verdict) -> list[str]:
    return [one.node for one in verdict.suspects]


def sure(verdict: Verdict) -> list[str]:
    return [one.node for one in verdict.suspects if one.confidence is not Confidence.LOW]


def test_the_first_cause_is_blamed_and_not_the_thousand_victims() -> None:
    cause = finding(nodes=("n02",), line=900)
    verdict = attribute(view(), [cascade(line) for line in range(1, 30)] + [cause, FAILED])
    assert (verdict.fault_class, suspects(verdict), verdict.first_cause) == (FaultClass.HARDWARE, ["n02"], cause.id)


def test_of_two_causes_the_earlier_one_counts() -> None:
    late = finding(nodes=("n01",), line=20)
    early = finding("cuda.nvlink", nodes=("n03",), line=10)
    assert suspects(attribute(view(), [late, early])) == ["n03"]


def test_a_time_goes_before_a_line_number() -> None:
    early = finding("cuda.nvlink", nodes=("n03",), line=500, at=1)
    late = finding(nodes=("n01",), line=20, at=5)
    assert suspects(attribute(view(), [late, early])) == ["n03"]


def test_what_a_node_says_of_itself_goes_before_what_others_say_of_it() -> None:
    remote = finding("ib.completion_error", fault_class=FaultClass.INTERCONNECT, nodes=("n02",), peer="n02", line=5)
    local = finding("ib.port_error", fault_class=FaultClass.INTERCONNECT, nodes=("n04",), line=50)
    assert suspects(attribute(view(), [remote, local])) == ["n04"]


def test_a_death_without_a_stated_cause_comes_after_one_with() -> None:
    killed = finding("torchelastic.exit.9", fault_class=FaultClass.UNKNOWN, nodes=("n01",), line=5)
    oom = finding("slurm.oom_kill", fault_class=FaultClass.OUT_OF_MEMORY, retry=Retry.ONCE, line=9)
    verdict = attribute(view(), [killed, oom])
    assert (verdict.fault_class, verdict.retry) == (FaultClass.OUT_OF_MEMORY, Retry.ONCE)


def test_a_node_outside_the_allocation_is_never_suspected_and_that_is_told() -> None:
    verdict = attribute(view(), [finding(nodes=("n02", "n99", "login1"), line=1)])
    assert suspects(verdict) == ["n02"]
    assert "login1, n99 named but not part of the job's allocation" in verdict.reason


def test_without_an_allocation_nobody_is_suspected() -> None:
    assert suspects(attribute(view(nodes=()), [finding(nodes=("n02",), line=1)])) == []


@pytest.mark.parametrize(
    "fault_class", [FaultClass.USER, FaultClass.APPLICATION, FaultClass.STORAGE, FaultClass.SYSTEM_SOFTWARE]
)
def test_where_a_fault_of_another_kind_happened_is_no_reason_to_avoid_the_node(fault_class: FaultClass) -> None:
    verdict = attribute(view(), [finding("some.fault", fault_class=fault_class, nodes=("n02",), line=1)])
    assert suspects(verdict) == ["n02"]
    assert sure(verdict) == []


def test_two_different_lines_about_one_node_are_surer_than_one() -> None:
    xid = finding("xid.79", nodes=("n02",), line=3)
    gone = finding("srun.task_exited", fault_class=FaultClass.UNKNOWN, role=Role.SYMPTOM, nodes=("n02",), line=9)
    (alone,) = attribute(view(), [xid]).suspects
    (both,) = attribute(view(), [xid, gone]).suspects
    assert (alone.confidence, both.confidence) == (Confidence.MEDIUM, Confidence.HIGH)
    assert not both.trusted


def test_a_user_error_on_every_rank_is_the_users_and_not_retried() -> None:
    errors = [
        finding(
            "python.import_error", fault_class=FaultClass.USER, retry=Retry.NO, line=n, rank=n, nodes=(NODES[n % 4],)
        )
        for n in range(8)
    ]
    verdict = attribute(view(), [*errors, FAILED])
    assert (verdict.fault_class, verdict.retry, suspects(verdict)) == (FaultClass.USER, Retry.NO, [])
    assert "the same on every node" in verdict.reason


def test_a_crash_on_every_node_is_not_tried_again() -> None:
    crashes = [
        finding("torchelastic.exit.11", fault_class=FaultClass.APPLICATION, retry=Retry.ONCE, line=n, nodes=(node,))
        for n, node in enumerate(NODES)
    ]
    verdict = attribute(view(), crashes)
    assert (verdict.retry, suspects(verdict)) == (Retry.NO, [])


def test_a_gpu_fault_on_every_node_still_is_one_of_the_nodes() -> None:
    faults = [finding(line=n, nodes=(node,)) for n, node in enumerate(NODES)]
    assert suspects(attribute(view(), faults)) == ["n01"]


def missing(rank: int, node: str) -> Finding:
    return finding(
        "storage.missing_path", fault_class=FaultClass.USER, retry=Retry.NO, line=rank, rank=rank, nodes=(node,)
    )


def test_a_cause_without_a_name_happened_where_the_same_words_have_one() -> None:
    def said(line: int, *nodes: str) -> Finding:
        return finding("process.shared_memory", fault_class=FaultClass.SYSTEM_SOFTWARE, nodes=nodes, line=line)

    assert suspects(attribute(view(), [said(1), said(2, "n02")])) == ["n02"]
    assert suspects(attribute(view(), [said(1), said(2, "n02"), said(3, "n03")])) == []


def test_a_path_that_is_missing_on_one_node_only_is_the_nodes_fault() -> None:
    verdict = attribute(view(), [missing(6, "n04"), missing(7, "n04")])
    assert (verdict.fault_class, verdict.retry, sure(verdict)) == (FaultClass.STORAGE, Retry.YES, ["n04"])


@pytest.mark.parametrize("who", [[(6, "n04")], [(0, "n01"), (6, "n04")]])
def test_a_path_that_is_missing_otherwise_is_the_users_mistake(who: list[tuple[int, str]]) -> None:
    verdict = attribute(view(), [missing(rank, node) for rank, node in who])
    assert (verdict.fault_class, verdict.retry, sure(verdict)) == (FaultClass.USER, Retry.NO, [])


@pytest.mark.parametrize("name", ["completed", "cancelled", "preempted", "timeout", "deadline", "requeued"])
def test_what_the_scheduler_ended_on_purpose_is_nobodys_fault(name: str) -> None:
    word = finding(f"scheduler.{name}", fault_class=FaultClass.NONE, retry=Retry.HANDS_OFF, trusted=True)
    verdict = attribute(view(), [finding(nodes=("n02",), line=1), word])
    assert (verdict.fault_class, verdict.retry, suspects(verdict)) == (FaultClass.NONE, Retry.HANDS_OFF, [])


def test_the_scheduler_goes_before_the_jobs_own_words() -> None:
    word = finding("scheduler.node_fail", trusted=True)
    user = finding("python.import_error", fault_class=FaultClass.USER, retry=Retry.NO, line=1)
    verdict = attribute(view(), [user, word], nodes_down=("n03", "n77"))
    assert (verdict.signature, verdict.fault_class) == ("scheduler.node_fail", FaultClass.HARDWARE)
    (suspect,) = verdict.suspects
    assert (suspect.node, suspect.trusted, suspect.confidence) == ("n03", True, Confidence.HIGH)


def test_a_failed_node_is_named_by_srun_where_the_scheduler_shows_none_down() -> None:
    word = finding("scheduler.node_fail", trusted=True)
    said = finding("slurm.node_failure", nodes=("n02",), line=80)
    (suspect,) = attribute(view(), [said, word]).suspects
    assert (suspect.node, suspect.trusted, suspect.confidence) == ("n02", False, Confidence.MEDIUM)


def test_a_node_fail_without_a_name_suspects_whom_the_log_blames() -> None:
    """slurmctld died, forgot that the job had failed, and calls it a node failure when it finds it gone."""
    word = finding("scheduler.node_fail", trusted=True)
    verdict = attribute(view(), [word, finding(nodes=("n02",), line=3), cascade(4)])
    assert [(one.node, one.trusted) for one in verdict.suspects] == [("n02", False)]
    assert verdict.signature == "scheduler.node_fail"
    user = finding("python.import_error", fault_class=FaultClass.USER, nodes=("n02",), line=3)
    assert attribute(view(), [word, user]).suspects == ()


def test_a_node_fail_without_a_name_suspects_nobody() -> None:
    verdict = attribute(view(), [finding("scheduler.node_fail", trusted=True), cascade(3)])
    assert (verdict.fault_class, suspects(verdict)) == (FaultClass.HARDWARE, [])


def test_out_of_memory_by_the_scheduler_excludes_nobody() -> None:
    word = finding("scheduler.out_of_memory", fault_class=FaultClass.OUT_OF_MEMORY, retry=Retry.ONCE, trusted=True)
    said = finding("srun.out_of_memory", fault_class=FaultClass.OUT_OF_MEMORY, nodes=("n02",), line=4)
    verdict = attribute(view(), [said, word])
    assert (verdict.fault_class, suspects(verdict), sure(verdict)) == (FaultClass.OUT_OF_MEMORY, ["n02"], [])


def test_a_host_without_memory_explains_a_process_that_was_killed_and_nothing_else() -> None:
    full = finding(
        "host.oom_kill",
        fault_class=FaultClass.OUT_OF_MEMORY,
        role=Role.SYMPTOM,
        retry=Retry.ONCE,
        nodes=("n02",),
        trusted=True,
        at=1,
    )
    killed = finding("srun.killed", fault_class=FaultClass.SYSTEM_SOFTWARE, role=Role.SYMPTOM, nodes=("n02",), line=4)
    waited = finding("nccl.watchdog_timeout", fault_class=FaultClass.INTERCONNECT, role=Role.SYMPTOM, line=2)
    for testimony in ([killed], [waited, killed], [cascade(1), killed]):
        verdict = attribute(view(), [*testimony, FAILED, full])
        assert (verdict.signature, verdict.retry) == ("host.oom_kill", Retry.ONCE)
        assert (suspects(verdict), sure(verdict)) == (["n02"], [])
    assert attribute(view(), [FAILED, full, killed, finding(nodes=("n03",), line=9)]).signature == "cuda.ecc"


def test_a_node_that_is_down_explains_a_crash_without_a_cause() -> None:
    verdict = attribute(view(), [cascade(1), FAILED], nodes_down=("n04",))
    assert (verdict.fault_class, sure(verdict)) == (FaultClass.HARDWARE, ["n04"])


def test_a_node_that_is_down_does_not_excuse_the_jobs_own_error() -> None:
    user = finding("python.import_error", fault_class=FaultClass.USER, retry=Retry.NO, line=1)
    verdict = attribute(view(), [user, FAILED], nodes_down=("n04",))
    assert (verdict.fault_class, sure(verdict)) == (FaultClass.USER, [])


def test_a_symptom_without_a_cause_gives_its_class_and_no_suspect() -> None:
    timeout = finding(
        "nccl.watchdog_timeout", fault_class=FaultClass.INTERCONNECT, role=Role.SYMPTOM, line=7, nodes=("n01",)
    )
    verdict = attribute(view(), [timeout, cascade(9)])
    assert (verdict.fault_class, sure(verdict)) == (FaultClass.INTERCONNECT, [])


def test_a_job_that_cannot_be_placed_is_the_schedulers_matter() -> None:
    word = finding("scheduler.cannot_be_placed", fault_class=FaultClass.SCHEDULER, role=Role.SYMPTOM, trusted=True)
    assert attribute(view(), [word]).fault_class is FaultClass.SCHEDULER


def test_cannot_tell_is_a_verdict() -> None:
    for findings in ([FAILED], [cascade(4), FAILED], [cascade(4)]):
        verdict = attribute(view(), findings)
        assert (verdict.fault_class, verdict.retry, suspects(verdict)) == (FaultClass.UNKNOWN, Retry.YES, [])
        assert "cannot tell why" in verdict.reason


def test_srun_is_a_weak_witness_of_where() -> None:
    exited = finding("srun.task_exited", fault_class=FaultClass.UNKNOWN, role=Role.SYMPTOM, nodes=("n02",), line=3)
    verdict = attribute(view(), [exited, FAILED])
    assert (verdict.fault_class, suspects(verdict), sure(verdict)) == (FaultClass.UNKNOWN, ["n02"], [])


def test_nothing_at_all_is_no_fault() -> None:
    verdict = attribute(view(), [])
    assert (verdict.fault_class, verdict.retry) == (FaultClass.NONE, Retry.HANDS_OFF)


def test_a_cancelled_step_does_not_turn_a_failure_into_no_fault() -> None:
    notice = finding("slurm.cancelled", fault_class=FaultClass.NONE, role=Role.SYMPTOM, retry=Retry.HANDS_OFF, line=2)
    assert attribute(view(), [notice]).fault_class is FaultClass.NONE
    assert attribute(view(), [notice, FAILED]).fault_class is FaultClass.UNKNOWN


def test_what_the_training_survived_is_not_blamed() -> None:
    survived = finding(nodes=("n02",), line=3, role=Role.BENIGN)
    assert attribute(view(), [survived]).fault_class is FaultClass.NONE
    assert attribute(view(), [survived, FAILED]).fault_class is FaultClass.UNKNOWN


names = st.sampled_from(["n01", "n02", "n03", "n04", "n05", "login1", "10.0.0.3"])
anything = st.builds(
    finding,
    st.sampled_from(["cuda.ecc", "storage.missing_path", "slurm.node_failure", "scheduler.failed", "srun.task_exited"]),
    fault_class=st.sampled_from(FaultClass),
    role=st.sampled_from(Role),
    retry=st.sampled_from(Retry),
    nodes=st.lists(names, max_size=3).map(tuple),
    line=st.one_of(st.none(), st.integers(1, 99)),
    rank=st.one_of(st.none(), st.integers(0, 9)),
    peer=st.one_of(st.none(), names),
    trusted=st.booleans(),
)


@settings(max_examples=2000, deadline=None)
@given(st.lists(anything, max_size=12), st.sampled_from([(), ("n01",), NODES]), st.lists(names, max_size=3))
def test_whatever_is_found_suspects_belong_to_the_allocation(
    findings: list[Finding], nodes: Nodes, down: list[str]
) -> None:
    job = view(nodes=nodes, state=JobState.FAILED)
    verdict = attribute(job, findings, nodes_down=tuple(down))
    assert set(suspects(verdict)) <= set(nodes)
    assert verdict == attribute(job, findings, nodes_down=tuple(down))
    assert verdict.reason
