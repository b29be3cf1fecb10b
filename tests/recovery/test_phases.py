"""What a training announces beside its steps."""

from __future__ import annotations

import pytest

from recovery.pace import Phase
from recovery.phases import announced


@pytest.mark.parametrize(
    "line",
    [
        b"saving checkpoint at iteration    2000 to /ckpt/run7 in torch_dist format",
        b"[INFO|trainer.py:3410] >> Saving model checkpoint to ./out/checkpoint-500",
        b"[INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving ./ckpt/model_states.pt...",
        b"Starting to save the optimizer",
    ],
)
def test_a_save_that_begins(line: bytes) -> None:
    assert announced(line) is Phase.SAVE


@pytest.mark.parametrize(
    "line",
    [
        b"***** Running Evaluation *****",
        b"Evaluating on 1024 samples",
        b"Evaluating iter 3/10",
        b"running evaluation at iteration 200",
        b"Validation DataLoader 0:  10%|#  | 3/30",
        b"starting validation",
    ],
)
def test_an_evaluation_that_begins(line: bytes) -> None:
    assert announced(line) is Phase.EVAL


@pytest.mark.parametrize(
    "text",
    [
        b"saving checkpoint at iteration 5\n  successfully saved checkpoint at iteration 5 to /ckpt",
        b"Evaluating iter 10/10\n validation loss at iteration 200 | lm loss value: 2.1",
        b"running evaluation\nevaluation finished in 31 s",
        b"eval_loss: 2.1, eval accuracy 0.5",
    ],
)
def test_what_is_over_is_over(text: bytes) -> None:
    assert announced(text) is Phase.NONE


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"loading data",
        b"  eval_interval ................................... 1000",
        b"  save_interval ................................... 500",
        b"NCCL INFO Channel 00/02 : 0 1",
    ],
)
def test_other_text_announces_nothing(text: bytes) -> None:
    assert announced(text) is None


def test_the_last_word_counts() -> None:
    assert announced(b"successfully saved checkpoint at iteration 5\nEvaluating iter 1/10") is Phase.EVAL
    assert announced(b"evaluating\r10%\r20%\nsaving checkpoint at iteration 5") is Phase.SAVE
