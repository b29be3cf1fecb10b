"""Progress: completed steps and completed checkpoints, and nothing else."""

from __future__ import annotations

import pytest

from recovery.faults.blocks import BlockCutter
from recovery.progress import DialectError, ProgressReader, own_dialect
from tests.recovery.logs import NOW, saved, step, steps


def read(text: str | bytes, *, piece: int = 1 << 20, every: bool = False, own: str | None = None) -> ProgressReader:
    data = text.encode() if isinstance(text, str) else text
    reader = ProgressReader(own=own_dialect(own) if own else None)
    cutter = BlockCutter()
    for start in range(0, len(data), piece):
        for block in cutter.feed(data[start : start + piece]):
            reader.read(block, every=every)
    for block in cutter.finish():
        reader.read(block, every=every)
    return reader


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (step(8100), 8100),
        (" iteration     8100/   50000 | consumed samples: 1 | elapsed time per iteration (ms): 5211.4 |", 8100),
        ("0:  iteration     8100/   50000 | elapsed time per iteration (s): 5.2 | TFLOPs: 151.2", 8100),
        ("[default0]: iteration 12/ 50000 | loss: 1.0", 12),
        ("step 57 | loss 2.3311 | lr 3.0e-4", 57),
        ("iter 3436 step 53: loss 2.9911, iter time: 400.10ms", 53),
        ("[Rank 0] step=510, skipped=8, lr=[1e-4]", 510),
        ("step 6 step_time 458.59s throughput 2.11 seq/s loss 1.67 grad norm 10.1", 6),
        ("loss = 1.06, step = 80", 80),
        ("'global_step/max_steps': '185/619', 'loss': 1.2", 185),
        ("Step: 120/1000 train_loss=0.5 Loss: 0.5", 120),
        ("\x1b[32mstep 33\x1b[0m loss 1.5", 33),
        ("train:  45%|####5     | 9/20 [00:05<00:06,  1.71it/s, loss=7.1]", 9),
        ("Training: 3%|3 | 377/2724 [13:55:57<86:19:10, 132.41s/it]", 377),
        # Megatron-DeepSpeed
        (
            " iteration     8100/   50000 | consumed samples: 1 | elapsed time per iteration (s): 5.21 | learning rate:"
            " 3.0E-04 | samples per second: 98.2 | TFLOPs: 151.2 |",
            8100,
        ),
        # NeMo
        ("Training epoch 0, iteration 119/9999 | lr: 0.0003 | global_step: 119 | reduced_train_loss: 2.3", 119),
        (
            "Epoch 0:   6%|█▏        | 32040/500150 [6:28:43<94:39:17, 1.37it/s, v_num=1, reduced_train_loss=2.1,"
            " global_step=3.2e+4, consumed_samples=8.2e+6]",
            32040,
        ),
        ("Epoch 3:  50%|█████     | 500/1000 [01:00<01:00, 8.33it/s, v_num=1]", 3500),
        # Hugging Face Trainer: the loss has no step, the bar has
        ("{'loss': 2.0491, 'learning_rate': 5e-05, 'epoch': 0.28}\n 14%|█▍ | 377/2724 [13:55<86:19, 132.41s/it]", 377),
        ("{'loss': 1.2, 'global_step/max_steps': '185/619', 'percentage': '29.89%'}", 185),
        # DeepSpeed
        (
            "[2026-11-12 03:14:15,250] [INFO] [logging.py:96:log_dist] [Rank 0] step=510, skipped=8, lr=[1e-4], mom=0",
            510,
        ),
        # torchtune, litgpt, lit-llama, nanoGPT
        ("1|53|Loss: 2.9911: 12%|█▏        | 53/440 [02:01<14:46,  2.29s/it]", 53),
        ("Step 53 | loss:2.9911 lr:2e-05 tokens_per_second_per_gpu:3021.5", 53),
        ("Epoch 1 | iter 160 step 10 | loss train: 2.123, val: n/a | iter time: 300.10 ms (step)", 10),
        ("iter 100: loss 2.9911, time 400.10ms, mfu 32.50%", 100),
        # torchtitan, MaxText and other JAX trainers, fairseq, composer
        (
            "[rank0]:[titan] 2026-11-12 03:14:15,250 - root - INFO - step: 10  loss:  7.1  grad_norm:  1.2  tps: 3,000",
            10,
        ),
        ("completed step: 120, seconds: 1.234, TFLOP/s/device: 150.123, loss: 2.31", 120),
        ("I1112 03:14:15.250000 140 train.py:220] step 120 loss 2.31", 120),
        ('{"epoch": 1, "update": 0.2, "loss": "10.1", "ppl": "1000", "num_updates": "700", "lr": "1e-4"}', 700),
        ("[batch=99/3000]:", 99),
        ("7it [00:03,  2.1it/s]", 7),
        # the same behind the labels that launchers put before lines
        ("12:  iteration     8100/   50000 | elapsed time per iteration (ms): 5211.4 |", 8100),
        ("[rank7]: step 57 | loss 2.3311", 57),
        ("[1,12]<stdout>:step 57 | loss 2.3311", 57),
    ],
)
def test_a_completed_step_is_understood(line: str, expected: int) -> None:
    assert read(line + "\n").highest == expected


