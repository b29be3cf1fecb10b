"""Slurm's file name patterns."""

from __future__ import annotations

import pytest

from activities.telemetry.output_path import expand_output_path, output_paths
from recovery.records import JobView
from tests.recovery.logs import NODES, view


def job(**more: object) -> JobView:
    changes = {"name": "llm", "work_dir": "/home/alice", "batch_host": "n01.cluster.local", "num_cpus": 2, **more}
    return view().model_copy(update=changes)


ARRAY = job(raw_id=4720, array_job_id=4711, array_task_id=3, job_id="4711_3")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("/logs/%x-%j.out", "/logs/llm-4711.out"),
        ("slurm-%j.out", "/home/alice/slurm-4711.out"),
        ("%u/%x.log", "/home/alice/alice/llm.log"),
        ("/l/%A_%a", "/l/4711_4294967294"),
        ("/l/%J.%s.%t.%n", "/l/4711.batch.0.0"),
        ("/l/%N", "/l/n01"),
        ("/l/%8j-%4t", "/l/00004711-0000"),
        ("/l/%99j", "/l/0000004711"),
        ("/l/%6x-%6u-%6N", "/l/llm-alice-n01"),
        ("/l/100%%-%%j", "/l/100%-%j"),
        ("/l/%q-%", "/l/%q-%"),
        ("/l/\\%x-%j", "/l/%x-%j"),
        ("/l/plain.log", "/l/plain.log"),
    ],
)
def test_a_pattern_is_expanded_as_slurm_does(pattern: str, expected: str) -> None:
    assert expand_output_path(pattern, job()) == expected


def test_an_array_task_has_two_numbers() -> None:
    assert expand_output_path("/l/%A_%a.%j", ARRAY) == "/l/4711_3.4720"
    assert expand_output_path("/l/%4a", ARRAY) == "/l/0003"


def test_what_a_name_holds_is_not_expanded_again() -> None:
    assert expand_output_path("/l/%x", job(name="%j%u\n../x")) == "/l/%j%u\n../x"


def test_each_node_or_task_has_its_own_file() -> None:
    assert output_paths("/l/%N.log", job()) == tuple(f"/l/{node}.log" for node in NODES)
    assert output_paths("/l/%n-%N.log", job())[3] == "/l/3-n04.log"
    assert output_paths("/l/%t.log", job()) == ("/l/0.log", "/l/1.log")
    assert len(output_paths("/l/%t-%N.log", job())) == 8
    assert output_paths("/l/%j.log", job()) == ("/l/4711.log",)


def test_a_backslash_leaves_one_file() -> None:
    assert output_paths("/l/\\%t-%N.log", job()) == ("/l/%t-%N.log",)


def test_a_job_without_nodes_has_the_file_of_its_batch_host() -> None:
    assert output_paths("/l/%N.log", job(nodes=())) == ("/l/n01.log",)


def test_the_number_of_files_is_bounded() -> None:
    wide = job(nodes=tuple(f"n{number:04d}" for number in range(3_000)), num_cpus=10_000)
    assert len(output_paths("/l/%t-%N.log", wide)) == 64
