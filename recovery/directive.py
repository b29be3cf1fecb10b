"""The job's own word: what its comment asks of relight.

A comment is 1,024 bytes and not ours alone. Only what stands under the key `relight` (or NVIDIA's `APS`) is read;
anything else in it belongs to somebody else. Parsing never raises: a bad directive is told on the job's record and
the job runs on untouched.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from recovery.policy_numbers import BeforeRestart, ExitCode, OnStuck, RestartOn, SignalTo
from recovery.records import JobState, JobView, Mode, Record

KEY = "relight"
"""The key of our object in a comment, and the word that opts a job in by itself."""

ALIAS = "APS"
"""NVIDIA's autonomous job recovery key, accepted so that existing scripts work unchanged."""

MAX_PROGRESS = 512
"""Longest expression for progress lines (characters) that a job may bring."""

MAX_COMMENT = 16_384
"""Longest comment that is read (characters). Slurm itself takes 1,024 bytes."""

_CLOSED = {JobState.COMPLETED: "has finished", JobState.CANCELLED: "was cancelled"}


class Directive(Record):
    """What a job asks for. Everything optional; None means: as the policy says."""

    policy: str | None = None
    mode: Mode | None = None
    max_restarts: int | None = None
    checkpoint_dir: str | None = None
    progress: str | None = None
    paused: bool = False
    stop_codes: tuple[int, ...] = ()
    max_restarts_per_day: int | None = None
    max_restarts_same_cause: int | None = None
    max_restarts_no_new_checkpoint: int | None = None
    max_restarts_unknown: int | None = None
    max_node_hours_without_progress: float | None = None
    hang: OnStuck | None = None
    straggler: OnStuck | None = None
    restart_on: tuple[RestartOn, ...] | None = None
    elsewhere_codes: tuple[int, ...] = ()
    before_restart: BeforeRestart | None = None


class ParsedComment(Record):
    """What a comment says to relight.

    `error` set: the job did speak to relight but was not understood; it must be left alone, with that text on its
    record. `opted_out`: it said no (`{"relight": false}`), which also outweighs a partition's default opt-in.
    """

    opted_in: bool = False
    directive: Directive = Directive()
    error: str = ""
    opted_out: bool = False


def _as_object(value: Any) -> Any:
    """An object inside ours, whose pairs were kept so that a key that stands twice can be seen."""
    if not isinstance(value, _Members):
        raise ValueError("not an object")
    asked = dict(value.pairs)
    if len(asked) < len(value.pairs):
        raise ValueError("a key stands twice")
    if isinstance(asked.get("to"), str) and asked["to"] in {to.value for to in SignalTo}:
        asked["to"] = SignalTo(asked["to"])
    return asked


