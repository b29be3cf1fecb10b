"""A real sshd in its own folder and on its own port, with its own keys; one user (root) may log in with one key."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from tests.services.home import Home


class SshServer:
    """`with SshServer(forced="COMMAND") as server:`; `server.key`, `server.known_hosts` and `server.port` reach it."""

    def __init__(self, *, forced: str = "") -> None:
        """`forced` is the key's forced command; "" is any command."""
        self._forced = forced
        self._home: Home | None = None

    @property
    def folder(self) -> Path:
        assert self._home is not None, "SshServer has not been started"
        return self._home.folder

    @property
    def port(self) -> int:
        assert self._home is not None, "SshServer has not been started"
        return self._home.port

    @property
    def key(self) -> Path:
        return self.folder / "user"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def start(self) -> SshServer:
        """Also again, after kill(), with the same keys and port."""
        home = self._home = self._home or Home("sshd", "sshd")
        if not self.key.exists():
            self._make_keys()
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
        if sshd is None:
            raise RuntimeError("sshd is not installed: ./dev setup installs openssh-server")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        home.start([sshd, "-D", "-e", "-f", str(self.folder / "config")])
        return self

    def force(self, command: str) -> None:
        """Another forced command, from the next connection on."""
        self._forced = command
        self._authorize()

    def new_host_key(self) -> None:
        """As after a machine was set up anew, or when somebody else answers in its place."""
        (self.folder / "host").unlink()
        _keygen(self.folder / "host")

    def learn_host_key(self) -> None:
        """What known_hosts holds from now on."""
        host_key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key}\n")

    def kill(self) -> None:
        """With every connection."""
        assert self._home is not None
        self._home.end(signal.SIGKILL)

    def close(self) -> None:
        if self._home is not None:
            self._home.close()

    def __enter__(self) -> SshServer:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_keys(self) -> None:
        _keygen(self.folder / "host")
        _keygen(self.key)
        self.learn_host_key()
        self._authorize()
        lines = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": self.folder / "host",
            "AuthorizedKeysFile": self.folder / "authorized_keys",
            "PidFile": "none",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "StrictModes": "no",
            "UsePAM": "no",
            "AllowTcpForwarding": "yes",
        }
        (self.folder / "config").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))

    def _authorize(self) -> None:
        public = (self.folder / "user.pub").read_text().strip()
        forced = self._forced.replace("\\", "\\\\").replace('"', '\\"')
        allowed = f'command="{forced}",no-pty,no-agent-forwarding,no-X11-forwarding ' if forced else ""
        (self.folder / "authorized_keys").write_text(f"{allowed}{public}\n")


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
