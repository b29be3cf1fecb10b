"""From lines to findings: context, nodes, bounds and stable ids."""

from __future__ import annotations

import pytest

from recovery.diagnose import LogReader, examine_log, log_scanner
from recovery.evidence import FINDINGS, known_as
from recovery.records import Certainty, FaultClass, Finding, JobState, JobView, Role
from tests.recovery.logs import CATALOGUE, NODES, NOW, SCANNER, hosts, lost, saved, steps, table, view, waited

ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
CANCELLED = "slurmstepd: error: *** JOB 4711 ON n01 CANCELLED AT 2026-11-12T03:14:15 ***\n"


def findings(text: str, job: JobView | None = None, attempt: int = 0) -> tuple[Finding, ...]:
    found, _ = examine_log(
        [("job.log", [text.encode()])], CATALOGUE, job or view(), NOW, attempt=attempt, scanner=SCANNER
    )
    return found


def standing(text: str) -> list[str]:
    return [one.signature for one in findings(text) if one.role is not Role.BENIGN]


def test_a_finding_says_what_where_and_how_it_knows() -> None:
    (found,) = findings(hosts() + steps(1, 3) + ECC)
    assert (found.signature, found.fault_class, found.role) == ("cuda.ecc", FaultClass.HARDWARE, Role.ROOT)
    assert (found.nodes, found.rank, found.line, found.source) == (("n02",), 3, 12, "job.log")
    assert found.how == "rank 3 ran there, as the log tells"
    assert found.evidence == ECC.strip()
    assert (found.certainty, found.trusted, found.at) == (Certainty.CONFIRMED, False, None)


def test_a_rank_without_a_word_on_its_node_implicates_nobody() -> None:
    (found,) = findings(ECC)
    assert (found.rank, found.nodes) == (3, ())


def test_srun_tells_where_a_task_ran_and_tasks_are_taken_for_ranks() -> None:
    found = findings(ECC + "srun: error: n04: tasks 2-3: Exited with exit code 1\n")
    ecc = next(one for one in found if one.signature == "cuda.ecc")
    assert ecc.nodes == ("n04",)
    assert "taken for rank 3" in ecc.how


def test_tasks_are_not_taken_for_ranks_where_a_launcher_stands_between() -> None:
    found = findings(ECC + table(("n01", 0, 1)) + "srun: error: n04: task 3: Exited with exit code 1\n")
    assert next(one for one in found if one.signature == "cuda.ecc").nodes == ()


def test_a_job_on_one_node_can_only_have_broken_there() -> None:
    (found,) = findings(ECC, view(nodes=("n02",)))
    assert found.nodes == ("n02",)


def test_a_line_that_names_its_host_needs_no_map() -> None:
    (found,) = findings("n03.cluster.local:1:2 [5] NCCL WARN NET/IB : Got async event : port error\n")
    assert (found.nodes, found.gpu) == (("n03",), "5")


def test_the_batch_host_is_not_guilty_for_being_named() -> None:
    text = "slurmstepd: error: *** JOB 4711 ON n01 CANCELLED AT 2026-11-12T03:14:15 DUE TO NODE FAILURE, SEE ***\n"
    (found,) = findings(text)
    assert (found.signature, found.nodes) == ("slurm.ended_by_node_failure", ())


def test_srun_names_the_failed_node_also_behind_the_notice() -> None:
    text = (
        "slurmstepd: error: *** JOB 4711 ON n01 CANCELLED AT 2026-11-12T03:14:15 DUE TO NODE FAILURE, SEE ***\n"
        "srun: error: Node failure on n02\n"
    )
    assert [(one.signature, one.nodes) for one in findings(text)] == [
        ("slurm.ended_by_node_failure", ()),
        ("slurm.node_failure", ("n02",)),
    ]


def test_a_peer_is_a_suspect_only_by_a_name_of_the_allocation() -> None:
    line = "n01:1:2 [0] NCCL WARN NET/IB : Got completion from peer {}<37948> with status=12 opcode=0 vendor err 129\n"
    by_name, by_address = (findings(line.format(peer))[0] for peer in ("n02", "10.0.0.2"))
    assert (by_name.nodes, by_name.peer) == (("n02",), "n02")
    assert (by_address.nodes, by_address.peer) == ((), "10.0.0.2")


