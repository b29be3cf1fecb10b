"""Following a job's log: what its last new lines say, and when nobody can say anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activities.audit.records import Watched
from activities.sweep_cursor import SweepCursor
from activities.telemetry import logwatch
from activities.telemetry.logwatch import LogLook, LogWatch
from recovery.faults.catalogue import Catalogue
from recovery.pace import Phase
from recovery.progress import own_dialect
from recovery.records import Progress
from tests.recovery.logs import lost, saved, step, steps

CATALOGUE = Catalogue.built_in()


class Follower:
    """Follows one log as the sweep does."""

    def __init__(self, path: Path, *, stderr: str = "", own: str = "") -> None:
        self.path = path
        self.row = Watched(
            cluster="prod", job_id="1", life_id=1, uid=os.getuid(), stdout=str(path), stderr=stderr or str(path)
        )
        self.watch = LogWatch(CATALOGUE)
        self.cursor = SweepCursor()
        self.progress = Progress(attempt=0)
        self.own = own_dialect(own) if own else None

    def prints(self, text: str) -> LogLook:
        with self.path.open("a") as file:
            file.write(text)
        return self.look()

    def look(self) -> LogLook:
        look = self.watch.look(self.row, self.cursor, 0, self.progress, own=self.own)
        self.cursor, self.progress = look.cursor, look.progress
        return look


@pytest.fixture
def log(tmp_path: Path) -> Follower:
    return Follower(tmp_path / "job.out")


def test_the_last_new_step_is_told_even_when_the_counter_jumped_back(log: Follower) -> None:
    assert log.prints(steps(1, 5)).step == 5
    look = log.prints(steps(3, 4))
    assert look.step == 4
    assert look.progress.step == 5


def test_without_new_lines_nothing_is_new_and_nothing_changed(log: Follower) -> None:
    log.prints(steps(1, 5))
    look = log.look()
    assert (look.step, look.grew, look.changed, look.readable) == (None, False, False, True)


def test_faults_count_as_told_only_behind_the_last_step(log: Follower) -> None:
    assert "net.connection_lost" in log.prints(step(1) + lost(0)).words
    assert log.prints(lost(0) + step(2)).words == ()
    assert "net.connection_lost" in log.prints(lost(0)).words


def test_what_is_announced_behind_the_last_step_is_told(log: Follower) -> None:
    assert log.prints(step(1) + "saving checkpoint at iteration 1\n").phase is Phase.SAVE
    assert log.prints(saved(1)).phase is Phase.NONE
    assert log.prints("running evaluation at iteration 1\n").phase is Phase.EVAL
    assert log.prints("nothing special\n").phase is None
    assert log.prints("evaluating\n" + step(2)).phase is None


def test_a_log_that_vanished_or_never_came_is_not_readable(log: Follower) -> None:
    assert not log.look().readable
    log.prints(step(1))
    assert log.look().readable
    log.path.unlink()
    look = log.look()
    assert (look.readable, look.step) == (False, None)


def test_a_second_file_that_never_came_does_not_hide_the_first(tmp_path: Path) -> None:
    log = Follower(tmp_path / "job.out", stderr=str(tmp_path / "job.err"))
    assert log.prints(step(1)).readable


def test_a_second_file_that_vanished_makes_blind(tmp_path: Path) -> None:
    log = Follower(tmp_path / "job.out", stderr=str(tmp_path / "job.err"))
    (tmp_path / "job.err").write_text("hello\n")
    log.prints(step(1))
    (tmp_path / "job.err").unlink()
    assert not log.look().readable


def test_while_much_is_unread_nothing_is_known(log: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logwatch, "READ_BYTES", 1 << 20)
    look = log.prints("x" * 99 + "\n" + ("y" * 1023 + "\n") * 3000 + step(7))
    assert (look.readable, look.step) == (False, None)
    looks = [log.look() for _ in range(4)]
    assert [one.step for one in looks].count(7) == 1
    assert looks[-1].readable


def test_a_job_may_say_itself_how_its_steps_are_written(tmp_path: Path) -> None:
    log = Follower(tmp_path / "job.out", own=r"done=(?P<step>\d+)")
    assert log.prints("done=12 of many\n").step == 12
