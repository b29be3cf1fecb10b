"""Expands Slurm's file name patterns (%x %j %A …) to the paths that a job writes to.

scontrol mostly shows them expanded already; what it leaves is expanded here, as sbatch(1) "filename pattern" says.
Nothing is opened here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import re2

from recovery.records import JobView

FILES = 64
"""Most files of one pattern that are looked for, where each task or node writes its own."""

_PATTERN = re2.compile(r"%(\d*)([%AaJjNnstux])")
_NUMBERS = frozenset("AajJnst")


def expand_output_path(pattern: str, view: JobView, *, node: str = "", node_rank: int = 0, task: int = 0) -> str:
    """The path for one node and task. Relative ones lie in the job's working folder.

    A backslash anywhere turns expansion off, as Slurm does; `%4j` pads with zeros. Without `node`, the batch host.
    """
    if "\\" in pattern:
        return os.path.join(view.work_dir, pattern.replace("\\", ""))
    host = (node or view.batch_host).split(".", 1)[0]
    words: Mapping[str, str] = {
        "A": str(view.array_job_id if view.array_job_id is not None else view.raw_id),
        # Slurm's "no value" where the job is no array task.
        "a": str(view.array_task_id if view.array_task_id is not None else 4294967294),
        "J": str(view.raw_id),
        "j": str(view.raw_id),
        "N": host,
        "n": str(node_rank),
        "s": "batch",
        "t": str(task),
        "u": view.user,
        "x": view.name,
        "%": "%",
    }
    pieces: list[str] = []
    end = 0
    for match in _PATTERN.finditer(pattern):
        width, letter = match.group(1), match.group(2)
        word = words[letter]
        if width and letter in _NUMBERS and word.isdecimal():
            word = word.zfill(min(int(width[:3]), 10))  # Slurm pads to 10 digits at most
        pieces += [pattern[end : match.start()], word]
        end = match.end()
    return os.path.join(view.work_dir, "".join(pieces) + pattern[end:])


def output_paths(pattern: str, view: JobView) -> tuple[str, ...]:
    """All files that a pattern may stand for: one, or one for each node or task, at most 64."""
    letters = set() if "\\" in pattern else {match.group(2) for match in _PATTERN.finditer(pattern)}
    nodes = list(enumerate(view.nodes))[:FILES] if letters & {"N", "n"} else [(0, "")]
    tasks = range(min(max(view.num_cpus, 1), FILES)) if "t" in letters else range(1)
    paths = (
        expand_output_path(pattern, view, node=node, node_rank=rank, task=task)
        for task in tasks
        for rank, node in nodes or [(0, "")]
    )
    return tuple(dict.fromkeys(paths))[:FILES]