@pytest.mark.parametrize(
    "notice",
    [
        CANCELLED,
        CANCELLED.replace(" ***\n", " DUE TO TIME LIMIT ***\n"),
        CANCELLED.replace(" ***\n", " DUE TO PREEMPTION ***\n"),
        CANCELLED.replace(" ***\n", " DUE TO JOB REQUEUE ***\n"),
        "W1129 1 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers\n",
    ],
)
def test_what_follows_the_end_of_the_job_does_not_count(notice: str) -> None:
    after = "Fatal Python error: Segmentation fault\n" + lost(1) + "[rank0]: KeyError: 'x'\n"
    assert [one for one in standing(notice + after) if not one.startswith(("slurm", "run"))] == []
    assert "process.segfault" in standing(after)


def test_a_fault_before_the_notice_counts() -> None:
    assert standing(ECC + CANCELLED)[0] == "cuda.ecc"


def test_steps_after_a_fault_show_that_it_was_survived() -> None:
    (found,) = findings(steps(1, 5) + ECC + steps(6, 9))
    assert (found.role, found.certainty) == (Role.BENIGN, Certainty.SUSPECTED)
    assert found.how == "the training went on afterwards"


def test_one_late_step_line_does_not_show_that() -> None:
    assert standing(steps(1, 5) + ECC + steps(6, 6)) == ["cuda.ecc"]


def test_a_second_attempt_in_the_same_file_is_judged_by_itself() -> None:
    first = steps(1, 27) + ECC + CANCELLED
    assert standing(first) == ["cuda.ecc", "slurm.cancelled"]
    assert standing(first + steps(21, 36)) == []
    assert standing(first + steps(21, 36) + "MemoryError\n") == ["process.memory_error"]


def test_a_run_that_reached_its_end_survived_everything() -> None:
    text = steps(1, 30, total=30) + lost(1) + "[after training is done] datetime: x\n" + ECC
    assert standing(text) == []
    assert [one.signature for one in findings(text)] == ["net.connection_lost", "run.finished"]


def test_words_of_an_end_do_not_count_while_steps_are_left() -> None:
    text = steps(1, 10, total=500) + "training finished its warm-up\n" + ECC
    assert standing(text) == ["cuda.ecc"]


def test_the_same_line_read_twice_has_the_same_id() -> None:
    first = findings(steps(1, 3) + ECC)
    again = findings(hosts() + steps(1, 2_000) + ECC)  # other place, node now known
    assert [one.id for one in first] == [one.id for one in again]
    assert findings(ECC, attempt=1)[0].id != first[0].id
    assert findings(ECC.replace("rank3", "rank4"))[0].id != first[0].id
    assert len(findings(ECC * 50)) == 1


def test_a_thousand_victims_leave_room_for_the_cause() -> None:
    victims = "".join(lost(rank, f"10.0.{rank // 250}.{rank % 250}") for rank in range(1_000))
    found = findings(victims + table(*((f"n{n:03d}", n, 1) for n in range(300))) + ECC)
    assert len(found) <= FINDINGS
    assert found[0].signature == "cuda.ecc"
    assert "1000 such lines" in next(one for one in found if one.signature == "net.connection_lost").summary


def test_a_failure_table_gives_host_and_rank_of_each_exit_code() -> None:
    found = findings(table(("n02", 3, -9), ("n02", 2, -15)))
    exits = {one.signature: (one.nodes, one.rank, one.role) for one in found}
    assert exits["torchelastic.exit.9"] == (("n02",), 3, Role.ROOT)
    assert exits["torchelastic.exit.15"] == (("n02",), 2, Role.CASCADE)


def test_of_interleaved_tables_nothing_is_made_up() -> None:
    text = (
        "  host      : n01\n  host      : n02\n  rank      : 0 (local_rank: 0)\n  rank      : 2 (local_rank: 0)\n"
        "  exitcode  : -9 (pid: 1)\n  exitcode  : -15 (pid: 2)\n"
    )
    assert all(one.nodes == () and one.rank is None for one in findings(text))


