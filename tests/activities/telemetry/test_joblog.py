"""Reading job files: what a job's owner may put where its log should be."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from activities.telemetry.joblog import LogCursor, job_files, read_attempt, read_new, save_tail
from recovery.records import JobView
from tests.recovery.logs import view

ME = os.getuid()


def job(out: Path | str, err: Path | str = "", **more: object) -> JobView:
    changes = {"stdout": str(out), "stderr": str(err), "work_dir": "/", **more}
    return view(uid=ME).model_copy(update=changes)


def look(path: Path, cursor: LogCursor | None = None, **more: int | bool) -> tuple[bytes, LogCursor, str]:
    return read_new(str(path), cursor, ME, **more)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ what is new


def test_only_new_and_whole_lines_are_read(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"one\ntwo\nthr")
    first, cursor, note = look(log)
    assert (first, note, cursor.offset, cursor.line, cursor.behind) == (b"one\ntwo\n", "", 8, 3, 3)
    assert look(log, cursor)[0] == b""
    with log.open("ab") as file:
        file.write(b"ee\nfour\n")
    second, cursor, _ = look(log, cursor)
    assert (second, cursor.line, cursor.behind) == (b"three\nfour\n", 5, 0)
    assert look(log, cursor)[0] == b""


def test_a_cursor_survives_as_json_and_is_small(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"one\n")
    _, cursor, _ = look(log)
    text = cursor.model_dump_json()
    assert len(text) < 1_000
    again = LogCursor.model_validate_json(text)
    with log.open("ab") as file:
        file.write(b"two\n")
    assert look(log, again)[0] == b"two\n"


def test_a_lot_is_read_in_portions(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(1_000)))
    cursor: LogCursor | None = None
    portions = []
    while True:
        data, cursor, _ = look(log, cursor, max_bytes=1_000)
        if not data:
            break
        assert len(data) <= 1_000
        portions.append(data)
    assert b"".join(portions) == log.read_bytes()
    assert cursor.line == 1_001


def test_a_truncated_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"first attempt, quite long\n")
    _, cursor, _ = look(log)
    log.write_bytes(b"second\n")  # as a restart does
    data, cursor, note = look(log, cursor)
    assert (data, cursor.line) == (b"second\n", 2)
    assert "truncated or replaced" in note


def test_a_rewritten_file_is_recognised_even_when_it_has_become_longer(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"first\n")
    _, cursor, _ = look(log)
    log.write_bytes(b"other\nand much longer than before\n")
    assert look(log, cursor)[0] == log.read_bytes()


def test_a_rotated_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"old\n")
    _, cursor, _ = look(log)
    log.rename(tmp_path / "job.log.1")
    log.write_bytes(b"new file\n")
    assert look(log, cursor)[0] == b"new file\n"


def test_an_endless_line_does_not_stop_the_reading(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"x" * 50_000)
    data, cursor, _ = look(log, max_bytes=10_000)
    assert len(data) == 10_000
    assert look(log, cursor, max_bytes=10_000)[0] == b"x" * 10_000


def test_a_progress_bar_without_newlines_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"10%\r20%\r30")
    data, cursor, _ = look(log)
    assert (data, cursor.line) == (b"10%\r20%\r", 1)


def test_a_log_that_grows_too_fast_is_skipped_ahead_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.telemetry.joblog.BACKLOG_BYTES", 1_000)
    log = tmp_path / "job.log"
    log.write_bytes(b"0123456789abcde\n" * 1_000)
    data, _, note = look(log)
    assert len(data) <= 1_000
    assert "15000 bytes skipped" in note


# ------------------------------------------------------------------------------------------------ attempts


def test_in_append_mode_an_attempt_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"attempt 0\nCUDA error\n")
    _, cursor, _ = look(log, attempt=0)
    with log.open("ab") as file:
        file.write(b"last words of 0\n")
    _, cursor, _ = look(log, cursor, attempt=1, waiting=True)  # requeued, not started yet
    with log.open("ab") as file:
        file.write(b"attempt 1\n")
    _, cursor, _ = look(log, cursor, attempt=1)
    again = read_attempt(job(log, restarts=1), cursors={str(log): cursor})
    assert [part.data for part in again.parts] == [b"attempt 1\n"]


def test_a_restart_that_truncates_begins_the_attempt_at_the_beginning(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"attempt 0\n" * 50)
    _, cursor, _ = look(log, attempt=0)
    _, cursor, _ = look(log, cursor, attempt=1, waiting=True)
    log.write_bytes(b"attempt 1\n")
    _, cursor, _ = look(log, cursor, attempt=1)
    assert cursor.begin == 0
    log.write_bytes(b"attempt 2, never seen waiting\n")
    _, cursor, _ = look(log, cursor, attempt=2)
    assert cursor.begin == 0
    again = read_attempt(job(log, restarts=2), cursors={str(log): cursor})
    assert [part.data for part in again.parts] == [log.read_bytes()]


def test_a_new_attempt_that_no_look_has_seen_begins_behind_what_was_read(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"attempt 0\n")
    _, cursor, _ = look(log, attempt=0)
    with log.open("ab") as file:
        file.write(b"attempt 1\n")
    assert read_attempt(job(log, restarts=1), cursors={str(log): cursor}).parts[0].data == b"attempt 1\n"


def test_a_cursor_of_a_rewritten_file_is_not_trusted(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"attempt 0\n")
    _, cursor, _ = look(log, attempt=0)
    log.write_bytes(b"attempt 1 and more\n")
    assert read_attempt(job(log, restarts=1), cursors={str(log): cursor}).parts[0].data == b"attempt 1 and more\n"


def test_stdout_and_stderr_are_read_once_each(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_bytes(b"out\n")
    err.write_bytes(b"err\n")
    assert [part.data for part in read_attempt(job(out, err)).parts] == [b"out\n", b"err\n"]
    assert [part.data for part in read_attempt(job(out, out)).parts] == [b"out\n"]
    assert b"".join(read_attempt(job(out)).parts[0].chunks(2)) == b"out\n"


def test_of_a_long_log_the_end_is_read_from_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"".join(b"line %05d\n" % number for number in range(1_000)))
    found = read_attempt(job(log), max_bytes=105)
    (part,) = found.parts
    assert part.data.startswith(b"line 00991\n")
    assert part.data.endswith(b"line 00999\n")
    assert log.read_bytes()[part.offset :] == part.data
    assert "only the last" in found.notes[0]


def test_a_job_without_output_file_is_blind() -> None:
    found = read_attempt(job(""))
    assert found.blind
    assert found.notes == ("blind: the scheduler names no output file",)


def test_files_of_tasks_are_read_and_missing_ones_not_told(tmp_path: Path) -> None:
    for task in (0, 1):
        (tmp_path / f"run-{task}.log").write_bytes(b"task %d\n" % task)
    found = read_attempt(job(tmp_path / "run-%t.log", num_cpus=8))
    assert [part.data for part in found.parts] == [b"task 0\n", b"task 1\n"]
    assert found.notes == ()


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    assert len(job_files(job(tmp_path / "%t.%N.log", num_cpus=100_000))) == 64


# ------------------------------------------------------------------------------------------------ what may lie there


def _missing(path: Path) -> None:
    return


def _folder(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(str(path))


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("gone"))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


CASES = [
    (_missing, "does not exist"),
    (_folder, "is a folder"),
    (_fifo, "is a FIFO"),
    (_socket, "is a socket"),
    (_loop, "is a loop of links"),
    (_nowhere, "does not exist"),
    (_device, "is a device"),
]


@pytest.mark.parametrize(("make", "reason"), CASES, ids=[make.__name__.strip("_") for make, _ in CASES])
def test_what_is_no_file_gives_a_note_and_never_blocks(tmp_path: Path, make: object, reason: str) -> None:
    path = tmp_path / "job.log"
    make(path)  # type: ignore[operator]
    data, cursor, note = look(path)
    assert (data, cursor.offset) == (b"", 0)
    assert note.startswith("blind: ")
    assert reason in note
    found = read_attempt(job(path))
    assert found.blind
    assert reason in found.notes[0]
    (kept,) = save_tail([str(path)], tmp_path / "kept", uid=ME)
    assert reason in kept


@pytest.mark.parametrize("path", ["", "bad\0name", "/x" * 5_000])
def test_what_is_no_path_gives_a_note(path: str) -> None:
    assert read_new(path, None, ME)[2].startswith("blind: ")


def test_a_file_under_a_file_gives_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert look(tmp_path / "file" / "job.log")[2].startswith("blind: ")


def test_a_deleted_log_is_told_and_read_again_when_it_is_back(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"one\n")
    _, cursor, _ = look(log)
    log.unlink()
    data, cursor, note = look(log, cursor)
    assert (data, note.startswith("blind: ")) == (b"", True)
    log.write_bytes(b"back\n")
    assert look(log, cursor)[0] == b"back\n"


def test_somebody_elses_file_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"root's own\n")
    (tmp_path / "job.log").symlink_to(secret)
    data, _, note = read_new(str(tmp_path / "job.log"), None, ME + 1)
    assert data == b""
    assert f"belongs to uid {ME}, not to the job's owner, uid {ME + 1}" in note
    assert read_attempt(job(tmp_path / "job.log", uid=ME + 1)).blind
    assert read_new(str(secret), None, ME + 1, any_owner=True)[0] == b"root's own\n"


def test_an_unknown_owner_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"one\n")
    assert "owner is not known" in read_new(str(log), None, -1)[2]
    assert read_new(str(log), None, -1, any_owner=True)[0] == b"one\n"


UNREADABLE = """
import os, sys
from activities.telemetry.joblog import read_new
os.setuid(65534)
print(read_new(sys.argv[1], None, 65534)[2])
"""


def test_a_file_that_may_not_be_read_gives_a_note(tmp_path: Path) -> None:
    if ME == 0:
        # Root may read everything: ask as somebody else, on a file that somebody else owns but may not read.
        log = Path(tempfile.gettempdir()) / f"unreadable-{os.getpid()}.log"
        log.write_bytes(b"secret\n")
        os.chown(log, 65534, 65534)
        log.chmod(0)
        try:
            shown = subprocess.run(
                [sys.executable, "-c", UNREADABLE, str(log)], capture_output=True, text=True, timeout=60, check=True
            ).stdout
        finally:
            log.unlink()
    else:
        log = tmp_path / "job.log"
        log.write_bytes(b"secret\n")
        log.chmod(0)
        shown = look(log)[2]
    assert "may not be read by relight's account" in shown


def test_a_name_that_is_no_text_is_shown_and_not_raised(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xff\xfe.log")
    note = read_new(name, None, ME)[2]
    assert note.encode("utf-8")
    assert "does not exist" in note
    Path(name).write_bytes(b"one\n")
    data, cursor, _ = read_new(name, None, ME)
    assert data == b"one\n"
    assert cursor.line == 2


# ------------------------------------------------------------------------------------------------ evidence


def test_the_end_of_a_log_is_kept_for_the_service_account_only(tmp_path: Path) -> None:
    out, err = tmp_path / "job.log", tmp_path / "job.err"
    out.write_bytes(b"a" * 500 + b"THE END")
    err.write_bytes(b"boom\n")
    folder = tmp_path / "kept" / "attempt-0"
    assert save_tail([str(out), str(err), str(out)], folder, uid=ME, max_bytes=100) == ()
    kept = sorted(folder.iterdir())
    assert [path.name for path in kept] == ["0-job.log.tail", "1-job.err.tail"]
    assert kept[0].read_bytes() == b"a" * 93 + b"THE END"
    assert [path.stat().st_mode & 0o777 for path in [folder, *kept]] == [0o700, 0o600, 0o600]


def test_keeping_it_twice_replaces_what_was_kept(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    for text in (b"first\n", b"second\n"):
        log.write_bytes(text)
        save_tail([str(log)], tmp_path / "kept", uid=ME)
    assert [path.read_bytes() for path in (tmp_path / "kept").iterdir()] == [b"second\n"]


def test_a_folder_that_cannot_be_written_gives_a_note(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"one\n")
    (tmp_path / "kept").write_bytes(b"a file is in the way")
    (note,) = save_tail([str(log)], tmp_path / "kept", uid=ME)
    assert "could not be kept" in note