class _Asked(BaseModel):
    """The object under `relight`, exactly as a job may write it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    policy: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = None
    mode: Annotated[Mode, Field(strict=False)] | None = None
    max_restarts: Annotated[int, Field(ge=0, le=1000)] | None = None
    checkpoint_dir: Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f\x7f]{0,1023}$")] | None = None
    progress: Annotated[str, StringConstraints(pattern=rf"^[^\x00-\x1f\x7f]{{1,{MAX_PROGRESS}}}$")] | None = None
    paused: bool = False
    stop_codes: Annotated[list[ExitCode], Field(max_length=32)] = Field(default_factory=list)
    max_restarts_per_day: Annotated[int, Field(ge=0, le=1000)] | None = None
    max_restarts_same_cause: Annotated[int, Field(ge=0, le=1000)] | None = None
    max_restarts_no_new_checkpoint: Annotated[int, Field(ge=0, le=1000)] | None = None
    max_restarts_unknown: Annotated[int, Field(ge=0, le=1000)] | None = None
    max_node_hours_without_progress: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    hang: Annotated[OnStuck, Field(strict=False)] | None = None
    straggler: Annotated[OnStuck, Field(strict=False)] | None = None
    restart_on: Annotated[list[Annotated[RestartOn, Field(strict=False)]], Field(max_length=2)] | None = None
    elsewhere_codes: Annotated[list[ExitCode], Field(max_length=32)] = Field(default_factory=list)
    before_restart: Annotated[BeforeRestart, BeforeValidator(_as_object)] | None = None


_EXPECTED = {
    "policy": "the name of a policy (letters, digits, '.', '_', '-')",
    "mode": "monitor, approve or act",
    "max_restarts": "a whole number from 0 to 1000",
    "checkpoint_dir": "an absolute path",
    "progress": f"a regular expression of at most {MAX_PROGRESS} characters on one line",
    "paused": "true or false",
    "stop_codes": "a list of at most 32 exit codes from 1 to 255",
    "max_restarts_per_day": "a whole number from 0 to 1000",
    "max_restarts_same_cause": "a whole number from 0 to 1000",
    "max_restarts_no_new_checkpoint": "a whole number from 0 to 1000",
    "max_restarts_unknown": "a whole number from 0 to 1000",
    "max_node_hours_without_progress": "a number above 0",
    "hang": "notify or restart",
    "straggler": "notify or restart",
    "restart_on": "a list of TIMEOUT, PREEMPTED or both",
    "elsewhere_codes": "a list of at most 32 exit codes from 1 to 255",
    "before_restart": 'an object such as {"signal": "USR1", "wait_s": 60}; signals are HUP, INT, QUIT, USR1, USR2, '
    "TERM and CONT, waits 1 to 900 s, to is steps, batch or all",
}

_APS_OFF = frozenset({"none", "off", "disabled", "no", "false"})
_APS_CHAIN = frozenset({"singleton", "singleton_dependency"})


def parse_comment(comment: str) -> ParsedComment:
    """What `comment` asks of relight. Never raises, whatever the text is.

    Forms that opt in: `{"relight": {...}}`, `{"relight": true}`, the bare word `relight` among words parted by
    blanks, commas or semicolons, and `{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 3}}`.
    """
    text = comment.strip() if isinstance(comment, str) else ""
    if not text:
        return ParsedComment()
    if len(text) > MAX_COMMENT:
        return _unreadable(text, f"the comment has {len(text)} characters, expected at most {MAX_COMMENT}")
    if text[0] not in '{["':
        if KEY in re.split(r"[\s,;]+", text):
            return ParsedComment(opted_in=True)
        # "note {"relight": …}": meant for us, but no tool could tell where the object begins and ends.
        return _unreadable(text, "the comment has text before its JSON object, expected the object alone")
    try:
        # Members stay lists of pairs on the way, so that a key that stands twice can be seen.
        value = json.loads(text, object_pairs_hook=_Members)
    except (ValueError, RecursionError) as error:
        return _unreadable(text, f"the comment is not valid JSON ({_short(str(error))})")
    if isinstance(value, str):
        return ParsedComment(opted_in=value.strip() == KEY)
    if not isinstance(value, _Members):
        return _unreadable(text, "the comment is a JSON list, expected an object")
    ours = [member for key, member in value.pairs if key == KEY]
    if len(ours) > 1:
        return _bad(f"{KEY} stands {len(ours)} times in the comment, expected once")
    if ours:
        return _ours(ours[0])
    alias = [member for key, member in value.pairs if key == ALIAS]
    return _alias(alias[-1]) if alias else ParsedComment()


class _Members:
    """A JSON object as its pairs, in order, doubles included."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def _ours(value: Any) -> ParsedComment:
    if value is True:
        return ParsedComment(opted_in=True)
    if value is False:
        return ParsedComment(opted_out=True)
    if not isinstance(value, _Members):
        return _bad(f'{KEY} is {_show(value)}, expected an object such as {{}} or {{"max_restarts": 8}}, or true')
    asked = dict(value.pairs)
    if len(asked) < len(value.pairs):
        names = [key for key, _ in value.pairs]
        double = next(key for key in names if names.count(key) > 1)
        return _bad(f"{KEY}.{_short(double)} stands more than once, expected once")
    unknown = [key for key in asked if key not in _Asked.model_fields]
    if unknown:
        return _bad(f"{KEY}.{_short(unknown[0])} is not known, expected one of {', '.join(_Asked.model_fields)}")
    try:
        read = _Asked.model_validate(asked)
    except ValidationError as error:
        return _bad("; ".join(_explain(asked, item) for item in error.errors()[:3]))
    return ParsedComment(opted_in=True, directive=Directive.model_validate(read.model_dump()))


