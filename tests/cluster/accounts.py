"""The Linux accounts that act in test clusters; made when missing, never changed or removed."""

import fcntl
import pwd
import subprocess

from tests.cluster.enclosure import PATH
from tests.cluster.templates import cache_folder

USERS = ("alice", "bob")
OPERATOR = "relight"  # the service account, Operator where there is accounting


def ensure() -> None:
    """Makes sure that the users and the operator exist. Needs root when one is missing."""
    if not _missing():
        return
    with (cache_folder() / "accounts.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two useradd at the same time: one fails
        for name in _missing():
            subprocess.run(
                ["useradd", "--create-home", "--shell", "/bin/bash", name],
                check=True,
                env={"PATH": PATH},
                capture_output=True,
                timeout=60,
            )


def _missing() -> list[str]:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return [name for name in (*USERS, OPERATOR) if name not in known]
