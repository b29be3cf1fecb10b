"""Context: which lines are faults and which only look like them."""

from __future__ import annotations

import pytest

from recovery.context import AFTER_END, AFTER_NOTICE, REACHED_END, STARTED_ANEW, SURVIVED
from recovery.diagnose import Diagnosis
from recovery.records import FaultClass, Retry
from tests.recovery import logs
from tests.recovery.logs import hosts, lost, saved, step, steps, table

ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
TRACEBACK = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/opt/train.py", line 81, in log_metrics\n'
    "[rank3]: ValueError: could not convert string to float: 'n/a'\n"
)
BEGIN = "[before the start of training step] datetime: 2026-11-12 03:20:00\n"
END = "[after training is done] datetime: 2026-11-12 20:24:02\n"
EXITED = "srun: error: n02: task 3: Exited with exit code 1\n"
CANCELLED = "slurmstepd: error: *** JOB 4711 ON n01 CANCELLED AT 2026-11-12T03:14:15{} ***\n"


def told(text: str) -> Diagnosis:
    return logs.told(("", text))


def why(found: Diagnosis, signature: str) -> list[str]:
    return [one.why for one in found.ignored if one.signature == signature]


START_UP = """\
using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1
------------------------ arguments ------------------------
  distributed_timeout_minutes ..................... 10
  error_injection_rate ............................ 0
  error_injection_type ............................ transient_error
  exit_on_missing_checkpoint ...................... False
  check_for_nan_in_loss_and_grad .................. True
  log_throughput .................................. True
-------------------- end of arguments ---------------------
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=7
[W1112 03:14:15.1 Utils.hpp:136] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated
n01:12:14 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
n01:12:14 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.3.0.18<0>
could not load library libcudart.so.12: cannot open shared object file
WARNING: could not find the metadata file /ckpt/run7/latest_checkpointed_iteration.txt
Nov 12 03:14:15 n01 kernel: NVRM: Port: 1 Link INIT
INFO:hypercorn.error:Running on http://0.0.0.0:8000 (CTRL + C to quit)
nvidia-smi: ECC errors: volatile uncorrected 0, aggregate uncorrected 0
health check: Xid 79 count 0, timed out probes 0
"""


def test_what_a_start_up_prints_is_no_fault() -> None:
    found = told(START_UP + BEGIN + steps(1, 2))
    assert (found.fault, found.findings, found.ignored) == (False, (), ())


@pytest.mark.parametrize(
    "advice",
    [
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace might be off.\n",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n",
        "[W] Warning: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\n",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n",
        "This is typically caused by a remote worker crashing. Check the logs of the remote worker.\n",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
        "2026-11-12 03:14:15 ERROR collector: /usr/bin/python stderr follows\n",
        "watcher: job 4711: Job failed? no\n",
    ],
)
def test_advice_and_notes_are_no_fault(advice: str) -> None:
    assert told(steps(1, 2) + advice).fault is False


def test_no_nan_iterations_is_no_fault_and_a_nan_gradient_is() -> None:
    assert told(steps(1, 5)).findings == ()
    sick = step(6).replace("lm loss: 7.802939E+00", "lm loss: 7.8E+00 | grad norm: nan")
    assert "number of nan iterations:   0" in sick
    found = told(steps(1, 5) + sick)
    assert (found.fault, found.signature) == (True, "training.silent_nan")


def test_a_traceback_that_the_training_survives_is_no_fault() -> None:
    found = told(steps(1, 5) + TRACEBACK + steps(6, 9))
    assert (found.fault, found.retry) == (False, Retry.HANDS_OFF)
    assert why(found, "python.exception") == [SURVIVED]


@pytest.mark.parametrize("last", [9, 1_500, 4_000, 9_000])
def test_however_long_the_training_went_on_it_was_survived(last: int) -> None:
    assert told(steps(1, 5) + TRACEBACK + steps(6, last)).fault is False
    assert told(steps(1, last) + TRACEBACK).fault is True


def test_a_traceback_after_which_steps_stop_is_one() -> None:
    found = told(steps(1, 5) + TRACEBACK)
    assert (found.fault, found.fault_class, found.retry) == (True, FaultClass.APPLICATION, Retry.ONCE)


def test_a_retry_loop_that_recovered_is_no_fault() -> None:
    tries = "".join(
        f"OSError: [Errno 5] Input/output error: '/data/shard_{number}.bin', retrying in {number} s\n"
        for number in (1, 2, 3)
    )
    found = told(steps(1, 5) + tries + steps(6, 6))
    assert found.fault is False
    assert [(one.lines, one.why) for one in found.ignored] == [(3, "The program tries it again by itself")]


