"""A small real trainer: data-parallel gradient descent over several ranks, with checkpoints it resumes from.

Standard library only. Rank 0 is the hub of an all-reduce over TCP; it prints Megatron-style progress and saves a
checkpoint every few steps by write, fsync and rename. Started by `srun`, one task per node.

A node is "broken" for as long as the file `<faults>/<node>` exists; what it says decides how the rank there dies:
  gpu       CUDA's words for an uncorrectable ECC error, exit 1
  import    a Python import error on every rank, before the first step (a user's mistake)
  exit N    exits with code N
  kill      SIGKILL to itself
  hang      stops taking steps for ever, silently
  stall     never comes to the first step, silently
  slow S    takes S seconds longer for each step
  memory M N  in step N takes M megabytes and keeps them for a minute
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import struct
import sys
import time
from pathlib import Path

WEIGHTS = 8


def main() -> int:
    options = _options()
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    folder = Path(options.checkpoints)
    folder.mkdir(parents=True, exist_ok=True)
    step, weights = _load(folder)
    if rank == 0:
        attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
        _say(f"training on {os.environ.get('SLURM_JOB_NODELIST')} with {world} ranks, restart count {attempt}")
        if step:
            _say(f"successfully loaded checkpoint from {folder} at iteration {step}")
    _die_if_broken(options.faults, node, rank, before_first_step=True)
    link = _Link(
        rank, world, folder / f"port-{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    )
    noise = random.Random(1_000 * rank + step)
    while step < options.steps:
        began = time.monotonic()
        time.sleep(options.step_time)
        _die_if_broken(options.faults, node, rank, before_first_step=False, step=step + 1)
        gradient = _gradient(weights, noise)
        mean = link.mean(gradient)
        weights = [w - 0.1 * g for w, g in zip(weights, mean, strict=True)]
        step += 1
        if rank == 0:
            _report(step, options.steps, weights, time.monotonic() - began)
            if step % options.save_every == 0 or step == options.steps:
                _save(folder, step, weights)
        if options.eval_every and step % options.eval_every == 0:
            if rank == 0 and not options.eval_silently:
                _say(f"running evaluation at iteration {step}")
            time.sleep(options.eval_time)
    if rank == 0:
        _say("training finished")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-time", type=float, default=0.2, help="seconds")
    parser.add_argument("--save-every", type=int, default=5, help="steps")
    parser.add_argument("--eval-every", type=int, default=0, help="steps; 0: never")
    parser.add_argument("--eval-time", type=float, default=5.0, help="seconds")
    parser.add_argument("--eval-silently", action="store_true", help="print nothing about evaluations")
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--faults", required=True)
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, flush=True)


def _target(index: int) -> float:
    return (index + 1) / WEIGHTS


def _gradient(weights: list[float], noise: random.Random) -> list[float]:
    """Of the squared error of a linear model on one random sample."""
    sample = [noise.gauss(0, 1) for _ in weights]
    error = sum((w - _target(i)) * x for i, (w, x) in enumerate(zip(weights, sample, strict=True)))
    return [error * x for x in sample]


def _report(step: int, steps: int, weights: list[float], seconds: float) -> None:
    loss = sum((w - _target(i)) ** 2 for i, w in enumerate(weights)) / WEIGHTS
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    _say(
        f" [{stamp}] iteration {step:8d}/{steps:8d} | consumed samples: {step * 64:12d} | elapsed time per iteration "
        f"(ms): {seconds * 1000:.1f} | learning rate: 1.000E-01 | global batch size:    64 | lm loss: {loss:.6E} | "
        f"number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _load(folder: Path) -> tuple[int, list[float]]:
    try:
        step = int((folder / "latest_checkpointed_iteration.txt").read_text())
        saved = json.loads((folder / f"iter_{step:07d}.json").read_text())
    except FileNotFoundError:
        return 0, [0.0] * WEIGHTS
    return step, saved["weights"]


def _save(folder: Path, step: int, weights: list[float]) -> None:
    _say(f"saving checkpoint at iteration {step} to {folder}")
    _write(folder / f"iter_{step:07d}.json", json.dumps({"step": step, "weights": weights}))
    _write(folder / "latest_checkpointed_iteration.txt", str(step))
    _say(f"successfully saved checkpoint at iteration {step} to {folder}")


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".part")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def _die_if_broken(faults: str, node: str, rank: int, *, before_first_step: bool, step: int = 0) -> None:
    path = Path(faults) / node
    try:
        words = path.read_text().split()
    except FileNotFoundError:
        return
    kind = words[0] if words else "gpu"
    if kind == "import" and before_first_step:
        _complain(
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
            "    import megatron_corre\nModuleNotFoundError: No module named 'megatron_corre'\n"
        )
        sys.exit(1)
    if kind == "stall" and before_first_step:
        while True:
            time.sleep(60)
    if before_first_step:
        return
    if kind == "slow":
        time.sleep(float(words[1]))
    if kind == "memory" and step == int(words[2]):
        taken = bytearray(int(words[1]) << 20)
        time.sleep(60)
        del taken
    if kind == "gpu":
        _complain(
            f"[rank{rank}]: Traceback (most recent call last):\n"
            f'[rank{rank}]:   File "train.py", line 61, in main\n'
            f"[rank{rank}]:     loss.backward()\n"
            f"[rank{rank}]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        )
        sys.exit(1)
    if kind == "exit":
        sys.exit(int(words[1]))
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        while True:
            time.sleep(60)


def _complain(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


class _Link:
    """All-reduce through rank 0; a lost peer is reported as loudly as real libraries do."""

    def __init__(self, rank: int, world: int, port_file: Path) -> None:
        self.rank, self.world = rank, world
        self.peers: list[socket.socket] = []
        if rank == 0:
            server = socket.create_server(("127.0.0.1", 0))
            _write(port_file, str(server.getsockname()[1]))
            server.settimeout(60)
            for _ in range(world - 1):
                self.peers.append(server.accept()[0])
        else:
            self.peers.append(self._connect(port_file))

    def _connect(self, port_file: Path) -> socket.socket:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError, ValueError):
                return socket.create_connection(("127.0.0.1", int(port_file.read_text())), timeout=120)
            if time.monotonic() > deadline:
                _complain("torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients\n")
                sys.exit(1)
            time.sleep(0.1)

    def mean(self, values: list[float]) -> list[float]:
        try:
            return self._mean(values)
        except OSError:
            _complain(
                f"[rank{self.rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, "
                "remote process exited or there was a network error\n"
                f"[rank{self.rank}]: ncclRemoteError: A call failed possibly due to a network error or a remote "
                "process exiting prematurely.\n"
            )
            sys.exit(1)

    def _mean(self, values: list[float]) -> list[float]:
        form = struct.Struct(f"<{WEIGHTS}d")
        if self.rank != 0:
            self.peers[0].sendall(form.pack(*values))
            return list(form.unpack(self._receive(self.peers[0], form.size)))
        total = list(values)
        for peer in self.peers:
            for index, value in enumerate(form.unpack(self._receive(peer, form.size))):
                total[index] += value
        mean = [value / self.world for value in total]
        for peer in self.peers:
            peer.sendall(form.pack(*mean))
        return mean

    @staticmethod
    def _receive(peer: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = peer.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("peer closed")
            data += piece
        return data


if __name__ == "__main__":
    sys.exit(main())
