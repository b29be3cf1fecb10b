"""Following a job's log: what its last new lines say, and when nobody can say anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activities.audit.records import Watched
from activities.sweep_cursor import SweepCursor
from activities.telemetry import logwatch
from activities.telemetry.joblog import LogCursor
from activities.telemetry.logwatch import LogLook, LogWatch
from activities.telemetry.store_feed import StoreFeed
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


def test_a_symptom_behind_the_last_step_is_told_once(log: Follower) -> None:
    assert log.prints(step(1)).new_faults == ()
    words = "[rank0]:[E630 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: "
    words += "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 ms\n"
    assert log.prints(words + step(2)).new_faults == ()
    (told,) = log.prints(words).new_faults
    assert told.startswith("nccl.watchdog")
    assert log.prints(words).new_faults == ()


class Fed:
    """Follows what a log store gives of one job, as the sweep does."""

    def __init__(self) -> None:
        self.watch = LogWatch(CATALOGUE)
        self.cursor = SweepCursor()
        self.progress = Progress(attempt=0)
        self.offset = 0

    def gives(self, text: str, *, late: str = "", trouble: str = "", asked: bool = True, own: str = "") -> LogLook:
        data = (late + text).encode()
        self.offset += len(data)
        cursor = LogCursor(path="store:1", inode=1, offset=self.offset, size=self.offset)
        feed = StoreFeed("store:1", data, cursor, trouble, None, asked=asked, late=len(late.encode()))
        return self.take(feed, own)

    def take(self, feed: StoreFeed | None, own: str = "") -> LogLook:
        dialect = own_dialect(own) if own else None
        look = self.watch.look_at_feed(feed, self.cursor, 0, self.progress, own=dialect)
        self.cursor, self.progress = look.cursor, look.progress
        return look


def test_a_store_tells_steps_and_faults_as_a_file_does() -> None:
    job = Fed()
    look = job.gives(steps(1, 5))
    assert (look.step, look.grew, look.readable, look.progress.step) == (5, True, True, 5)
    look = job.gives(lost(0))
    assert (look.step, look.readable) == (None, True)
    assert "net.connection_lost" in look.words
    assert job.gives("done=12 of many\n", own=r"done=(?P<step>\d+)").step == 12


def test_late_lines_say_nothing_of_how_it_goes_now() -> None:
    job = Fed()
    job.gives(steps(1, 9))
    look = job.gives("", late=steps(3, 4) + lost(0))
    assert (look.step, look.words, look.readable) == (None, (), True)
    assert job.gives(step(10), late=step(5)).step == 10
    assert job.gives("running evaluation at iteration 10\n", late=step(6)).phase is Phase.EVAL


def test_a_store_that_was_not_asked_or_has_not_answered_says_nothing() -> None:
    job = Fed()
    job.gives(step(1))
    for look in (job.take(None), job.gives("", asked=False)):
        assert (look.asked, look.changed) == (False, False)


def test_an_outage_is_no_silence_and_its_words_are_written_down_once() -> None:
    job = Fed()
    job.gives(step(1))
    look = job.gives("", trouble="blind: store:1: left alone for 9 s more")
    assert (look.readable, look.changed) == (False, True)
    look = job.gives("", trouble="blind: store:1: left alone for 7 s more", asked=False)
    assert (look.readable, look.asked, look.changed) == (False, True, False)
    assert job.gives(step(2)).cursor.note == ""
