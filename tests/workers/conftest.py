"""One configuration per test: an audit store in SQLite, one cluster, no environment of the machine's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.cli import main


class Run:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Relight = Callable[..., Run]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("RELIGHT_", "TEMPORAL_")) or name == "SUDO_USER":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # Temporal's own configuration file lives below it
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("workers.settings.PLACES", (tmp_path / "etc" / "relight.yaml", Path("relight.yaml")))


@pytest.fixture
def relight(capsys: pytest.CaptureFixture[str]) -> Relight:
    return runner(capsys)


def runner(capsys: pytest.CaptureFixture[str]) -> Relight:
    """Runs `relight WORDS…` in this process."""

    def run(*words: str) -> Run:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return Run(code, printed.out, printed.err)

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "relight.yaml"
    path.write_text(f"database: {{url: 'sqlite:///{tmp_path}/audit.db'}}\nclusters: {{prod: {{}}}}\n")
    return path