@pytest.mark.parametrize(
    "line",
    [
        "[before the start of training step] datetime: 2026-11-12 20:08:52",
        "save every 100 steps, log every 10 steps",
        "warmup_steps: 2000, lr: 3e-4",
        "--train-iters 50000 --eval-iters 10",
        "eval step 12 loss 2.2",
        "validation: step 9/10 loss 2.2",
        "resuming from step 400",
        " validation loss at iteration 1000 | lm loss value: 7.1",
        "iteration 12 starts",
        "Map: 100%|██████████| 5000/5000 [00:03<00:00, 1502.1it/s]",
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:10<00:10,  5.02s/it]",
        "Validation DataLoader 0:  50%|█████     | 2/4 [00:10<00:10,  5.02s/it]",
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 12.1it/s]",
        "Fetching 3 files:  33%|███▎      | 1/3 [00:01<00:02,  1.2s/it]",
        "iter_num: 0, max_iters: 600000",
        "num_updates is not set",
        "{'eval_loss': 2.04, 'eval_steps_per_second': 3.1, 'epoch': 0.28}",
        "  successfully loaded checkpoint from /ckpt at iteration 20",
    ],
)
def test_settings_evaluations_and_starts_are_no_steps(line: str) -> None:
    assert read(line + "\n").highest is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (saved(1200), 1200),
        ("  successfully saved checkpoint from iteration      10 to /ckpt [ t 1/1, p 1/1 ]", 10),
        ("INFO saved checkpoint to /ckpt/step_00000420", 420),
        ("Saved a checkpoint for step 77 in 3.1 s", 77),
        ("checkpoint saved: /ckpt/run/step=400.pt", 400),
        ("Checkpoint at step 90 is complete", 90),
        ("[Torch] Checkpoint global_step500 is ready now!", 500),
        ("Async checkpoint save for step 2000 (/ckpt/step=2000-last) finalized successfully.", 2000),
        ("I1112 03:14:15 checkpointing.py:12] saved a checkpoint at step 100", 100),
        ("Finished async save of checkpoint to /ckpt/run7/checkpoints/300", 300),
    ],
)
def test_a_completed_checkpoint_is_understood(line: str, expected: int) -> None:
    assert read(line + "\n").checkpoint == expected


@pytest.mark.parametrize(
    "line",
    [
        "saving checkpoint at iteration      20 to /ckpt in torch format",
        "Saving model checkpoint to /out/checkpoint-10",
        "loading checkpoint from /ckpt at iteration 20",
        "  successfully loaded checkpoint from /ckpt at iteration 20",
        "checkpoint interval: 100 steps",
        "failed to save checkpoint at step 20",
        "scheduled an async checkpoint save at iteration      20 to /ckpt",
        "Epoch 0, global step 100: 'val_loss' reached 2.1 (best 2.1), saving model to '/ckpt/epoch=0-step=100.ckpt'",
        "[Torch] Saving model checkpoint: /ckpt/global_step500/mp_rank_00_model_states.pt",
        "Deleting older checkpoint [/out/checkpoint-5] due to args.save_total_limit",
    ],
)
def test_a_checkpoint_that_is_only_begun_or_loaded_does_not_count(line: str) -> None:
    assert read(line + "\n").checkpoint is None


def test_first_last_and_highest_step_of_a_log() -> None:
    reader = read(steps(101, 140, total=200) + saved(120) + "shutting down\n")
    progress = reader.progress(3, at=NOW)
    assert (progress.attempt, progress.first_step, progress.step, progress.total_steps) == (3, 101, 140, 200)
    assert progress.checkpoint == 120
    assert progress.step_at == progress.first_step_at == progress.checkpoint_at == NOW


@pytest.mark.parametrize("piece", [100, 1_000, 50_000])
def test_the_same_progress_however_the_log_arrives(piece: int) -> None:
    text = steps(1, 60) + saved(60) + steps(61, 90)
    reader = read(text, piece=piece)
    assert reader.first is not None
    assert (reader.first.step, reader.highest, reader.checkpoint, reader.resumed) == (1, 90, 60, ())


def test_a_counter_that_jumps_back_is_a_resume() -> None:
    reader = read(steps(1, 27) + "restarted\n" + steps(21, 36), every=True)
    assert [mark.step for mark in reader.resumed] == [21]
    assert (reader.highest, reader.last and reader.last.step) == (36, 36)


def test_nothing_is_known_of_an_empty_log() -> None:
    progress = read("hello\n").progress(0, at=NOW)
    assert (progress.first_step, progress.step, progress.step_at, progress.checkpoint_at) == (None, None, None, None)


