"""Which checkpoint in a job's own folder counts: completed, of this attempt, and only what its user could see."""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.telemetry import checkpoints
from activities.telemetry.checkpoints import Found, newest_checkpoint, step_of

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ME = os.getuid()


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def put(path: Path, seconds: float, text: str = "weights") -> Path:
    """A file that was last written so many seconds after the attempt began."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    for one in (path, path.parent):
        os.utime(one, (at(seconds).timestamp(),) * 2)
    return path


def look(folder: Path, *, uid: int = ME, since: float = 0, until: float = 600) -> Found:
    return newest_checkpoint(str(folder), uid, since=at(since), until=at(until))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("iter_0001000", 1000),
        ("global_step50", 50),
        ("checkpoint-300", 300),
        ("epoch=1-step=20.ckpt", 20),
        ("ckpt_400.pt", 400),
        ("model_step_12.safetensors", 12),
        ("400", 400),
        ("step-7", 7),
        ("llama-iter-90-final.pt", 90),
        ("checkpoint-300.tmp", None),
        ("tmp-checkpoint-10", None),
        (".step-8", None),
        ("step-9.orbax-checkpoint-tmp-123", None),
        ("last.ckpt", None),
        ("events.out.tfevents.1772366400", None),
        ("config.json", None),
        ("footstep", None),
    ],
)
def test_the_step_is_read_from_the_names_that_frameworks_give(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_the_newest_completed_checkpoint_counts(tmp_path: Path) -> None:
    put(tmp_path / "ckpt_100.pt", 100)
    put(tmp_path / "ckpt_200.pt", 200)
    assert look(tmp_path) == Found(200, at(200))


def test_one_that_was_being_written_when_the_attempt_ended_does_not_count(tmp_path: Path) -> None:
    put(tmp_path / "ckpt_100.pt", 595)
    put(tmp_path / "ckpt_200.pt", 599)
    assert look(tmp_path) == Found(100, at(595))  # a later one was begun, so this one was complete


def test_an_empty_file_or_folder_is_no_checkpoint(tmp_path: Path) -> None:
    put(tmp_path / "ckpt_100.pt", 100, text="")
    (tmp_path / "step-200").mkdir()
    assert look(tmp_path).step is None


@pytest.mark.parametrize("mark", [".metadata", "trainer_state.json", "commit_success.txt"])
def test_a_folder_with_a_mark_of_completion_counts_at_once(tmp_path: Path, mark: str) -> None:
    put(tmp_path / "step-100" / "shard-0", 599)
    assert look(tmp_path).step is None
    put(tmp_path / "step-100" / mark, 599)
    assert look(tmp_path).step == 100


@pytest.mark.parametrize(
    ("name", "text", "step"),
    [
        ("latest_checkpointed_iteration.txt", "100\n", 100),
        ("latest", "global_step100", 100),
        ("latest_checkpointed_iteration.txt", "release", 200),
    ],
)
def test_the_frameworks_own_mark_names_the_last_completed_one(tmp_path: Path, name: str, text: str, step: int) -> None:
    put(tmp_path / "iter_0000100" / "shard", 100)
    put(tmp_path / "global_step100" / "shard", 100)
    put(tmp_path / "iter_0000200" / "shard", 300)
    put(tmp_path / name, 301, text)
    assert look(tmp_path).step == step


def test_a_checkpoint_of_an_earlier_attempt_is_no_progress_of_this_one(tmp_path: Path) -> None:
    put(tmp_path / "ckpt_900.pt", -50)
    put(tmp_path / "ckpt_100.pt", 100)
    assert look(tmp_path).step == 100


def test_no_link_inside_is_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere / "shard", 100)
    put(elsewhere / "ckpt_900.pt", 100)
    folder = tmp_path / "run"
    put(folder / "ckpt_1.pt", 100)
    (folder / "ckpt_900.pt").symlink_to(elsewhere / "ckpt_900.pt")
    (folder / "step-901").symlink_to(elsewhere)
    (folder / "latest").symlink_to(elsewhere / "ckpt_900.pt")
    assert look(folder).step == 1


def test_links_on_the_way_are_resolved_as_sites_have_them(tmp_path: Path) -> None:
    put(tmp_path / "fs" / "run" / "ckpt_5.pt", 100)
    (tmp_path / "ckpt").symlink_to(tmp_path / "fs")
    assert look(tmp_path / "ckpt" / "run").step == 5


def test_nothing_strange_blocks_or_raises(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ckpt_7.pt")
    os.mkfifo(tmp_path / "latest")
    put(tmp_path / "ckpt_6.pt", 100)
    assert look(tmp_path).step == 6
    for path, why in (
        (tmp_path / "absent", "does not exist"),
        (tmp_path / "ckpt_6.pt", "is not a folder"),
        (Path("relative"), "is not an absolute path"),
    ):
        assert (told := look(path)).step is None
        assert told.note.startswith("blind: checkpoint_dir ")
        assert why in told.note
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "loop of links" in look(tmp_path / "loop").note


def test_a_folder_is_looked_into_only_as_far_as_the_jobs_user_may(tmp_path: Path) -> None:
    alice, bob = pwd.getpwnam("alice"), pwd.getpwnam("bob")
    for folder in (*tmp_path.parents, tmp_path):
        if str(folder).startswith("/tmp/") and folder.owner() == "root":
            folder.chmod(0o755)
    home = tmp_path / "home"
    put(home / "run" / "ckpt_5.pt", 100)
    os.chown(home, alice.pw_uid, alice.pw_gid)
    os.chown(home / "run", alice.pw_uid, alice.pw_gid)
    home.chmod(0o700)
    assert look(home / "run", uid=alice.pw_uid).step == 5
    told = look(home / "run", uid=bob.pw_uid)
    assert (told.step, told.note.split()[-8:]) == (None, f"be read by the job's owner, uid {bob.pw_uid}".split())
    home.chmod(0o711)
    (home / "run").chmod(0o751)
    assert look(home / "run", uid=bob.pw_uid).step is None
    (home / "run").chmod(0o755)
    assert look(home / "run", uid=bob.pw_uid).step == 5
    assert "owner is not known" in look(home / "run", uid=-1).note


def test_a_folder_of_very_many_entries_is_bounded_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_ENTRIES", 3)
    for number in range(5):
        put(tmp_path / f"ckpt_{number}.pt", 100)
    found = look(tmp_path)
    assert found.step is not None
    assert "only 3 of its entries" in found.note
