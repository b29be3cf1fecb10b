"""The section `clusters.NAME.ssh` of the configuration: a cluster whose Slurm commands work on another machine only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

_JUMP = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)(?::(?P<port>\d+))?\Z"
)
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,252}$")]
UserName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


class Jump(NamedTuple):
    """A host on the way. None: as for the cluster's own host."""

    host: str
    user: str | None
    port: int


class SshSettings(BaseModel):
    """Where the cluster's commands work. Nothing of ~/.ssh is used but what is named here."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: HostName
    """A login or head node with Slurm's client commands."""
    user: UserName
    """The account that may requeue other users' jobs there (Slurm operator)."""
    key_file: Path
    """Private key without a passphrase, readable by the worker alone."""
    known_hosts: Path
    """File with the host keys that are accepted, in the form of ssh; one that is not in it is refused."""
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    """Port of its sshd."""
    jump: str = ""
    """[USER@]HOST[:PORT] of a host on the way; the same key and known hosts are used."""
    installed: bool = True
    """true: the gate is the key's forced command on that host. false: nothing is installed there; its script is sent
    with each call, and the key may run any command."""
    connect_timeout_s: Annotated[float, Field(gt=0, le=120, allow_inf_nan=False)] = 15.0
    """Longest time until a connection is there."""

    @model_validator(mode="after")
    def _jump_is_a_host(self) -> Self:
        if self.jump and _JUMP.match(self.jump) is None:
            raise ValueError(f"jump is {self.jump!r}, expected [USER@]HOST[:PORT]")
        return self

    @property
    def way(self) -> Jump | None:
        """The host on the way, taken apart."""
        found = _JUMP.match(self.jump) if self.jump else None
        return None if found is None else Jump(found["host"], found["user"], int(found["port"] or 22))