def test_evaluation_bars_do_not_count_where_real_steps_are_told() -> None:
    text = steps(1, 5) + "".join(f"eval:  1%|  | {n}/9000 [00:01<00:06, 9.1it/s]\r" for n in range(1, 900)) + "\n"
    assert read(text).highest == 5
    assert read(text, piece=3_000).highest == 5


def test_a_step_on_the_border_of_two_pieces_is_read_once_whole() -> None:
    data = steps(1, 10).encode()
    reader = ProgressReader()
    cutter = BlockCutter()
    for block in [*cutter.feed(data[:-50]), *cutter.feed(data[-50:])]:
        reader.read(block, every=True)
    assert [mark.step for mark in reader.marks] == list(range(1, 11))


def bar(step: int, total: int, name: str = "") -> str:
    return f"{name}{100 * step // total:3d}%|#### | {step}/{total} [00:05<00:06,  1.71it/s]\r"


def test_a_save_that_holds_the_training_up_is_done_when_a_later_step_is() -> None:
    """As Hugging Face's Trainer saves: it tells only the beginning."""
    begun = "Saving model checkpoint to /out/checkpoint-10\n"
    assert read(bar(10, 40) + "\n" + begun).checkpoint is None
    assert read(bar(10, 40) + "\n" + begun + bar(11, 40)).checkpoint == 10
    assert read(bar(10, 40) + "\n" + begun + bar(11, 40), piece=40).checkpoint == 10
    assert read(bar(10, 40) + "\n" + begun + bar(20, 40) + "\n" + begun.replace("-10", "-20")).checkpoint == 10


def test_a_bar_is_drawn_over_and_over_in_one_line() -> None:
    reader = read("".join(bar(number, 400) for number in range(1, 301)))
    assert (reader.highest, reader.total) == (300, 400)
    assert read("".join(bar(number, 400) for number in range(1, 301)), every=True).first == reader.first


def test_the_bar_of_an_evaluation_in_between_does_not_count() -> None:
    evaluation = "".join(bar(number, 20) for number in range(1, 21))
    assert read(bar(377, 2724) + evaluation + bar(378, 2724), every=True).highest == 378
    assert read(bar(377, 2724) + evaluation).highest == 377
    assert read(bar(2724, 2724) + evaluation).highest == 2724


def test_a_bar_that_goes_before_the_training_does_not_count() -> None:
    before = "".join(bar(number, 100) for number in range(1, 101))
    reader = read(before + bar(1, 60) + bar(2, 60), every=True)
    assert (reader.highest, reader.total) == (2, 60)


def test_a_bar_whose_end_was_not_seen_does_not_hide_the_trainings_for_ever() -> None:
    training = "".join(bar(number, 3000) for number in range(1, 3001))
    reader = read(bar(1, 9000) + training, piece=20_000)
    assert (reader.highest, reader.total) == (3000, 3000)


def test_windows_line_ends_and_colours_are_understood() -> None:
    text = "".join(f"\x1b[32mstep {number}\x1b[0m loss 1.5\r\n" for number in range(1, 8))
    reader = read(text, every=True)
    assert [mark.step for mark in reader.marks] == list(range(1, 8))
    assert [text.encode()[mark.offset :].startswith(b"\x1b[32mstep") for mark in reader.marks] == [True] * 7


def test_a_log_that_tells_no_steps_costs_little_and_tells_nothing() -> None:
    reader = read("nothing of interest in step with anything\n" * 30_000)
    assert (reader.highest, list(reader.marks)) == (None, [])


def test_the_last_steps_of_a_log_are_remembered_by_place() -> None:
    text = steps(1, 4_000)
    reader = read(text)
    reader.finish()
    assert [mark.step for mark in reader.marks][-3:] == [3_998, 3_999, 4_000]
    places = [text.encode()[mark.offset :].split(b"iteration")[1].split(b"/")[0].strip() for mark in reader.marks]
    assert [int(place) for place in places] == [mark.step for mark in reader.marks]


def test_a_jobs_own_expression_is_used_instead() -> None:
    text = "epoch 3 batch 17 ok\nstep 999 loss 1.0\nepoch 3 batch 18 ok\n"
    assert read(text, own=r"batch (?P<step>\d+) ok").highest == 18


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"batch (\d+)", "no group named step"),
        (r"batch (?P<step>\d+)(?= ok)", "not understood by RE2"),
        ("(?P<step>", "not understood by RE2"),
        ("é" * 10 + "☃(?P<step>1)", "not understood by RE2"),
        ("a" * 513, "at most 512"),
    ],
)
def test_an_unusable_expression_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(DialectError, match=reason):
        own_dialect(text)


def test_an_expression_that_would_blow_up_elsewhere_is_linear_here() -> None:
    text = "x" * 200_000 + "\n" + "x" * 40 + "y7\n"
    assert read(text, own=r"(?:x+x+)+y(?P<step>\d+)").highest == 7


@pytest.mark.parametrize("value", ["", "many", "99999999999999999999", "-4"])
def test_what_is_no_number_is_no_step(value: str) -> None:
    assert read(f"batch {value}\n", own=r"batch (?P<step>\S*)$").highest is None
