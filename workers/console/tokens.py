"""Tokens that let people and programs into the console. Only their SHA-256 is kept: a token is 256 random bits.

A line is `NAME ROLE sha256:HEX`; # begins a comment. The file is read again when it changes.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from workers.screen import UNUSABLE, Trouble, print_json, say
from workers.settings import ConfigError

PREFIX = "relight_"
FINGERPRINT = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 500

log = logging.getLogger("relight.console")


class Role(StrEnum):
    """What somebody may do, gentlest first."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Token:
    name: str
    role: Role
    digest: str

    @property
    def fingerprint(self) -> str:
        """Names the token where the token itself must not stand."""
        return self.digest[:FINGERPRINT]


class Tokens:
    """The tokens of a file and of the environment. Safe to use from many threads."""

    def __init__(self, file: Path | None = None, lines: str = "") -> None:
        """Raises ConfigError for a line that cannot be used."""
        self._file = file
        self._fixed = parse(lines, "console.tokens")
        self._of_file: tuple[Token, ...] = ()
        self._stamp: tuple[int, int] | None = None
        self._lock = threading.Lock()
        if file is not None:
            self._read(file)

    def __bool__(self) -> bool:
        return bool(self._all())

    def find(self, token: str) -> Token | None:
        if not 0 < len(token) <= _LONGEST:
            return None
        digest = sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        # Each one is compared, so that the time tells nothing of which one nearly fits.
        found = [one for one in self._all() if hmac.compare_digest(one.digest, digest)]
        return found[0] if found else None

    def by_fingerprint(self, fingerprint: str) -> Token | None:
        return next((one for one in self._all() if hmac.compare_digest(one.fingerprint, fingerprint)), None)

    def _all(self) -> tuple[Token, ...]:
        if self._file is not None:
            with self._lock:
                self._refresh(self._file)
        return (*self._fixed, *self._of_file)

    def _refresh(self, file: Path) -> None:
        try:
            if _stamp(file) != self._stamp:
                self._read(file)
        except (OSError, ConfigError) as error:
            # Who was taken out of a file that cannot be read must not stay in: then nobody is let in by it.
            if self._of_file:
                log.error("console.tokens_file: nobody is let in by it any more: %s", error)
            self._of_file, self._stamp = (), None

    def _read(self, file: Path) -> None:
        try:
            stamp = _stamp(file)
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(f"console.tokens_file: {file} cannot be read: {reason}") from None
        self._of_file, self._stamp = parse(text, str(file)), stamp


def parse(text: str, where: str) -> tuple[Token, ...]:
    """The tokens of these lines. Raises ConfigError, which never repeats a line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 3 or not _NAME.fullmatch(words[0]) or not _HASH.fullmatch(words[2]):
            raise ConfigError(
                f"{where}: line {number}: expected NAME ROLE sha256:HEX, as `relight token NAME` prints it"
            )
        if words[1] not in set(Role):
            raise ConfigError(f"{where}: line {number}: role is {words[1]!r:.40}, expected viewer or operator")
        found.append(Token(words[0], Role(words[1]), words[2].removeprefix("sha256:")))
    _check_unique(found, where)
    return tuple(found)


def _check_unique(tokens: Iterable[Token], where: str) -> None:
    seen: set[str] = set()
    for token in tokens:
        if token.digest in seen:
            raise ConfigError(
                f"{where}: the token of {token.name} stands there twice, expected one line for each token"
            )
        seen.add(token.digest)


def _stamp(file: Path) -> tuple[int, int]:
    told = file.stat()
    return told.st_mtime_ns, told.st_size


def new(name: str, role: Role) -> tuple[str, str]:
    """A new token, and the line that lets it in."""
    token = PREFIX + secrets.token_urlsafe(32)
    return token, f"{name} {role.value} sha256:{sha256(token.encode()).hexdigest()}"


def print_new(name: str, role: str, *, as_json: bool) -> None:
    if role not in set(Role):
        raise Trouble(f"--role is {role!r}, expected viewer or operator", UNUSABLE)
    if not _NAME.fullmatch(name):
        raise Trouble(f"{name!r} cannot be a name here, expected letters, digits, '.', '_', '-' and '@'", UNUSABLE)
    token, line = new(name, Role(role))
    if as_json:
        print_json({"token": token, "line": line})
        return
    say("The token, shown only now; it is what goes into the sign-in page or behind `Authorization: Bearer`:")
    say(f"  {token}")
    say("The line for console.tokens_file or RELIGHT_CONSOLE__TOKENS, which lets it in:")
    say(f"  {line}")
