# ruff: noqa: E501 - lines of logs are as long as they are
"""Logs of jobs in which nothing broke, or that survived what did: none of them is a fault."""

from __future__ import annotations

from datetime import timedelta

from tests.recovery.lookalike_lab import TOTAL, Lab
from tests.recovery.lookalike_stories import HEALTHY, Expected, crash, story


@story()
def finished(lab: Lab) -> Expected:
    lab.run()
    lab.step = TOTAL - 5
    lab.train(5)
    lab.end()
    for node in lab.nodes[1:]:
        lab.loses_store(node)
    return HEALTHY


@story()
def still_running(lab: Lab) -> Expected:
    lab.run()
    return HEALTHY


@story()
def asked_to_end(lab: Lab) -> Expected:
    lab.run()
    for node in lab.nodes:
        lab.say(
            f"W{lab.glog} 7 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down"
        )
        lab.loses_store(node)
    return HEALTHY


@story()
def time_limit(lab: Lab) -> Expected:
    lab.run()
    at = f"{lab.at:%Y-%m-%dT%H:%M:%S}"
    lab.say(f"slurmstepd: error: *** JOB 4711 ON {lab.nodes[0]} CANCELLED AT {at} DUE TO TIME LIMIT ***")
    lab.fall({0}, {0: -15})
    return HEALTHY


@story()
def came_back_in_the_job(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    lab.fall({rank}, {rank: -9})
    lab.step -= 5
    lab.begin()
    lab.train(9)
    return HEALTHY


@story()
def requeued_into_the_same_file(lab: Lab) -> Expected:
    crash(lab, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    lab.step -= 5
    lab.launch()
    lab.begin()
    lab.train(1)
    lab.step = TOTAL - 2
    lab.train(2)
    lab.end()
    return HEALTHY


@story()
def started_only(lab: Lab) -> Expected:
    """What a start-up prints is full of the words of faults."""
    for node in lab.nodes:
        lab.say(
            "------------------------ arguments ------------------------",
            "  check_for_nan_in_loss_and_grad .................. True",
            "  distributed_timeout_minutes ..................... 10",
            "  error_injection_rate ............................ 0",
            "  exit_signal_handler ............................. False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=7",
            f"{node}:12:14 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
            f"{node}:12:14 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:{lab.address[node]}<0>",
            "could not load library libcudart.so.12: cannot open shared object file",
            f"nvidia-smi: {lab.random.randint(4, 8)} GPUs, ECC errors: volatile uncorrected 0, aggregate uncorrected 0",
            "INFO:hypercorn.error:Running on http://0.0.0.0:8000 (CTRL + C to quit)",
            node=node,
        )
    lab.run()
    return HEALTHY


@story()
def handled_traceback(lab: Lab) -> Expected:
    lab.run()
    for _ in range(lab.random.randint(1, 4)):
        rank = lab.random.choice(lab.ranks)
        error = lab.random.choice(
            (
                "ValueError: could not convert string to float: 'n/a'",
                "KeyError: 'lr'",
                "OSError: [Errno 5] Input/output error: '/logs/events.out'",
                "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
            )
        )
        lab.traceback(rank, error, "log_metrics(step)")
        lab.train(lab.random.randint(3, 30))
    return HEALTHY


@story()
def retry_loop_that_recovered(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    for number in range(1, lab.random.randint(2, 6)):
        lab.say(
            f"[rank{rank}]: OSError: [Errno 5] Input/output error: '/data/shard_{number}.bin', retrying in {number} s",
            "wandb: Network error (ConnectionResetError: Connection reset by peer), entering retry loop.",
            node=lab.node_of(rank),
        )
    lab.train(lab.random.randint(1, 9))
    return HEALTHY


@story()
def advice_and_notes(lab: Lab) -> Expected:
    lab.run()
    advice = [
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace might be off.",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "[W] Warning: process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        f"{lab.any_node()}:211456:212011 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : client reregistration",
        "watcher: job 4711: Job failed? no",
    ]
    lab.say(*lab.random.sample(advice, lab.random.randint(2, len(advice))))
    return HEALTHY


@story()
def watchdog_noise_after_the_end(lab: Lab) -> Expected:
    lab.run()
    lab.step = TOTAL - 3
    lab.train(3)
    lab.end()
    for rank in lab.shuffled(list(lab.ranks))[:3]:
        lab.say(
            f"[rank{rank}]:[E{lab.glog} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: W",
            f"[rank{rank}]:[F{lab.glog} ProcessGroupNCCL.cpp:1250] [PG 0 Rank {rank}] Heartbeat monitor timed out!",
            node=lab.node_of(rank),
        )
    rank = lab.random.choice(lab.ranks)
    lab.say("terminate called without an active exception", node=lab.node_of(rank))
    lab.gives_up(lab.node_of(rank), {rank: -6})
    return HEALTHY


@story()
def lines_after_a_cancel_notice(lab: Lab) -> Expected:
    lab.run()
    at = f"{lab.at:%Y-%m-%dT%H:%M:%S}"
    word = lab.random.choice(("", " DUE TO PREEMPTION", " DUE TO JOB REQUEUE", " DUE to SIGNAL Terminated"))
    lab.say(f"slurmstepd: error: *** JOB 4711 ON {lab.nodes[0]} CANCELLED AT {at}{word} ***")
    lab.say("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
    for rank in lab.shuffled(list(lab.ranks)):
        lab.traceback(
            rank, lab.random.choice(("KeyboardInterrupt", "MemoryError", "RuntimeError: CUDA error: unknown error"))
        )
    for node in lab.nodes:
        lab.say(f"srun: error: {node}: task 0: Killed")
    return HEALTHY


@story()
def loop_of_the_script_that_goes_on(lab: Lab) -> Expected:
    """for try in 1 2 3; do srun … && break; done"""
    rank = crash(lab, "RuntimeError: CUDA error: unspecified launch failure")
    lab.say(f"srun: error: {lab.node_of(rank)}: task {rank // lab.per_node}: Exited with exit code 1")
    lab.say("srun: Terminating StepId=4711.0")
    lab.step = lab.saved or 0
    lab.launch()
    lab.begin()
    lab.train(lab.random.randint(1, 5))
    return HEALTHY


@story()
def one_slow_node(lab: Lab) -> Expected:
    """Slow steps alone break nothing."""
    lab.run()
    for _ in range(20):
        lab.train(1)
        lab.at += timedelta(seconds=3)
    lab.step = TOTAL - 1
    lab.train(1)
    lab.end()
    return HEALTHY


@story()
def bars_and_colours(lab: Lab) -> Expected:
    lab.launch()
    lab.begin()
    total = lab.random.randint(20, 90)
    bars = "".join(
        f"\rpretrain: {100 * done // total:3d}%|#####     | {done}/{total} [00:{done % 60:02d}<00:09,  3.10it/s, loss=7.2]"
        for done in range(total + 1)
    )
    lab.say(f"\x1b[32mINFO\x1b[0m starting \x1b[1mepoch 0\x1b[0m{bars}", node=lab.nodes[-1])
    lab.highest = total
    lab.end()
    return HEALTHY
