"""Starts munged and the accounting daemons (mariadbd, slurmdbd) of one cluster inside its enclosure.

The database comes from a template that already knows the cluster, its account and its users: that saves seconds.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.cluster import accounts, mariadb, ports, templates
from tests.cluster.config import Layout, Ports, Settings, slurmdbd_conf
from tests.cluster.enclosure import PATH, Enclosure
from tests.cluster.waiting import until

_PASSWORD = "only-on-loopback"  # the database holds test data
_SLOW_S = 90  # generous: the machine may be busy with several clusters


def prepare_folders(layout: Layout) -> None:
    """Makes the folders of a cluster with the owners that the daemons insist on."""
    for name in ("etc", "run", "log", "ctld", "spool", "munge", "jobs"):
        (layout.folder / name).mkdir()
        (layout.folder / name).chmod(0o755)
    for name in ("ctld", "log", "run"):
        shutil.chown(layout.folder / name, "slurm", "slurm")
    layout.munge_key.write_bytes(os.urandom(128))
    layout.munge_key.chmod(0o600)
    (layout.etc / "plugstack.conf").touch()


def start_munged(enclosure: Enclosure, layout: Layout) -> None:
    folder = layout.munge_socket.parent
    enclosure.start(
        [
            "munged",
            "--foreground",
            f"--key-file={layout.munge_key}",
            f"--socket={layout.munge_socket}",
            f"--log-file={folder}/munged.log",
            f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/munged.seed",
            "--num-threads=4",
        ],
        log=layout.log / "munged.console",
    )
    until(layout.munge_socket.exists, f"munged made {layout.munge_socket} (see {folder}/munged.log)", timeout_s=_SLOW_S)


def start_accounting(enclosure: Enclosure, settings: Settings, layout: Layout, numbers: Ports) -> None:
    recipe = (mariadb.version(), slurm_version(), settings.name, *accounts.USERS, accounts.OPERATOR, _PASSWORD, "2")
    templates.copy("accounting", recipe, lambda target: _build_database(settings.name, target), layout.database)
    start_mariadb(enclosure, layout, numbers)
    start_slurmdbd(enclosure, layout, numbers)


def start_mariadb(enclosure: Enclosure, layout: Layout, numbers: Ports) -> None:
    argv = mariadb.server(layout.database, port=numbers.mariadb, socket=layout.database_socket)
    enclosure.start(argv, log=layout.log / "mariadbd.log")
    enclosure.until_answers("mariadbd", numbers.mariadb, layout.log / "mariadbd.log")


def start_slurmdbd(enclosure: Enclosure, layout: Layout, numbers: Ports) -> None:
    conf = layout.etc / "slurmdbd.conf"
    conf.write_text(slurmdbd_conf(layout, numbers, _PASSWORD))
    shutil.chown(conf, "slurm", "slurm")  # slurmdbd refuses a file that others own or can read
    conf.chmod(0o600)
    # slurmdbd looks for its own file in the folder of SLURM_CONF.
    enclosure.start(["slurmdbd", "-D"], log=layout.log / "slurmdbd.console", env={"SLURM_CONF": str(layout.slurm_conf)})
    enclosure.until_answers("slurmdbd", numbers.slurmdbd, layout.log / "slurmdbd.log")


def slurm_version() -> str:
    """Such as "slurm-wlm 22.05.8"."""
    return subprocess.run(
        ["slurmctld", "-V"], env={"PATH": PATH}, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def _build_database(cluster: str, target: Path) -> None:
    """Fills `target` with the database of a cluster that has been registered but has run nothing yet."""
    workplace = target.parent / "cluster"
    workplace.mkdir(mode=0o755)
    layout = Layout(workplace)
    prepare_folders(layout)
    reservation = ports.reserve(Ports.needed(0))
    numbers = Ports(reservation.first)
    enclosure = Enclosure.open(locks=reservation.locks)
    try:
        layout.slurm_conf.write_text(
            f"ClusterName={cluster}\nSlurmctldHost=localhost\nAuthInfo=socket={layout.munge_socket}\n"
            f"PlugStackConfig={layout.etc}/plugstack.conf\n"
            f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={numbers.slurmdbd}\nAccountingStoragePass={layout.munge_socket}\n"
        )
        start_munged(enclosure, layout)
        mariadb.new_data_folder(layout.database)
        start_mariadb(enclosure, layout, numbers)
        mariadb.execute(
            f"create user slurm@127.0.0.1 identified by '{_PASSWORD}'; grant all on slurm_acct.* to slurm@127.0.0.1;",
            layout.database_socket,
        )
        start_slurmdbd(enclosure, layout, numbers)
        _register(cluster, layout)
        enclosure.end("slurmdbd", signal.SIGTERM)
        enclosure.end("mariadbd", signal.SIGTERM)
    finally:
        enclosure.close()
    layout.database.rename(target)


def _register(cluster: str, layout: Layout) -> None:
    for words in (
        ["cluster", cluster],
        ["account", "lab", "Description=lab", "Organization=lab"],
        *(["user", user, "Account=lab"] for user in ("root", *accounts.USERS)),
        ["user", accounts.OPERATOR, "Account=lab", "AdminLevel=Operator"],
    ):
        done = subprocess.run(
            ["sacctmgr", "-i", "add", *words],
            env={"PATH": PATH, "SLURM_CONF": str(layout.slurm_conf)},
            capture_output=True,
            text=True,
            timeout=_SLOW_S,
            check=False,
        )
        if done.returncode != 0 and "Nothing new added" not in done.stdout:
            raise RuntimeError(f"sacctmgr add {' '.join(words)} failed: {done.stdout}{done.stderr}")


def slurm_release() -> tuple[int, int]:
    """Such as (22, 5)."""
    year, month = slurm_version().split()[-1].split(".")[:2]
    return int(year), int(month)
