"""A healthy Megatron-LM log of any size: step lines, saves, evaluations. The same bytes each time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SAVE_EVERY = 500
EVALUATE_EVERY = 1_000
AT_ONCE = 10_000
TOTAL = 50_000_000

_START = """using world size: 1024, data-parallel size: 64, tensor-model-parallel size: 8
------------------------ arguments ------------------------
  accumulate_allreduce_grads_in_fp32 .............. True
  distributed_timeout_minutes ..................... 10
  error_injection_rate ............................ 0
  timing_log_level ................................ 0
-------------------- end of arguments ---------------------
 > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 2187612160
[before the start of training step] datetime: 2026-11-12 00:00:00
"""


def write(path: Path, megabytes: int) -> int:
    """Writes the log; returns its size in bytes."""
    left = megabytes * 1_000_000
    size = 0
    with path.open("wb") as file:
        for text in _pieces():
            piece = text.encode()
            if len(piece) > left - size:
                piece = piece[: piece.rfind(b"\n", 0, left - size) + 1]
            size += file.write(piece)
            if size >= left - len(text) // AT_ONCE * 2:
                return size
    return size


def _pieces() -> Iterator[str]:
    yield _START
    step = 0
    while True:
        lines = []
        for _ in range(AT_ONCE):
            step += 1
            lines.append(_step(step))
            if step % SAVE_EVERY == 0:
                lines.append(f"saving checkpoint at iteration {step:7d} to /ckpt/run7 in torch_dist format\n")
                lines.append(
                    f"  successfully saved checkpoint from iteration {step:7d} to /ckpt/run7 [ t 1/8, p 1/2 ]\n"
                )
            if step % EVALUATE_EVERY == 0:
                loss = 7.8 / (1 + step / 1e5)
                lines.append("-" * 100 + "\n")
                lines.append(
                    f" validation loss at iteration {step} | lm loss value: {loss:.6E} | lm loss PPL: 1.2E+01 |\n"
                )
                lines.append("-" * 100 + "\n")
        yield "".join(lines)


def _step(step: int) -> str:
    day, second = divmod(step * 5, 86_400)
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    took = 5200 + step * 7919 % 97 / 10
    return (
        f" [2026-{1 + day // 28 % 12:02d}-{1 + day % 28:02d} {clock}] iteration {step:8d}/{TOTAL:8d} |"
        f" consumed samples: {step * 512:12d} | elapsed time per iteration (ms): {took:.1f} |"
        f" throughput per GPU (TFLOP/s/GPU): {400 + step * 31 % 40 / 10:.1f} |"
        f" learning rate: {3e-4 * (1 - step / TOTAL):.6E} | global batch size:   512 |"
        f" lm loss: {7.8 / (1 + step / 1e5):.6E} | loss scale: 1.0 | grad norm: {0.4 + step * 17 % 100 / 1000:.3f} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )
