"""The folder, ports and enclosure of one server; they stay the same while the server is killed and started again."""

import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import ports
from tests.cluster.enclosure import Enclosure

SLOW_S = 90  # how long a start may take on a busy machine


class Home:
    """Made when a server is first started; close() removes all of it, also when this process dies."""

    def __init__(self, kind: str, program: str, *, port_count: int = 1) -> None:
        """`program` is the file name of the server's executable: what kill() and stop() look for."""
        self.program = program
        self.folder = Path(tempfile.mkdtemp(prefix=f"relight-{kind}-"))
        self.folder.chmod(0o755)
        reservation = ports.reserve(port_count)
        self.port = reservation.first
        self.enclosure = Enclosure.open(folder_to_remove=self.folder, locks=reservation.locks)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self, argv: Sequence[str], *, user: str | None = None, port: int | None = None) -> None:
        """Starts the server and waits until it accepts connections."""
        if self.enclosure.pids(self.program):
            raise RuntimeError(f"{self.program} in {self.folder} is running already")
        self.enclosure.start(argv, log=self.log, user=user)
        self.enclosure.until_answers(self.program, port or self.port, self.log)

    def end(self, number: signal.Signals) -> None:
        """Signals the server's processes and waits until they are gone."""
        self.enclosure.end(self.program, number)

    def close(self) -> None:
        self.enclosure.close()
        shutil.rmtree(self.folder, ignore_errors=True)
