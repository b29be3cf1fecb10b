"""PostgreSQL and MariaDB servers with one empty database, for the audit store.

kill() is a crash, stop() an orderly end; both keep data and port, so that start() brings the same database back.
"""

import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType

import psycopg

from tests.cluster import mariadb, templates
from tests.cluster.enclosure import PATH
from tests.cluster.waiting import until
from tests.services.home import SLOW_S, Home

DATABASE = "relight"
_PASSWORD = "only-on-loopback"


class PostgresServer:
    """`with PostgresServer() as server: create_engine(server.url)`. Runs as the system user postgres; needs root."""

    def __init__(self) -> None:
        self._home: Home | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def port(self) -> int:
        return self._started.port

    @property
    def _started(self) -> Home:
        if self._home is None:
            raise RuntimeError("PostgresServer has not been started")
        return self._home

    def start(self) -> "PostgresServer":
        first = self._home is None
        home = self._home = self._home or Home("postgres", "postgres")
        try:
            data = home.folder / "data"
            if first:
                home.folder.chmod(0o755)
                templates.copy("postgres", (postgres_programs().parent.name, DATABASE, "1"), _initdb, data)
            (data / "postmaster.pid").unlink(missing_ok=True)  # left by a kill; the numbers in it mean nothing now
            home.log.touch()
            home.start(
                [
                    str(postgres_programs() / "postgres"),
                    *("-D", str(data), "-p", str(home.port), "-c", "listen_addresses=127.0.0.1"),
                    *("-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "full_page_writes=off"),
                    # Shared memory in files of the data folder: nothing stays behind in /dev/shm after a kill.
                    *("-c", "dynamic_shared_memory_type=mmap", "-c", "max_connections=200"),
                ],
                user="postgres",
            )
            # It listens before it serves: for a moment, and while it recovers from a kill, it refuses sessions.
            until(self._serves, f"PostgreSQL on port {home.port} serves (see {home.log})", timeout_s=SLOW_S)
        except BaseException:
            self.close()
            raise
        return self

    def _serves(self) -> bool:
        try:
            psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", dbname=DATABASE).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        self._started.end(signal.SIGINT)  # "fast": ends sessions, writes everything down

    def kill(self) -> None:
        self._started.end(signal.SIGKILL)

    def close(self) -> None:
        """Removes the server with its data."""
        if self._home:
            self._home.close()
            self._home = None

    def __enter__(self) -> "PostgresServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MariaDBServer:
    """`with MariaDBServer() as server: create_engine(server.url)`. Needs root."""

    def __init__(self) -> None:
        self._home: Home | None = None

    @property
    def url(self) -> str:
        return f"mysql+pymysql://{DATABASE}:{_PASSWORD}@127.0.0.1:{self.port}/{DATABASE}?charset=utf8mb4"

    @property
    def port(self) -> int:
        return self._started.port

    @property
    def _started(self) -> Home:
        if self._home is None:
            raise RuntimeError("MariaDBServer has not been started")
        return self._home

    def start(self) -> "MariaDBServer":
        first = self._home is None
        home = self._home = self._home or Home("mariadb", "mariadbd")
        try:
            data, socket = home.folder / "data", home.folder / "socket"
            if first:
                mariadb.new_data_folder(data)
            home.start(mariadb.server(data, port=home.port, socket=socket))
            if first:
                mariadb.execute(
                    f"create database {DATABASE} character set utf8mb4; "
                    f"create user {DATABASE}@127.0.0.1 identified by '{_PASSWORD}'; "
                    f"grant all on {DATABASE}.* to {DATABASE}@127.0.0.1;",
                    socket,
                )
        except BaseException:
            self.close()
            raise
        return self

    def stop(self) -> None:
        self._started.end(signal.SIGTERM)

    def kill(self) -> None:
        self._started.end(signal.SIGKILL)

    def close(self) -> None:
        """Removes the server with its data."""
        if self._home:
            self._home.close()
            self._home = None

    def __enter__(self) -> "MariaDBServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def postgres_programs() -> Path:
    """The newest installed server's bin folder, such as /usr/lib/postgresql/15/bin."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if not found:
        raise FileNotFoundError("no /usr/lib/postgresql/*/bin/postgres: run ./dev setup (package postgresql)")
    return found[-1].parent


def _initdb(target: Path) -> None:
    entry = pwd.getpwnam("postgres")
    target.mkdir(mode=0o700)
    shutil.chown(target, entry.pw_uid, entry.pw_gid)
    programs = postgres_programs()
    _as_postgres(
        [str(programs / "initdb"), "-D", str(target), "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    )
    # A server without a network, fed through standard input: enough to make the database.
    _as_postgres(
        [str(programs / "postgres"), "--single", "-D", str(target), "postgres"], stdin=f"create database {DATABASE}\n"
    )


def _as_postgres(argv: list[str], stdin: str = "") -> None:
    entry = pwd.getpwnam("postgres")
    done = subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        text=True,
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        cwd="/",
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{argv[0]} failed ({done.returncode}): {done.stdout[-1500:]}{done.stderr[-1500:]}")