def _alias(value: Any) -> ParsedComment:
    """NVIDIA's form. Keys besides the two below are that tool's own and are ignored.

    `requeue`: as `relight` with `max_restarts`. `singleton_dependency`: the job restarts itself through a chain of
    singleton jobs, so relight only watches (monitor). `none`, `off`, `disabled`: not opted in. Others are an error.
    """
    if not isinstance(value, _Members):
        return _bad(f"{ALIAS} is {_show(value)}, expected an object with auto_resume_mode")
    asked = dict(value.pairs)
    if "auto_resume_mode" not in asked:
        return ParsedComment()  # other settings of that tool: nothing here asks to be resumed
    mode = asked["auto_resume_mode"]
    word = mode.strip().lower() if isinstance(mode, str) else ""
    if mode is None or mode is False or word in _APS_OFF:
        return ParsedComment(opted_out=True)
    times = asked.get("max_requeue_times")
    if times is not None and (not isinstance(times, int) or isinstance(times, bool) or not 0 <= times <= 1000):
        return _bad(f"{ALIAS}.max_requeue_times is {_show(times)}, expected a whole number from 0 to 1000")
    if word == "requeue":
        return ParsedComment(opted_in=True, directive=Directive(max_restarts=times))
    if word in _APS_CHAIN:
        return ParsedComment(opted_in=True, directive=Directive(max_restarts=times, mode=Mode.MONITOR))
    return _bad(f"{ALIAS}.auto_resume_mode is {_show(mode)}, expected requeue, singleton_dependency or none")


def _unreadable(text: str, why: str) -> ParsedComment:
    """A comment that is no JSON object: an error only when it names us; otherwise it is somebody else's."""
    if re.search(rf'"({KEY}|{ALIAS})"\s*:', text) or f'"{KEY}"' in text:
        return _bad(why)
    return ParsedComment()


def _bad(why: str) -> ParsedComment:
    return ParsedComment(opted_in=True, error=f"directive in the job's comment: {why}")


def what_to_do(view: JobView) -> str:
    """What the owner of a bad directive can do about it: a comment that is corrected after the end changes nothing."""
    update = f"scontrol update jobid={view.job_id} comment=..."
    if view.state.is_alive or view.completing:
        return f"it runs without relight until its owner corrects the comment: {update}"
    if view.state in _CLOSED:
        return (
            f"it {_CLOSED[view.state]}, so there is nothing to do; correct the comment in its script for the next one"
        )
    anew = "it has ended and stays as it is: submit it anew with a corrected comment"
    if not view.requeue or not view.batch:
        return anew
    return f"{anew}, or scontrol requeue {view.job_id} and, while it waits, {update}"


def _explain(asked: dict[str, Any], item: Any) -> str:
    key = str(item["loc"][0]) if item["loc"] else KEY
    return f"{KEY}.{_short(key)} is {_show(asked.get(key))}, expected {_EXPECTED.get(key, 'another value')}"


def _show(value: Any) -> str:
    """A value of the comment in few printable ASCII characters: it ends up in records and on terminals."""
    if isinstance(value, _Members):
        return "an object"
    if isinstance(value, list):
        return "a list of other things" if any(isinstance(item, list | _Members) for item in value) else _short(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a very large number"
    try:
        return _short(json.dumps(value))
    except ValueError:
        return "a value that cannot be shown"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("ascii", "backslashreplace").decode("ascii")
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= 80 else text[:77] + "..."
