"""The gate on another machine: one SSH connection for all calls to a cluster, kept alive and made anew when it is lost.

A host key is verified or the connection is refused, never accepted as it comes. No word of a request meets a shell of
the far side unencoded. A change whose answer is lost may have been made: that is told, and nothing is repeated here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import asyncssh

from activities.slurm.errors import GateBroken, SlurmctldAway, SlurmTimeout
from activities.slurm.transport import GATE

SESSIONS = 8
"""Calls at once over one connection; sshd allows 10 in stock settings."""

KEEPALIVE_S, KEEPALIVE_COUNT = 10, 3
"""A peer that is silent for so long is given up."""


@dataclass(frozen=True)
class SshHost:
    """Where a cluster's commands work, and who relight is there."""

    host: str
    user: str
    key_file: Path
    known_hosts: Path
    port: int = 22
    jump: SshHost | None = None
    """A host on the way."""
    connect_timeout_s: float = 15.0

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


@dataclass(frozen=True)
class SentGate:
    """The gate where nothing is installed: its script travels with each call. `env` is set there for it."""

    python: str = "python3"
    env: Mapping[str, str] = field(default_factory=dict)


class SshGate:
    """Runs the gate on a far host: as the key's forced command, or, with `sent`, by sending it along."""

    def __init__(self, where: SshHost, *, sent: SentGate | None = None, timeout_s: float = 110.0) -> None:
        self._where, self._sent, self._timeout_s = where, sent, timeout_s
        self._script = GATE.read_bytes() if sent is not None else None
        self._connection: asyncssh.SSHClientConnection | None = None
        self._on_the_way: asyncssh.SSHClientConnection | None = None
        self._connecting = asyncio.Lock()
        self._sessions = asyncio.Semaphore(SESSIONS)

    async def call(self, words: Sequence[str]) -> bytes:
        """Raises SlurmctldAway when the host cannot be reached, SlurmTimeout when an answer did not come (in time),
        GateBroken when the host, the key or the gate there is not as configured."""
        asked = f"'{' '.join(words[:2])}'"
        async with self._sessions:
            try:
                async with asyncio.timeout(self._timeout_s):
                    done = await self._run(self._command(words))
            except TimeoutError:
                raise SlurmTimeout(
                    f"the gate on {self._where} did not answer {asked} in {self._timeout_s:g} s"
                ) from None
            except asyncssh.ChannelOpenError as error:
                self._drop()
                raise SlurmctldAway(f"{self._where} opens no session for {asked}: {error.reason}") from None
            except (asyncssh.Error, OSError) as error:
                self._drop()
                raise SlurmTimeout(f"the connection to {self._where} was lost during {asked}: {error}") from None
        if not isinstance(done.stdout, bytes) or not done.stdout:
            self._tell_broken(done, asked)
        return done.stdout

    async def _run(self, command: str) -> asyncssh.SSHCompletedProcess:
        connection = await self._connected()
        try:
            return await connection.run(command, input=self._script, encoding=None)
        except asyncssh.ChannelOpenError:
            # The host went away between two calls: nothing was asked yet, and it may be there again.
            connection.abort()
            return await (await self._connected()).run(command, input=self._script, encoding=None)

    async def close(self) -> None:
        for connection in (self._connection, self._on_the_way):
            if connection is not None:
                connection.close()
                await connection.wait_closed()
        self._connection = self._on_the_way = None

    # -------------------------------------------------------------------------------------------- the words

    def _command(self, words: Sequence[str]) -> str:
        code = base64.urlsafe_b64encode(json.dumps(list(words)).encode("ascii")).decode("ascii")
        if self._sent is None:
            return f"relight-gate {code}"
        env = [f"{name}={value}" for name, value in sorted(self._sent.env.items())]
        # -I -S: neither that host's environment nor its site packages can change what the gate does.
        return shlex.join(["env", *env, self._sent.python, "-I", "-S", "-", "--encoded", code])

    def _tell_broken(self, done: asyncssh.SSHCompletedProcess, asked: str) -> NoReturn:
        said = done.stderr if isinstance(done.stderr, bytes) else str(done.stderr or "").encode()
        told = " ".join(said.decode("utf-8", "replace").split())[-300:]
        if done.exit_status is None:
            raise SlurmTimeout(f"the gate on {self._where} ended without an answer to {asked} (signal): {told}")
        hint = "is python3 there?" if self._sent is not None else "is the gate this key's forced command?"
        raise GateBroken(
            f"{self._where} answered nothing to {asked} (exit status {done.exit_status}): {told or 'no word'}; {hint}"
        )

    # -------------------------------------------------------------------------------------------- the connection

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                await self.close()
                if self._where.jump is not None:
                    self._on_the_way = await _connect(self._where.jump)
                self._connection = await _connect(self._where, self._on_the_way)
            return self._connection

    def _drop(self) -> None:
        """A connection that a failed call left open is not trusted again."""
        if self._connection is not None:
            self._connection.abort()


async def _connect(where: SshHost, tunnel: asyncssh.SSHClientConnection | None = None) -> asyncssh.SSHClientConnection:
    for path, key in ((where.key_file, "key_file"), (where.known_hosts, "known_hosts")):
        if not path.is_file():
            raise GateBroken(f"ssh.{key}: {path} is no file; it is needed to reach {where}")
    try:
        return await asyncssh.connect(
            where.host,
            where.port,
            username=where.user,
            client_keys=[str(where.key_file)],
            known_hosts=str(where.known_hosts),
            tunnel=tunnel or (),
            config=(),  # nobody's ~/.ssh/config has a say
            agent_path=None,
            preferred_auth="publickey",
            connect_timeout=where.connect_timeout_s,
            login_timeout=where.connect_timeout_s,
            keepalive_interval=KEEPALIVE_S,
            keepalive_count_max=KEEPALIVE_COUNT,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise GateBroken(
            f"{where}: its host key is not the one in {where.known_hosts} ({error.reason}). Compare it with what the "
            f"machine itself says, then add it: ssh-keyscan -p {where.port} {where.host} >> {where.known_hosts}"
        ) from None
    except asyncssh.PermissionDenied:
        raise GateBroken(
            f"{where} does not take the key {where.key_file}: is its public part in that user's authorized_keys?"
        ) from None
    except (asyncssh.KeyImportError, ValueError) as error:
        raise GateBroken(f"ssh.key_file: {where.key_file} cannot be used: {error}") from None
    except (OSError, asyncssh.Error, TimeoutError) as error:
        told = str(error) or f"no answer within {where.connect_timeout_s:g} s"
        raise SlurmctldAway(f"{where} cannot be reached over SSH: {told}") from None
