"""Whole logs: what is told about them offline."""

from __future__ import annotations

import json

import pytest

from recovery.diagnose import Diagnosis, diagnose
from recovery.records import Confidence, FaultClass, Nodes, Retry
from tests.recovery.logs import CATALOGUE, NODES, NOW, SCANNER, hosts, lost, saved, steps, table


def told(text: str | bytes, allocation: Nodes | None = NODES, piece: int = 1 << 16) -> Diagnosis:
    data = text.encode() if isinstance(text, str) else text
    pieces = (data[start : start + piece] for start in range(0, len(data), piece))
    return diagnose(pieces, CATALOGUE, allocation=allocation, now=NOW, scanner=SCANNER)


HEALTHY = hosts() + steps(1, 30, total=30) + saved(30) + "[after training is done] datetime: 2026-11-12 20:24:02\n"


def test_a_finished_training_is_no_fault() -> None:
    found = told(HEALTHY)
    assert (found.fault, found.fault_class, found.retry) == (False, FaultClass.NONE, Retry.HANDS_OFF)
    assert (found.first_step, found.last_step, found.total_steps, found.last_checkpoint) == (1, 30, 30, 30)
    assert found.suspects == ()


def test_noise_at_the_end_of_a_finished_training_is_no_fault() -> None:
    noise = "[W TCPStore.cpp:138] [c10d] recvValueWithTimeout failed: Failed to recv, got 0 bytes.\n" + lost(3)
    assert told(HEALTHY + noise).fault is False


def test_a_gpu_fault_is_told_with_host_and_rank() -> None:
    ecc = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    found = told(hosts() + steps(1, 120) + saved(100) + ecc + lost(1) + lost(2) + table(("n03", 5, 1), ("n03", 4, -15)))
    (suspect,) = found.suspects
    assert (found.fault, found.fault_class, found.signature) == (True, FaultClass.HARDWARE, "cuda.ecc")
    assert (suspect.host, suspect.rank, found.exclude) == ("n03", 5, ("n03",))
    assert suspect.confidence is Confidence.HIGH  # the launcher's table names the same node
    assert found.first_cause is not None
    assert found.first_cause.evidence == ecc.strip()
    assert (found.last_step, found.last_checkpoint) == (120, 100)


def test_without_an_allocation_the_hosts_of_the_log_stand_for_it() -> None:
    ecc = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    assert told(hosts() + ecc, None).exclude == ("n03",)
    assert told(hosts() + ecc, None).hosts == NODES
    assert told(ecc, None).exclude == ()


def test_a_killed_rank_is_told_and_its_node_not_excluded() -> None:
    found = told(hosts() + steps(1, 16) + lost(2) + lost(4) + table(("n02", 3, -9), ("n02", 2, -15)))
    assert (found.fault, found.fault_class, found.retry) == (True, FaultClass.SYSTEM_SOFTWARE, Retry.YES)
    assert [(one.host, one.rank, one.confidence) for one in found.suspects] == [("n02", 3, Confidence.LOW)]
    assert found.exclude == ()


def test_an_import_error_on_all_ranks_is_not_worth_a_retry() -> None:
    error = "Traceback (most recent call last):\n  import flash\nModuleNotFoundError: No module named 'flash'\n"
    tables = "".join(table((node, 2 * index, 1), (node, 2 * index + 1, 1)) for index, node in enumerate(NODES))
    found = told(error * 8 + tables)
    assert (found.fault_class, found.retry, found.suspects) == (FaultClass.USER, Retry.NO, ())
    assert found.last_step is None


def test_an_in_job_restart_that_worked_is_no_fault() -> None:
    crash = lost(0) + "E1 torch/distributed/x.py:1] failed (exitcode: -9) local_rank: 0 (pid: 5953) of binary: python\n"
    assert told(hosts() + steps(1, 17) + crash + hosts() + steps(11, 36)).fault is False
    assert told(hosts() + steps(1, 17) + crash).fault is True


def test_a_job_that_was_asked_to_end_is_no_fault() -> None:
    text = (
        hosts() + steps(1, 24) + "W1 api.py:753] Received 15 death signal, shutting down workers\n" + saved(24)
        + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 2 got signal: 15\n" + lost(1)
    )  # fmt: skip
    found = told(text)
    assert (found.fault, found.retry, found.last_checkpoint) == (False, Retry.HANDS_OFF, 24)


def test_only_victims_means_cannot_tell() -> None:
    found = told(steps(1, 5) + lost(1) + lost(2))
    assert (found.fault, found.fault_class, found.exclude) == (True, FaultClass.UNKNOWN, ())
    assert "cannot tell" in found.reason


@pytest.mark.parametrize("data", [b"", b"\n", b"\x00" * 5000, b"\xff\xfe" * 100, b"x" * 3_000_000])
def test_nothing_to_read_is_no_fault(data: bytes) -> None:
    found = told(data, None)
    assert (found.fault, found.findings, found.last_step) == (False, (), None)
    assert found.bytes_read == len(data)


def test_lines_are_counted_with_an_unfinished_last_one() -> None:
    assert told("a\nb\nc").lines == 3
    assert told("a\nb\nc\n").lines == 3


@pytest.mark.parametrize("piece", [13, 1 << 20])
def test_the_diagnosis_does_not_depend_on_how_the_log_arrives(piece: int) -> None:
    text = hosts() + steps(1, 50) + lost(6) + "[rank5]: MemoryError\n" + table(("n03", 5, 1))
    assert told(text, piece=piece) == told(text)


def test_a_diagnosis_goes_through_json() -> None:
    found = told(hosts() + "[rank5]: MemoryError\n\x1b[31m\x00\n")
    assert Diagnosis.model_validate(json.loads(found.model_dump_json())) == found
    assert found.catalogue_hash == CATALOGUE.hash


def test_a_job_under_srun_alone_is_understood() -> None:
    victims = "".join(
        f"[rank{rank}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting\n"
        for rank in (0, 2)
    )
    text = (
        steps(1, 12, total=100)
        + saved(10)
        + "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        + "srun: error: n02: task 1: Exited with exit code 1\n"
        + victims
        + "slurmstepd: error: *** STEP 4711.0 ON n01 CANCELLED AT 2026-11-12T03:14:15 ***\n"
        + "srun: error: n01: task 0: Exited with exit code 1\nsrun: error: n03: task 2: Terminated\n"
    )
    found = told(text, ("n01", "n02", "n03"))
    assert (found.signature, found.exclude, found.last_step, found.last_checkpoint) == ("cuda.ecc", ("n02",), 12, 10)
