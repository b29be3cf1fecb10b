"""An empty MariaDB data folder and the command line that serves it; run inside an enclosure, as root.

Durability against power loss is switched off; a kill -9 of the server still loses nothing.
"""

import subprocess
from pathlib import Path

from tests.cluster import templates
from tests.cluster.enclosure import PATH

_SMALL = ("--innodb-log-file-size=8M", "--innodb-use-native-aio=0")


def version() -> str:
    return subprocess.run(
        ["mariadbd", "--version"], env={"PATH": PATH}, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def new_data_folder(target: Path) -> None:
    """Makes `target` the data folder of a server whose only account is root, by the socket."""
    templates.copy("mariadb", (version(), *_SMALL), _install, target)


def _install(target: Path) -> None:
    command = ["mariadb-install-db", "--no-defaults", f"--datadir={target}", "--user=root", "--skip-test-db"]
    done = subprocess.run(
        [*command, "--auth-root-authentication-method=socket", *_SMALL],
        env={"PATH": PATH},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"mariadb-install-db failed ({done.returncode}): {done.stdout[-1500:]}{done.stderr[-1500:]}")


def server(data: Path, *, port: int, socket: Path) -> list[str]:
    """The command line of a server for that folder, reachable on 127.0.0.1:port."""
    return [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={data}",
        f"--socket={socket}",
        f"--port={port}",
        f"--pid-file={socket}.pid",
        "--bind-address=127.0.0.1",
        "--skip-log-bin",
        "--skip-name-resolve",
        # Encrypted, Debian 13's slurmdbd 24.11.5 gets "Number of columns in result … exceeds" from libmariadb 11.8.9.
        "--skip-ssl",
        "--performance-schema=OFF",
        "--innodb-buffer-pool-size=64M",
        "--innodb-flush-log-at-trx-commit=2",  # 0 would lose the last second at a kill -9
        "--innodb-flush-method=nosync",
        "--innodb-lock-wait-timeout=900",
        *_SMALL,
    ]


def execute(sql: str, socket: Path) -> str:
    """Runs statements as root; raises RuntimeError with the server's words."""
    done = subprocess.run(
        [
            "mariadb",
            "--no-defaults",
            "--user=root",
            f"--socket={socket}",
            "--batch",
            "--skip-column-names",
            "--skip-ssl",
        ],
        input=sql,
        env={"PATH": PATH},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"mariadb refused {sql!r}: {done.stderr.strip()}")
    return done.stdout