def test_a_retry_loop_that_gave_up_is_one() -> None:
    text = "OSError: [Errno 5] Input/output error: '/data/shard_1.bin', retrying in 5 s\n"
    found = told(steps(1, 5) + text * 3 + "OSError: [Errno 5] Input/output error: '/data/shard_1.bin'\n")
    assert (found.fault, found.signature) == (True, "storage.io_error")


def test_a_retry_loop_of_the_script_that_starts_a_new_step_has_survived() -> None:
    crash = BEGIN + steps(1, 17) + ECC + EXITED
    assert told(crash).fault is True
    assert told(crash + hosts()).fault is True  # it only begins to start
    found = told(crash + hosts() + BEGIN)
    assert found.fault is False
    assert why(found, "cuda.ecc") == [STARTED_ANEW]
    assert told(crash + hosts() + BEGIN + steps(11, 12)).fault is False
    assert told(crash + hosts() + BEGIN + steps(11, 12) + ECC + EXITED).fault is True


def test_a_beginning_says_nothing_of_what_came_after_it() -> None:
    found = told(BEGIN + ECC + EXITED)
    assert (found.fault, found.signature) == (True, "cuda.ecc")


def test_an_in_job_restart_by_the_launcher_that_succeeded_is_no_fault() -> None:
    crash = lost(0) + table(("n02", 3, -9), ("n02", 2, -15))
    found = told(hosts() + BEGIN + steps(1, 14) + crash + hosts() + BEGIN + steps(11, 20))
    assert found.fault is False
    assert SURVIVED in why(found, "torchelastic.exit.9")
    assert (found.last_step, found.first_step) == (20, 1)


def test_noise_after_the_run_finished_is_no_fault() -> None:
    noise = (
        "[rank2]:[E1112 20:24:09.1 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: W\n"
        "[rank2]:[F1112 20:24:10.1 ProcessGroupNCCL.cpp:1250] [PG 0 Rank 2] Heartbeat monitor timed out!\n"
        + lost(3) + table(("n02", 2, -6))
    )  # fmt: skip
    found = told(BEGIN + steps(1, 30, total=30) + saved(30) + END + noise)
    assert (found.fault, found.fault_class) == (False, FaultClass.NONE)
    assert why(found, "nccl.watchdog_timeout") == [AFTER_END]


def test_what_a_finished_run_went_through_was_survived() -> None:
    found = told(steps(1, 29, total=30) + lost(1) + steps(30, 30, total=30) + END)
    assert found.fault is False
    assert why(found, "net.connection_lost") == [REACHED_END]


@pytest.mark.parametrize(
    ("word", "signature"),
    [
        ("", "slurm.cancelled"),
        (" DUE TO TIME LIMIT", "slurm.ended_by_time_limit"),
        (" DUE TO PREEMPTION", "slurm.ended_by_preemption"),
        (" DUE TO JOB REQUEUE", "slurm.ended_by_requeue"),
    ],
)
def test_lines_after_a_notice_of_the_end_are_no_fault(word: str, signature: str) -> None:
    after = "Fatal Python error: Segmentation fault\n" + lost(1) + step(6) + "[rank0]: KeyError: 'x'\n" + EXITED
    found = told(steps(1, 5) + CANCELLED.format(word) + after)
    assert (found.fault, found.signature, found.retry) == (False, signature, Retry.HANDS_OFF)
    assert why(found, "process.segfault") == [AFTER_NOTICE]


def test_a_step_that_is_ended_as_a_consequence_does_not_hide_the_cause() -> None:
    text = ECC + EXITED + CANCELLED.format("").replace("JOB 4711", "STEP 4711.0") + "srun: error: n01: task 0: Killed\n"
    assert told(steps(1, 5) + text).signature == "cuda.ecc"


def test_tasks_that_srun_ends_itself_are_victims() -> None:
    victims = "srun: error: n01: task 0: Killed\nsrun: error: n03: task 5: Exited with exit code 1\n"
    aborted = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    assert told(steps(1, 5) + aborted + victims).suspects == ()
    killed = told(steps(1, 5) + "srun: error: n02: task 3: Killed\n" + aborted + victims)
    assert (killed.fault_class, killed.signature) == (FaultClass.SYSTEM_SOFTWARE, "srun.killed")
    assert [one.host for one in killed.suspects] == ["n02"]


def test_words_of_an_end_count_only_when_no_steps_are_left() -> None:
    assert told(steps(1, 10, total=500) + "Training finished its warm-up\n" + ECC).fault is True
    assert told(steps(491, 500, total=500) + "Training finished\n" + ECC).fault is False


def test_ignored_lines_are_told_once_a_kind() -> None:
    found = told(steps(1, 5) + ECC * 500 + steps(6, 9))
    (left,) = found.ignored
    assert (left.signature, left.lines, left.line, left.why) == ("cuda.ecc", 500, 6, SURVIVED)