ALL_BUT_N03 = table(("n01", 0, 1), ("n01", 1, -15)) + table(("n02", 2, 1), ("n02", 3, -15)) + table(("n04", 6, 1))


def test_a_node_that_fell_silent_is_noticed() -> None:
    text = hosts() + steps(1, 9) + lost(6) + lost(3) + lost(0) + lost(7) + lost(1) + lost(2) + ALL_BUT_N03
    found = next(one for one in findings(text) if one.detector == "silence")
    assert (found.signature, found.nodes, found.fault_class) == ("silence.node", ("n03",), FaultClass.HARDWARE)


def test_while_others_may_still_speak_nobody_is_called_silent() -> None:
    text = hosts() + steps(1, 9) + lost(6) + lost(3) + table(("n01", 0, 1))
    assert [one for one in findings(text) if one.detector == "silence"] == []


def test_a_rank_that_all_others_waited_for_is_noticed() -> None:
    text = hosts() + steps(1, 9) + "".join(waited(rank) for rank in range(8) if rank != 5)
    found = next(one for one in findings(text) if one.detector == "silence")
    assert (found.signature, found.nodes, found.rank) == ("silence.hung", ("n03",), 5)


def test_silence_of_ranks_on_two_nodes_blames_neither() -> None:
    text = hosts() + "".join(waited(rank) for rank in range(8) if rank not in {2, 5})
    assert [one for one in findings(text) if one.detector == "silence"] == []


def test_a_rank_that_left_early_is_the_programs_fault_and_no_nodes() -> None:
    others = "".join(lost(rank) for rank in range(8) if rank != 5)
    tables = "".join(table((node, 2 * index, 1)) for index, node in enumerate(NODES))
    found = next(one for one in findings(hosts() + others + tables) if one.detector == "silence")
    assert (found.signature, found.nodes, found.fault_class) == ("silence.left", (), FaultClass.APPLICATION)


def test_a_named_cause_goes_before_any_silence() -> None:
    text = hosts() + ECC + lost(6) + lost(0) + ALL_BUT_N03
    assert [one.signature for one in findings(text) if one.detector == "silence"] == []


def test_several_files_of_one_attempt_are_read_together() -> None:
    out = hosts() + steps(1, 9) + saved(5)
    found, reader = examine_log([("out", [out.encode()]), ("err", [ECC.encode()])], CATALOGUE, view(restarts=2), NOW)
    (ecc,) = found
    assert (ecc.source, ecc.line, ecc.nodes, ecc.attempt) == ("err", 1, ("n02",), 2)
    assert (reader.progress.highest, reader.progress.checkpoint) == (9, 5)


def test_one_scanner_serves_many_logs() -> None:
    scanner = log_scanner(CATALOGUE)
    for _ in range(3):
        reader = LogReader(CATALOGUE, scanner=scanner)
        reader.feed((steps(1, 2) + ECC).encode())
        reader.finish()
        assert [hit.line for hit in reader.hits] == [3]
        assert reader.seen == {"cuda.ecc": 1}


@pytest.mark.parametrize(
    ("name", "nodes", "known"),
    [
        ("n02", NODES, "n02"),
        ("n02.cluster.local", NODES, "n02"),
        ("n02", ("n02.cluster.local",), "n02.cluster.local"),
        ("n9", NODES, "n9"),
        ("10.0.0.2", ("10-0-0-2", "n02"), "10.0.0.2"),
        ("a.x", ("a.y", "a.z"), "a.x"),
        (None, NODES, None),
    ],
)
def test_host_names_are_known_with_and_without_their_domain(
    name: str | None, nodes: tuple[str, ...], known: str | None
) -> None:
    assert known_as(name, nodes) == known


def test_the_state_of_the_job_plays_no_part() -> None:
    running, failed = (findings(ECC, view(state=state)) for state in (JobState.RUNNING, JobState.FAILED))
    assert running == failed
