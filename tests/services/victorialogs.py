"""VictoriaLogs in its own folder, built by the Go toolchain from the Go module proxy and kept in the cache.

`python -m tests.services.victorialogs` builds it beforehand: that takes minutes, once for each version.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from tests.cluster.enclosure import PATH
from tests.cluster.templates import cache_folder
from tests.cluster.waiting import until
from tests.services.home import SLOW_S, Home

VERSION = "v1.52.1"
PACKAGE = "github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs"
PROGRAM = "victoria-logs"
BUILD_S = 1_500
UNREACHABLE = ("dial tcp", "no such host", "disabled by GOPROXY=off")
TELL_S = 15


class NotToBeHad(Exception):
    """There is no VictoriaLogs in the cache, and no Go toolchain or no module proxy that could be reached.

    Nothing else is a reason to go without.
    """


def ensure() -> Path:
    """The program, built when it is not there yet. Raises NotToBeHad with the reason."""
    program = cache_folder() / f"{PROGRAM}-{VERSION}" / PROGRAM
    if program.exists():
        return program
    go = shutil.which("go", path=f"{os.environ.get('PATH', PATH)}:/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise NotToBeHad(
            f"no Go toolchain and no VictoriaLogs {VERSION} in {program.parent}: tests with a real one are left out"
        )
    with (cache_folder() / f"{program.parent.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():  # another process may have built it meanwhile
            _build(go, program)
    return program


def _build(go: str, program: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="relight-victorialogs-") as workplace:
        log = Path(workplace) / "log"
        begun = told = time.monotonic()
        _tell(f"building VictoriaLogs {VERSION} (once; a few minutes)")
        with log.open("wb") as output:
            build = subprocess.Popen(
                ["nice", "-n", "19", go, "install", "-p", "2", f"{PACKAGE}@{VERSION}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Without cgo it needs no C compiler. GOFLAGS of a user may forbid what is needed here.
                env={**os.environ, "CGO_ENABLED": "0", "GOBIN": workplace, "GOFLAGS": "-modcacherw"},
                cwd=workplace,
            )
        try:
            while build.poll() is None:
                if time.monotonic() - told >= TELL_S:
                    told = time.monotonic()
                    _tell(f"   … {told - begun:.0f} s: {_last_line(log)}")
                if time.monotonic() - begun > BUILD_S:
                    raise TimeoutError(f"{PACKAGE}@{VERSION} was not built within {BUILD_S} s: {_last_line(log)}")
                time.sleep(0.2)
        finally:
            if build.poll() is None:
                build.kill()
                build.wait(timeout=60)
        said = log.read_text(errors="replace")
        if build.returncode != 0 and any(word in said for word in UNREACHABLE):
            raise NotToBeHad(
                f"no VictoriaLogs {VERSION} in {program.parent}, and the Go module proxy cannot be reached: "
                "tests with a real one are left out"
            )
        if build.returncode != 0:
            raise RuntimeError(f"go install {PACKAGE}@{VERSION} failed ({build.returncode}): {said[-2000:]}")
        program.parent.mkdir(exist_ok=True)
        draft = program.with_suffix(f".{os.getpid()}")
        shutil.copy2(Path(workplace) / PROGRAM, draft)
        draft.replace(program)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:150] if lines else "compiling"


def _tell(text: str) -> None:
    if sys.__stderr__ is not None:  # not what pytest captures: whoever waits shall see it
        print(text, file=sys.__stderr__, flush=True)


class VictoriaLogsServer:
    """`with VictoriaLogsServer() as server: server.insert([{…}])`. Needs root, as all servers here."""

    def __init__(self) -> None:
        self._home: Home | None = None

    @property
    def _started(self) -> Home:
        if self._home is None:
            raise RuntimeError("VictoriaLogsServer has not been started")
        return self._home

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._started.port}"

    def start(self) -> "VictoriaLogsServer":
        program = ensure()
        home = self._home = self._home or Home("victorialogs", PROGRAM)
        try:
            home.start(
                [
                    *("nice", "-n", "19", str(program), f"-httpListenAddr=127.0.0.1:{home.port}"),
                    *(f"-storageDataPath={home.folder / 'data'}", "-retentionPeriod=10y", "-loggerLevel=WARN"),
                    "-memory.allowedBytes=128MB",
                ]
            )
            until(self._healthy, f"VictoriaLogs on port {home.port} is well (see {home.log})", timeout_s=SLOW_S)
        except BaseException:
            self.close()
            raise
        return self

    def insert(self, entries: Iterable[Mapping[str, str]], *, tenant: str = "0:0", streams: str = "host") -> None:
        """Adds entries with _time (RFC 3339) and _msg; when it returns they can be found."""
        self.insert_raw("\n".join(json.dumps(entry) for entry in entries).encode(), tenant=tenant, streams=streams)

    def insert_raw(self, lines: bytes, *, tenant: str = "0:0", streams: str = "host") -> None:
        account, _, project = tenant.partition(":")
        request = urllib.request.Request(
            f"{self.url}/insert/jsonline?{urlencode({'_stream_fields': streams})}",
            data=lines,
            headers={"Content-Type": "application/stream+json", "AccountID": account, "ProjectID": project},
        )
        with urllib.request.urlopen(request, timeout=60):
            pass
        with urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=60):
            pass

    def count(self, query: str) -> int:
        """How many entries a LogsQL filter finds, straight from the server."""
        wanted = urlencode({"query": f"{query} | count() as n"})
        with urllib.request.urlopen(f"{self.url}/select/logsql/query?{wanted}", timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return int(found["n"])

    def kill(self) -> None:
        self._started.end(signal.SIGKILL)

    def hang(self) -> None:
        """Keeps its connections and answers nobody until unhang()."""
        self._started.enclosure.send_to(PROGRAM, signal.SIGSTOP)

    def unhang(self) -> None:
        self._started.enclosure.send_to(PROGRAM, signal.SIGCONT)

    def stop(self) -> None:
        self._started.end(signal.SIGTERM)

    def close(self) -> None:
        """Removes the server with its data."""
        if self._home:
            self._home.close()
            self._home = None

    def __enter__(self) -> "VictoriaLogsServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


if __name__ == "__main__":
    try:
        print(ensure())
    except NotToBeHad as reason:
        sys.exit(str(reason))
