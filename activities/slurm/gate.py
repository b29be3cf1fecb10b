#!/usr/bin/env python3
"""The gate: the only program that runs Slurm's commands for relight, on a machine where they work.

It knows verbs, not programs. One call is one child process that reads its words, looks, checks, changes at most one
job or node, looks again, and prints one JSON document. It must never start a shell, never change more than one job or
node a call, never act on a finished, cancelled, held or foreign attempt nor on a node that others took out of service,
and needs nothing but the standard library of Python 3.6.

    sweep [--all]                                 every job with a comment (or every job)
    job ID | attempts ID | relatives ID           one job; its rows in accounting; its dependents and twins
            [--children ID,ID] [--failed-at S]    (relatives and restart)
    nodes | topology | config | reservations | ping
    restart ID COUNT DEADLINE [--exclude n01,n02] --start-in S [--again] [--allow twin,dependent]
            [--state-ok TIMEOUT,PREEMPTED] [--children ID,ID] [--failed-at S]
    signal  ID COUNT DEADLINE --signal USR1 [--to steps|batch|all]
    lease   ID COUNT DEADLINE [--exclude n01,n02] [--start-in S]
    stop | release | arm  ID COUNT DEADLINE
    rearm   CHILD PARENT DEADLINE
    hold    ID COUNT DEADLINE --nodes n01,n02 --minutes M --most N      a reservation for the job's user, N nodes in all
    unhold  ID COUNT DEADLINE
    drain   NODE ID DEADLINE --why xid.79 --until EPOCH --leave N       at least N usable nodes stay in each partition
    undrain NODE ID DEADLINE --why xid.79 --until EPOCH                 only what was drained in these very words

ID is `123` or `12_3`; COUNT is Slurm's restart count that the change is meant for; DEADLINE is epoch seconds by this
machine's clock. Every change takes --dry-run. Settings come from the JSON file named by RELIGHT_GATE_CONFIG (default
/etc/relight/gate.json: {"dir": …, "ceiling": …, "drain_ceiling": …, "path": …}) and RELIGHT_GATE_DIR,
RELIGHT_GATE_CEILING, RELIGHT_GATE_DRAIN_CEILING. A file called STOP in that folder refuses every change.

`gate.py --forced` as a key's forced command takes the request from SSH_ORIGINAL_COMMAND, `relight-gate CODE`;
`--encoded CODE` takes it from its words. CODE is the list of words above in JSON, in URL-safe base 64: no character of
it means anything to a shell.
"""

# ruff: noqa: B905 - zip(strict=) is newer than Python 3.6

import base64
import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import time
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

VERSION = 1
READ_LIMIT_S = 20.0  # slurmctld's own MessageTimeout is 10 s in stock settings
CHANGE_LIMIT_S = 30.0
DBD_LIMIT_S = 15.0
CALL_LIMIT_S = 100.0  # all of one call
LOCK_LIMIT_S = 20.0
MAX_OUTPUT = 64 * 1024 * 1024
MAX_REQUEST = 1024 * 1024
MAX_TEXT = 8192  # longest text passed on; what a user typed is cut there
MAX_NODE_LIST = 65536
MIN_START_IN_S = 5  # an earlier start meets the old run's revoked credential
MAX_START_IN_S = 366 * 86400
SKEW_S = 30  # clock difference tolerated between this machine and slurmctld
RESUBMIT_S = 60  # a script that submits its own copy does so shortly before its end
MAX_FIRST_SUBMITS = 10  # questions to accounting about requeued jobs, in one call
FOLLOW_S = 120  # a dependent becomes eligible within slurmctld's sched_interval (60 s stock) of its parent's end
MAX_ATTEMPT_ROWS = 100

JOB_ID = re.compile(r"[1-9][0-9]{0,9}(_[0-9]{1,10})?\Z")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
NUMBER = re.compile(r"[0-9]{1,11}\Z")
WORD = re.compile(r"[A-Za-z_]{1,32}\Z")
FORCED = re.compile(r"relight-gate ([A-Za-z0-9_=-]+)\Z")
SIGNATURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")

FINISHED = ("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
RESTARTABLE = ("RUNNING", "CONFIGURING", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")
RESTARTABLE_WHEN_ASKED = ("TIMEOUT", "PREEMPTED", "DEADLINE")
ALIVE = ("PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
SLURM_HELD_REASONS = ("launch_failed_requeued_held",)

Job = Dict[str, Any]
Answer = Dict[str, Any]


class Refusal(Exception):
    """A no, with a kind that programs read and a sentence that people read."""

    def __init__(self, kind: str, message: str, **more: Any) -> None:
        Exception.__init__(self, message)
        self.kind = kind
        self.message = message
        self.more = more


class Settings(NamedTuple):
    """Where the gate keeps its locks, its counts and the STOP file, and how many changes an hour it allows."""

    folder: str
    ceiling: int
    path: str
    drain_ceiling: int = 4


# ------------------------------------------------------------------------------------------------ settings, words


def load_settings() -> Settings:
    name = os.environ.get("RELIGHT_GATE_CONFIG", "/etc/relight/gate.json")
    given: Dict[str, Any] = {}
    try:
        with open(name, "rb") as file:
            given = json.loads(file.read(65536).decode("utf-8"))
        if not isinstance(given, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise Refusal("bad_config", '%s is not valid (%s): expected {"dir": …, "ceiling": …}' % (name, error)) from None
    except OSError as error:
        if error.errno != errno.ENOENT or "RELIGHT_GATE_CONFIG" in os.environ:
            raise Refusal("bad_config", "cannot read the gate's settings %s: %s" % (name, error.strerror)) from None
    folder = os.environ.get("RELIGHT_GATE_DIR") or str(given.get("dir") or "/var/lib/relight/gate")
    ceiling = os.environ.get("RELIGHT_GATE_CEILING") or str(given.get("ceiling", 60))
    if not NUMBER.match(ceiling):
        raise Refusal("bad_config", "the gate's ceiling is %r: expected a number of changes an hour" % ceiling)
    drains = os.environ.get("RELIGHT_GATE_DRAIN_CEILING") or str(given.get("drain_ceiling", 4))
    if not NUMBER.match(drains):
        raise Refusal("bad_config", "the gate's drain_ceiling is %r: expected a number of nodes an hour" % drains)
    path = str(given.get("path") or os.environ.get("PATH") or "/usr/local/bin:/usr/bin:/bin")
    return Settings(folder, int(ceiling), path, int(drains))


class Words:
    """The validated words of one call: positional ones by name, options by name."""

    def __init__(self, verb: str, named: Dict[str, str], options: Dict[str, str]) -> None:
        self.verb = verb
        self.named = named
        self.options = options

    def job(self, name: str = "ID") -> str:
        return self.named[name]

    def number(self, name: str) -> int:
        return int(self.named[name])

    def flag(self, name: str) -> bool:
        return name in self.options

    def names(self, name: str) -> List[str]:
        return sorted({part for part in self.options.get(name, "").split(",") if part})


def _is_list_of(pattern: "re.Pattern[str]", limit: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        parts = text.split(",") if text else []
        return len(parts) <= limit and all(pattern.match(part) for part in parts)

    return check


def _is_start_in(text: str) -> bool:
    return bool(NUMBER.match(text)) and MIN_START_IN_S <= int(text) <= MAX_START_IN_S


def _is_between(least: int, most: int) -> Callable[[str], bool]:
    return lambda text: bool(NUMBER.match(text)) and least <= int(text) <= most


POSITIONAL: Dict[str, Tuple[Callable[[str], Any], str]] = {
    "ID": (JOB_ID.match, "a job id such as 123 or 12_3"),
    "CHILD": (JOB_ID.match, "a job id such as 123 or 12_3"),
    "PARENT": (JOB_ID.match, "a job id such as 123 or 12_3"),
    "COUNT": (NUMBER.match, "the job's restart count, a number"),
    "DEADLINE": (NUMBER.match, "a moment in whole epoch seconds"),
    "NODE": (NODE_NAME.match, "one node's name (no brackets)"),
}
# An option whose check is None is a flag and takes no value.
OPTIONS: Dict[str, Tuple[Optional[Callable[[str], Any]], str]] = {
    "--all": (None, ""),
    "--again": (None, ""),
    "--dry-run": (None, ""),
    "--exclude": (_is_list_of(NODE_NAME, 4096), "node names separated by commas (no brackets)"),
    "--children": (_is_list_of(JOB_ID, 1000), "job ids separated by commas"),
    "--failed-at": (NUMBER.match, "a moment in whole epoch seconds"),
    "--signal": (re.compile(r"(HUP|INT|QUIT|USR1|USR2|TERM|CONT|KILL)\Z").match, "a signal such as USR1"),
    "--to": (re.compile(r"(steps|batch|all)\Z").match, "steps, batch or all"),
    "--start-in": (_is_start_in, "whole seconds, at least %d" % MIN_START_IN_S),
    "--allow": (_is_list_of(re.compile(r"(twin|dependent)\Z"), 2), "twin, dependent or both"),
    "--state-ok": (_is_list_of(WORD, 30), "job states separated by commas"),
    "--nodes": (_is_list_of(NODE_NAME, 4096), "node names separated by commas (no brackets)"),
    "--minutes": (_is_between(1, 60), "whole minutes, 1 to 60"),
    "--most": (_is_between(1, 100000), "a number of nodes"),
    "--leave": (_is_between(1, 100000), "a number of nodes"),
    "--why": (SIGNATURE.match, "a signature such as xid.79"),
    "--until": (NUMBER.match, "a moment in whole epoch seconds"),
}


def request_words(argv: Sequence[str]) -> List[str]:
    """The words of the request, also as a forced command brings them in its environment."""
    if len(argv) == 1 and argv[0] == "--forced":
        asked = FORCED.match(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
        if asked is None:
            raise Refusal("bad_request", "this key runs relight's gate and nothing else: expected `relight-gate CODE`")
        return decoded(asked.group(1))
    if len(argv) == 2 and argv[0] == "--encoded":
        return decoded(argv[1])
    return list(argv)


def decoded(code: str) -> List[str]:
    try:
        words = json.loads(base64.b64decode(code[:MAX_REQUEST].encode("ascii"), b"-_", validate=True).decode("utf-8"))
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Refusal("bad_request", "the request %r cannot be read: expected a JSON list in base 64" % code[:40])
    return words


def parse(words: Sequence[str]) -> Words:
    if not words or words[0] not in VERBS:
        known = ", ".join(sorted(VERBS))
        raise Refusal("bad_request", "%r is no verb of the gate: expected one of %s" % ("".join(words[:1])[:40], known))
    verb = VERBS[words[0]]
    positional: List[str] = []
    options: Dict[str, str] = {}
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            positional.append(word)
            continue
        if word not in verb.options:
            raise Refusal("bad_request", "%s does not take %r" % (words[0], word[:40]))
        check, expected = OPTIONS[word]
        if check is None:
            options[word] = ""
            continue
        if not rest or not check(rest[0]):
            raise Refusal("bad_request", "%s %r: expected %s" % (word, "".join(rest[:1])[:80], expected))
        options[word] = rest.pop(0)
    if len(positional) != len(verb.positional):
        raise Refusal("bad_request", "%s takes %s" % (words[0], " ".join(verb.positional) or "no words"))
    for name, value in zip(verb.positional, positional):
        check, expected = POSITIONAL[name]
        if not check(value):
            raise Refusal("bad_request", "%s %s=%r: expected %s" % (words[0], name, value[:80], expected))
    missing = [option for option in verb.required if not options.get(option)]
    if missing:
        raise Refusal("bad_request", "%s needs %s, %s" % (words[0], missing[0], OPTIONS[missing[0]][1]))
    return Words(words[0], dict(zip(verb.positional, positional)), options)


# ------------------------------------------------------------------------------------------------ running Slurm

AWAY = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connect failure",
    "unexpected message received",  # what scontrol says when nobody answered
    "zero bytes were transmitted",
    "communication connection failure",
    "communications connection failure",
    "controller is in standby mode",
    "backup controller in standby",
    "authentication",  # munge is down on either side: the scheduler cannot be reached from here
    "munge",
)
DENIED = ("permission denied", "invalid user id", "access denied", "not permitted", "not authorized")
KINDS = (
    (("invalid job id", "not found", "job/step already completing or completed"), "unknown_job"),
    (("only batch jobs are accepted", "heterogeneous job leader", "presently disabled"), "not_restartable"),
    (("already finished",), "finished"),
    (("suspended, requested operation",), "suspended"),
    (("pending execution",), "not_pending"),
    (("invalid node name",), "unknown_node"),
)


class Slurm:
    """Runs Slurm's commands from argument lists, with time limits and an environment of their own."""

    def __init__(self, settings: Settings) -> None:
        self.ends = time.monotonic() + CALL_LIMIT_S
        self.path = settings.path
        self.env = {"PATH": settings.path, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        if os.environ.get("SLURM_CONF"):
            self.env["SLURM_CONF"] = os.environ["SLURM_CONF"]

    def run(self, argv: Sequence[str], limit: float, away: str = "slurmctld_away") -> Tuple[int, bytes, str]:
        """Exit status, output and error text. Raises when it cannot be started or does not end in time."""
        limit = min(limit, self.ends - time.monotonic())
        if limit <= 0:
            raise Refusal(away, "no time left to run %s: Slurm answers too slowly" % argv[0])
        try:
            child = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env
            )
        except OSError as error:
            raise Refusal("slurm_error", "cannot run %s (PATH=%s): %s" % (argv[0], self.path, error.strerror)) from None
        try:
            out, err = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise Refusal(away, "%s did not answer within %.0f s" % (" ".join(argv[:2]), limit), unsure=True) from None
        if len(out) > 2 * MAX_OUTPUT:
            raise Refusal("slurm_error", "%s printed %d bytes: more than the gate reads" % (argv[0], len(out)))
        return child.returncode, out, err.decode("utf-8", "replace").strip()

    def read(self, argv: Sequence[str]) -> bytes:
        status, out, err = self.run(argv, READ_LIMIT_S)
        if status != 0:
            raise failure(argv, err or text(out))
        return out

    def change(self, argv: Sequence[str]) -> None:
        status, out, err = self.run(argv, CHANGE_LIMIT_S)
        if status != 0:
            refusal = failure(argv, err or text(out))
            if refusal.kind == "slurmctld_away":  # it may have died with the change made and the answer unsent
                refusal.more["unsure"] = True
            raise refusal

    def ping(self) -> List[str]:
        """Answers in milliseconds also when slurmctld is dead; every other command then takes 9 s to say so."""
        _, out, err = self.run(["scontrol", "ping"], READ_LIMIT_S)
        lines = [line.strip() for line in text(out).splitlines() if line.startswith("Slurmctld")]
        if not any(line.endswith(" UP") for line in lines):
            if not lines:
                raise failure(["scontrol", "ping"], err or "no answer")
            raise Refusal("slurmctld_away", "slurmctld does not answer: %s" % "; ".join(lines))
        return lines


def failure(argv: Sequence[str], message: str) -> Refusal:
    """What a failed command's error text means."""
    low = message.lower()
    said = "%s: %s" % (" ".join(argv[:2]), " / ".join(message.split("\n"))[:400])
    for part in AWAY:
        if part in low:
            return Refusal("slurmctld_away", said, unsure="timed out" in low)
    for part in DENIED:
        if part in low:
            return Refusal("denied", said + " (does the account that runs the gate have Slurm's Operator level?)")
    for parts, kind in KINDS:
        if any(part in low for part in parts):
            return Refusal(kind, said)
    return Refusal("slurm_error", said)


def text(value: bytes) -> str:
    """Bytes that are no UTF-8 stay visible as \\xNN: JSON and databases refuse them."""
    return value.decode("utf-8", "backslashreplace")


# ------------------------------------------------------------------------------------------------ squeue

# Fields of `squeue -O`, the same names in 22.05 and 24.11. Width 0 means: as long as it is.
SWEEP_FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "RestartCnt", "UserID", "UserName",
    "Account", "Partition", "QOS", "PriorityLong", "BatchFlag", "SubmitTime", "StartTime", "EndTime", "exit_code",
    "NumNodes", "NodeList", "Reason", "Dependency", "Name", "Comment",
)  # fmt: skip
JOB_FIELDS = SWEEP_FIELDS + (
    "EligibleTime", "BatchHost", "MinCpus", "NumCPUs", "MinMemory", "TimeLimit", "Feature", "Reservation", "ReqNodes",
    "Requeue", "STDOUT", "STDERR", "WorkDir", "Command",
)  # fmt: skip
JUDGED_FIELDS = ("JobID", "ArrayJobID", "ArrayTaskID", "State", "RestartCnt", "PriorityLong", "Requeue")
FAMILY_FIELDS = SWEEP_FIELDS + ("EligibleTime", "WorkDir", "Command")


def squeue(slurm: Slurm, fields: Sequence[str], filters: Sequence[str]) -> List[Dict[str, bytes]]:
    """Rows as raw bytes. The separator is drawn anew for each call: nothing a user typed can forge a field or row."""
    mark = "~" + os.urandom(6).hex() + "~"
    layout = ",".join("%s:0%s" % (field, mark) for field in fields)
    out = slurm.read(["squeue", "--all", "-h", "-t", "all", "-O", layout] + list(filters))
    return split_rows(out, mark.encode("ascii"), fields)


def split_rows(out: bytes, mark: bytes, fields: Sequence[str]) -> List[Dict[str, bytes]]:
    """Cells end with the mark; a row ends with a newline, which so leads the next row's first cell."""
    cells = out.split(mark)
    width = len(fields)
    if (len(cells) - 1) % width or cells[-1].strip():
        raise Refusal("slurm_error", "squeue printed %d cells for rows of %d: unknown layout" % (len(cells) - 1, width))
    rows = []
    for start in range(0, len(cells) - 1, width):
        row = dict(zip(fields, cells[start : start + width]))
        row[fields[0]] = row[fields[0]].strip()
        rows.append(row)
    return rows


def job_name(row: Dict[str, bytes]) -> str:
    """What people and Slurm's commands call the job: 123, or 12_3 for an array task."""
    task = text(row["ArrayTaskID"])
    if NUMBER.match(task):
        return "%s_%s" % (text(row["ArrayJobID"]), task)
    return text(row["JobID"])


def has_text(value: bytes) -> bool:
    return value not in (b"", b"(null)", b"N/A")


def texts(row: Dict[str, bytes]) -> Dict[str, str]:
    return {field: bounded(field, value) for field, value in row.items()}


def bounded(field: str, value: bytes) -> str:
    """Text is cut at its bound, a host list is refused beyond its own: half of one would name wrong nodes."""
    if not field.endswith(("NodeList", "ReqNodes")):
        return text(value)[:MAX_TEXT]
    if len(value) > MAX_NODE_LIST:
        raise Refusal("slurm_error", "%s of %d characters: at most %d are read" % (field, len(value), MAX_NODE_LIST))
    return text(value)


def epoch(value: bytes) -> Optional[int]:
    return int(value) if re.match(rb"[0-9]{5,12}\Z", value) else None


def has_ended(row: Dict[str, bytes]) -> bool:
    """For a COMPLETING job: True when its attempt is over, False when Slurm has already requeued it.

    A requeued job is PENDING underneath: its end is unknown or lies ahead (start + time limit, at least 60 s).
    """
    ended = epoch(row["EndTime"])
    return ended is not None and ended <= time.time() + SKEW_S


# ------------------------------------------------------------------------------------------------ one look at one job

SHOW_KEY = re.compile(
    rb"(?:^|[ \n])(Priority|Requeue|Restarts|ExitCode|ReqNodeList|ExcNodeList|NumNodes|MinMemory(?:Node|CPU)"
    rb"|(?:Req|Alloc)?TRES|JOB_GRES)=(\S*)"
)
ALLOCATED = re.compile(rb"\n {5}Nodes=(\S+) CPU_IDs=")
"""Lines of `scontrol -d`. They tell all nodes of an attempt while NodeList shrinks to those that are COMPLETING."""


def look(slurm: Slurm, job: str) -> Job:
    """Everything about one job from squeue and scontrol: read again until both tell of the same attempt."""
    for attempt in range(5):
        row = pick(squeue(slurm, JOB_FIELDS, ["-r", "-j", job]), job)
        name = job_name(row)
        shown = slurm.read(["scontrol", "-d", "show", "job", name])
        facts = read_show(shown, row)
        if facts is not None:
            break
        time.sleep(0.05 * (attempt + 1))
    else:
        raise Refusal("slurm_error", "job %s changes faster than it can be read" % job)
    found: Job = {"id": name, "row": texts(row), "show": facts, "at": round(time.time(), 3)}
    found["state"] = text(row["State"])
    found["restarts"] = int(row["RestartCnt"])
    found["base"], found["base_from"] = base_state(slurm, name, row)
    found["raw"] = row
    return found


def pick(rows: List[Dict[str, bytes]], job: str) -> Dict[str, bytes]:
    tasks = [row for row in rows if text(row["ArrayJobID"]) == job and NUMBER.match(text(row["ArrayTaskID"]))]
    if len(tasks) > 1:
        names = ", ".join(sorted(job_name(row) for row in tasks)[:3])
        raise Refusal(
            "bad_request", "job %s is an array of %d tasks: name one of them (%s, …)" % (job, len(tasks), names)
        )
    for row in rows:
        if job in (job_name(row), text(row["JobID"])):
            return row
    raise Refusal("unknown_job", "Slurm knows no job %s (any more)" % job)


def read_show(shown: bytes, row: Dict[str, bytes]) -> Optional[Dict[str, str]]:
    """Fields that squeue lacks. The name is cut out first, so that a newline in it cannot forge a field; of each field
    the first occurrence counts, and all those taken stand before anything else a user typed."""
    start = shown.find(b" JobName=")
    name = row["Name"]
    if start < 0 or not shown.startswith(b"JobId=" + row["JobID"] + b" "):
        return None
    rest = shown[start + len(b" JobName=") :]
    if not rest.startswith(name + b"\n"):
        return None
    rest = rest[len(name) :]
    facts: Dict[str, str] = {}
    own = rest[: rest.find(b"\n   Features=")]
    for key, value in SHOW_KEY.findall(own):
        facts.setdefault(text(key), bounded(text(key), value))
    facts["AllocNodeList"] = bounded("AllocNodeList", b",".join(ALLOCATED.findall(own)))
    if facts.get("Restarts") != text(row["RestartCnt"]):
        return None
    facts["StdOut"], facts["StdErr"] = output_paths(rest, row)
    return facts


def output_paths(rest: bytes, row: Dict[str, bytes]) -> Tuple[str, str]:
    """squeue tells the paths as they were asked for (%x-%j.out), scontrol tells them expanded."""
    paths = []
    tail = rest
    for field in ("WorkDir", "Comment"):  # known text is stepped over, whatever it contains
        known = b"\n   " + field.encode("ascii") + b"=" + row[field]
        at = tail.find(known)
        if at >= 0:
            tail = tail[at + len(known) :]
    stand_in = os.urandom(8).hex().encode("ascii")
    if b"\n" in row["Name"]:
        tail = tail.replace(row["Name"], stand_in)
    for key, asked in ((b"StdOut", row["STDOUT"]), (b"StdErr", row["STDERR"])):
        found = re.search(rb"\n   " + key + rb"=([^\n]*)", tail)
        if found and found.group(1):
            paths.append(text(found.group(1).replace(stand_in, row["Name"]))[:MAX_TEXT])
        else:
            paths.append(text(asked)[:MAX_TEXT] if has_text(asked) else "")
    return paths[0], paths[1]


def base_state(slurm: Slurm, job: str, row: Dict[str, bytes]) -> Tuple[Optional[str], str]:
    """The state beneath the flag COMPLETING, and who says so. Only accounting knows whether it was cancelled."""
    state = text(row["State"])
    if state != "COMPLETING":
        return state, "slurmctld"
    if not has_ended(row):
        return "PENDING", "slurmctld"
    try:
        rows = attempts(slurm, job)
    except Refusal as refusal:
        return None, refusal.kind
    for entry in reversed(rows or []):
        if entry["Submit"] == text(row["SubmitTime"]):
            state = entry["State"].split(" ")[0]
            if state in FINISHED or state == "CANCELLED":
                return state, "accounting"
            break
    return None, "accounting has no word yet" if rows is not None else "accounting is off"


# ------------------------------------------------------------------------------------------------ accounting

SACCT_FIELDS = (
    "JobIDRaw", "JobID", "State", "ExitCode", "NodeList", "Start", "End", "User", "Reason", "Comment", "Submit",
)  # fmt: skip


def attempts(slurm: Slurm, job: str) -> Optional[List[Dict[str, str]]]:
    """Rows of `sacct -D`, oldest first; None where accounting is off. The last field is a time: no text a user typed
    stands next to the newline that ends a row."""
    mark = "~" + os.urandom(6).hex() + "~"
    argv = ["sacct", "-D", "-X", "-n", "-P", "-j", job, "--delimiter=" + mark, "-o", ",".join(SACCT_FIELDS)]
    status, out, err = slurm.run(argv, DBD_LIMIT_S, away="slurmdbd_away")
    low = err.lower()
    if "accounting storage is disabled" in low or "accounting_storage/none" in low:
        return None
    if status != 0 or "error" in low:
        away = ("connection", "refused", "persist", "problem talking", "timed out", "unable to contact")
        kind = "slurmdbd_away" if any(part in low for part in away) else failure(argv, err).kind
        raise Refusal(kind, "sacct: %s" % " / ".join(err.split("\n"))[:400])
    return split_attempts(out, mark.encode("ascii"), job)[-MAX_ATTEMPT_ROWS:]


def split_attempts(out: bytes, mark: bytes, job: str) -> List[Dict[str, str]]:
    """The mark stands between cells, a newline after each row's last one."""
    rows = []
    cells = out.split(mark)
    width = len(SACCT_FIELDS) - 1
    carried = cells[0]
    for start in range(1, len(cells) - width + 1, width):
        values = [carried] + cells[start : start + width]
        values[-1], _, carried = values[-1].partition(b"\n")
        rows.append({field: bounded(field, value) for field, value in zip(SACCT_FIELDS, values)})
    rows = [row for row in rows if job in (row["JobID"], row["JobIDRaw"])]
    rows.sort(key=lambda row: (row["Submit"], row["Start"] if row["Start"].isdigit() else "9" * 12))
    return rows


# ------------------------------------------------------------------------------------------------ relatives

DEPENDENCY = re.compile(
    r"(after|afterany|afternotok|afterok|aftercorr|afterburstbuffer):([0-9]+(?:_(?:[0-9]+|\*))?)((?:\+[0-9]+)?)(?:\(([a-z_]+)\))?\Z"
)
ENDS = ("afterany", "afternotok", "afterok", "aftercorr")  # those that wait for a job's end
SINGLETON = re.compile(r"singleton(?:\([a-z_]+\))?\Z")


def dependency_items(value: str) -> List[str]:
    return [] if value in ("", "(null)") else re.split(r"[,?]", value)


def kinds_naming(value: str, parent: Dict[str, bytes]) -> List[str]:
    """The kinds of dependency in `value` that name the parent job."""
    names = {job_name(parent), text(parent["JobID"])}
    if NUMBER.match(text(parent["ArrayTaskID"])):
        names = {job_name(parent), text(parent["ArrayJobID"]) + "_*"}
    found = (DEPENDENCY.match(item) for item in dependency_items(value))
    return [match.group(1) for match in found if match and match.group(2) in names]


def family_rows(slurm: Slurm, uid: str) -> List[Dict[str, bytes]]:
    """All jobs of one user. An uid without a name on this machine is filtered here instead of by squeue."""
    try:
        rows = squeue(slurm, FAMILY_FIELDS, ["-u", uid])
    except Refusal as refusal:
        if refusal.kind != "slurm_error":
            raise
        rows = []
    rows = rows or squeue(slurm, FAMILY_FIELDS, [])
    return [row for row in rows if text(row["UserID"]) == uid]


def relatives(slurm: Slurm, found: Job, children: Sequence[str] = (), failed_at: Optional[int] = None) -> Answer:
    """Who else may write what this job writes. `failed_at` is when it failed, where that was before its end.

    A dependency that is fulfilled leaves no trace in Slurm. So a started dependent is told by what the caller saw
    earlier (`children`), or by its eligible time: submitted before this job's end, eligible right after it, sharing
    its name, folder or script.
    """
    own = found["raw"]
    ended = epoch(own["EndTime"]) if is_over(found) else None
    dependents: List[Dict[str, Any]] = []
    twins: List[Dict[str, Any]] = []
    candidates: List[Tuple[Dict[str, bytes], Dict[str, Any]]] = []
    for row in family_rows(slurm, text(own["UserID"])):
        if row["JobID"] == own["JobID"]:
            continue
        same = [key for key in ("Name", "WorkDir", "Command") if has_text(own[key]) and row[key] == own[key]]
        state, waits = text(row["State"]), text(row["Dependency"])
        alive = state in ALIVE or (state == "COMPLETING" and not has_ended(row))
        alive = alive and text(row["Reason"]) != "DependencyNeverSatisfied"
        newer = int(row["JobID"]) > int(own["JobID"])
        where = checkpoint_dir(row)
        shares = where != "" and where == checkpoint_dir(own)
        entry: Dict[str, Any] = {
            "id": job_name(row), "state": state, "reason": text(row["Reason"]), "user": text(row["UserName"]),
            "submit": epoch(row["SubmitTime"]), "start": epoch(row["StartTime"]), "same": same,
        }  # fmt: skip
        kinds = kinds_naming(waits, own)
        singleton = any(SINGLETON.match(item) for item in dependency_items(waits)) and "Name" in same and newer
        if kinds or singleton:
            never = text(row["Reason"]) == "DependencyNeverSatisfied" or "(failed)" in waits
            for kind in kinds or ["singleton"]:
                dependents.append(dict(entry, kind=kind, never_satisfied=never, started=False, how="dependency"))
            continue
        started = state not in ("PENDING", "CANCELLED") or (state == "PENDING" and waits == "(null)")
        if job_name(row) in children and started and ended is not None:
            dependents.append(dict(entry, kind="", never_satisfied=False, started=True, how="seen"))
        elif ended is not None and same and started and follows(row, own, same, ended):
            dependents.append(dict(entry, kind="", never_satisfied=False, started=True, how="eligible_after_end"))
        elif newer and alive and not is_sibling(row, own) and does_the_same(row, own, same):
            entry["same"] = same + (["CheckpointDir"] if shares else [])
            candidates.append((row, entry))
    failed = failed_at if failed_at is not None else ended
    if failed is not None:
        asked = [0]
        twins = [entry for row, entry in candidates if is_copy(slurm, row, own, entry["same"], failed, asked)]
    return {"twins": twins[:200], "dependents": dependents[:200]}


def does_the_same(row: Dict[str, bytes], own: Dict[str, bytes], same: Sequence[str]) -> bool:
    """Whether two jobs would write the same: the folders for checkpoints that they name decide where both name one;
    otherwise the name and the folder or script."""
    theirs, ours = checkpoint_dir(row), checkpoint_dir(own)
    if theirs and ours:
        return theirs == ours
    return "Name" in same and len(same) > 1


def checkpoint_dir(row: Dict[str, bytes]) -> str:
    """The folder for checkpoints that the job's comment names; empty: none."""
    if b"checkpoint_dir" not in row["Comment"]:
        return ""
    try:
        asked = json.loads(text(row["Comment"])).get("relight")
        where = asked.get("checkpoint_dir")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return os.path.normpath(where) if isinstance(where, str) and where.startswith("/") else ""


def is_copy(
    slurm: Slurm, row: Dict[str, bytes], own: Dict[str, bytes], same: Sequence[str], failed: int, asked: List[int]
) -> bool:
    """Whether a job was submitted since the other one failed: runs that were submitted side by side are no copies.

    A script that submits its own copy does so a little before its end; the very same job, submitted in the last minute
    of one that lived longer than that, counts as well.
    """
    submitted = first_submit(slurm, row, asked)
    if submitted is None or submitted >= failed:
        return True  # not known: two writers would be worse than a job that is left alone
    started = epoch(own["StartTime"])
    all_same = {"Name", "WorkDir", "Command"} <= set(same)
    return all_same and started is not None and submitted > started + RESUBMIT_S and submitted >= failed - RESUBMIT_S


def first_submit(slurm: Slurm, row: Dict[str, bytes], asked: List[int]) -> Optional[int]:
    """When a job was submitted at first. A requeue sets a new time; accounting, where there is one, knows the old."""
    restarts = int(row["RestartCnt"])
    if restarts == 0:
        return epoch(row["SubmitTime"])
    asked[0] += 1
    if asked[0] > MAX_FIRST_SUBMITS:
        return None
    try:
        rows = attempts(slurm, job_name(row)) or []
    except Refusal:
        rows = []
    if rows and rows[-1]["Submit"] == text(row["SubmitTime"]):  # accounting knows the newest attempt already
        rows = rows[:-1]
    if len(rows) < restarts:
        return None
    return epoch(rows[-restarts]["Submit"].encode("ascii", "replace"))


def follows(row: Dict[str, bytes], own: Dict[str, bytes], same: Sequence[str], ended: int) -> bool:
    submitted, eligible = epoch(row["SubmitTime"]), epoch(row["EligibleTime"])
    if submitted is None or eligible is None or int(row["RestartCnt"]) > 0:
        return False
    # An array task becomes eligible only when its turn comes: of other arrays only one of the same name counts.
    if has_text(row["ArrayTaskID"]) and (is_sibling(row, own) or "Name" not in same):
        return False
    return submitted <= ended <= eligible <= ended + FOLLOW_S and eligible > submitted


def is_sibling(row: Dict[str, bytes], own: Dict[str, bytes]) -> bool:
    return has_text(row["ArrayTaskID"]) and row["ArrayJobID"] == own["ArrayJobID"]


def is_over(found: Job) -> bool:
    return (
        found["base"] in FINISHED or found["base"] == "CANCELLED" or (found["base"] is None and has_ended(found["raw"]))
    )


# ------------------------------------------------------------------------------------------------ the gate's own state


def stop_sign(folder: str) -> str:
    """Why nothing may be changed now: the STOP file and what stands in it; empty when there is none."""
    name = os.path.join(folder, "STOP")
    if not os.path.lexists(name):
        return ""
    try:
        with open(name, "rb") as file:
            why = text(file.read(200)).strip()
    except OSError:
        why = ""
    return "%s exists%s" % (name, why and " (%s)" % why)


class OwnState:
    """Locks, the count of changes and the STOP file, in one folder. No folder, no change."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.folder
        self.ceilings = {"changes": settings.ceiling, "drains": settings.drain_ceiling}
        if not os.path.isdir(self.folder) or not os.access(self.folder, os.W_OK | os.X_OK):
            raise Refusal(
                "bad_config",
                "the gate's folder %s is missing or not writable for uid %d: create it, or name another one in "
                "RELIGHT_GATE_DIR; without it nothing is changed" % (self.folder, os.getuid()),
            )
        if os.stat(self.folder).st_mode & 0o002:
            raise Refusal("bad_config", "everybody may write into the gate's folder %s: chmod 700 it" % self.folder)

    def check_stop(self) -> None:
        why = stop_sign(self.folder)
        if why:
            raise Refusal("stopped", why + ": remove it to allow changes again")

    def lock(self, name: str, until: float) -> Any:
        file = open(os.path.join(self.folder, name), "a")  # noqa: SIM115 - held until the caller lets go
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except OSError:
                if time.time() >= until:
                    file.close()
                    raise Refusal("busy", "another call of the gate holds %s" % name) from None
                time.sleep(0.02)

    def changes(self, kind: str) -> List[float]:
        try:
            with open(os.path.join(self.folder, kind + ".json"), "rb") as file:
                stored = json.loads(file.read(1 << 20).decode("ascii"))
            return [float(moment) for moment in stored if float(moment) > time.time() - 3600]
        except OSError as error:
            if error.errno == errno.ENOENT:
                return []
            raise Refusal("bad_config", "cannot read %s/%s.json: %s" % (self.folder, kind, error.strerror)) from None
        except (ValueError, TypeError):
            message = "%s/%s.json is damaged: remove it to start counting anew" % (self.folder, kind)
            raise Refusal("bad_config", message) from None

    def spend(self, dry: bool, kinds: Sequence[str] = ("changes",)) -> None:
        """Counts one change in each of its kinds, or refuses it at a ceiling."""
        with self.lock("changes.lock", time.time() + LOCK_LIMIT_S):
            counted = {kind: self.changes(kind) for kind in kinds}
            for kind, moments in counted.items():
                if len(moments) >= self.ceilings[kind]:
                    wait = 3600 - (time.time() - min(moments)) if moments else 3600
                    variable = "RELIGHT_GATE_DRAIN_CEILING" if kind == "drains" else "RELIGHT_GATE_CEILING"
                    raise Refusal(
                        "ceiling",
                        "the gate made %d %s within the hour, its ceiling: the next is possible in %d s "
                        "(%s raises it)" % (len(moments), kind, wait + 1, variable),
                        retry_in_s=int(wait) + 1,
                    )
            if dry:
                return
            for kind, moments in counted.items():
                name = os.path.join(self.folder, kind + ".json")
                with open(name + ".new", "w") as file:
                    json.dump(moments + [round(time.time(), 3)], file)
                os.replace(name + ".new", name)


class Change:
    """What every change shares: the lock of its job, the fences before it, and the fresh look after it."""

    def __init__(self, slurm: Slurm, words: Words, settings: Settings, job: str) -> None:
        self.slurm = slurm
        self.words = words
        self.job = job
        self.deadline = words.number("DEADLINE")
        self.dry = words.flag("--dry-run")
        self.state = OwnState(settings)
        self.check()
        # Few lock files for ever, instead of one for each job that ever was: two jobs that share one only wait.
        slot = zlib.crc32(job.encode("ascii")) % 64
        self.last_look = time.monotonic()
        self.window_s: Optional[float] = None
        self.held = self.state.lock("job-%02d.lock" % slot, min(self.deadline, time.time() + LOCK_LIMIT_S))
        slurm.ping()

    def check(self) -> None:
        self.state.check_stop()
        if time.time() >= self.deadline:
            raise Refusal("late", "the deadline %d passed %.1f s ago" % (self.deadline, time.time() - self.deadline))

    def look(self) -> Job:
        found = look(self.slurm, self.job)
        if found["id"] != self.job:
            raise Refusal("bad_request", "job %s is array task %s: name it so for a change" % (self.job, found["id"]))
        return found

    def fenced(self, found: Job) -> Job:
        if found["restarts"] != self.words.number("COUNT"):
            raise Refusal(
                "stale",
                "job %s has restart count %d, the change is meant for %d"
                % (self.job, found["restarts"], self.words.number("COUNT")),
                restarts=found["restarts"],
            )
        return found

    def go(self, found: Job) -> None:
        """The last thing before a change: the fences once more, and one quick look whether the job is still as judged.

        Slurm has no compare-and-set. What is left is the time from here to slurmctld's taking the command, which the
        answer tells (window_ms).
        """
        self.check()
        self.state.spend(self.dry)
        self.last_look = time.monotonic()
        now = pick(squeue(self.slurm, JUDGED_FIELDS, ["-r", "-j", self.job]), self.job)
        # An epilog may end meanwhile: then the state beneath shows.
        if judged(now) != judged(found["raw"]) or text(now["State"]) not in (found["state"], found["base"]):
            kind = "changed" if now["RestartCnt"] == found["raw"]["RestartCnt"] else "stale"
            told = (self.job, found["state"], text(now["State"]))
            raise Refusal(kind, "job %s changed while it was checked (%s, now %s): look again" % told)
        self.check()

    def run(self, argv: Sequence[str]) -> float:
        """Makes the change; when slurmctld had taken it."""
        self.slurm.change(argv)
        self.window_s = time.monotonic() - self.last_look
        return time.time()

    def answer(self, before: Job, done: bool, acted_at: Optional[float] = None, **more: Any) -> Answer:
        reply: Answer = {"done": done, "already": False, "dry_run": self.dry, "before": public(before), "note": ""}
        reply.update(more)
        reply["acted_at"] = round(acted_at, 3) if acted_at is not None else None
        reply["window_ms"] = int(self.window_s * 1000) if self.window_s is not None else None
        reply["job"] = None
        try:
            reply["job"] = public(look(self.slurm, self.job))
        except Refusal as refusal:  # the change is made: that its effect cannot be seen now must not hide it
            reply["note"] = (reply["note"] + " cannot look after the change: " + refusal.message).strip()
        return reply


def judged(row: Dict[str, bytes]) -> Tuple[bytes, ...]:
    """What a verdict rests on besides the state. A priority moves all the time; only being held matters."""
    return (row["RestartCnt"], row["Requeue"], b"held" if row["PriorityLong"] == b"0" else b"")


def public(found: Job) -> Job:
    return {key: value for key, value in found.items() if key != "raw"}


def refuse_unless_batch(found: Job) -> None:
    row = found["raw"]
    if text(row["BatchFlag"]) == "0":
        raise Refusal(
            "not_restartable", "job %s is interactive (salloc or srun): Slurm requeues batch jobs only" % found["id"]
        )
    if has_text(row["HetJobID"]) and text(row["HetJobID"]) != "0":
        raise Refusal(
            "not_restartable", "job %s is part of heterogeneous job %s" % (found["id"], text(row["HetJobID"]))
        )


def refuse_over(found: Job) -> None:
    """Refuses a change that needs a living job."""
    if found["base"] == "CANCELLED":
        raise Refusal("cancelled", "job %s was cancelled" % found["id"])
    if is_over(found):
        raise Refusal("finished", "job %s has ended (%s)" % (found["id"], found["base"] or found["state"]))


# ------------------------------------------------------------------------------------------------ reading verbs


def verb_ping(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    return {"controllers": slurm.ping(), "now": round(time.time(), 3), "stop": stop_sign(settings.folder)}


def verb_sweep(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    slurm.ping()
    at = round(time.time(), 3)
    rows = squeue(slurm, SWEEP_FIELDS, [])
    wanted = [row for row in rows if words.flag("--all") or has_text(row["Comment"])]
    # Dependents of the jobs told, also those without a comment: once they have started, Slurm forgets the link.
    names: Dict[str, str] = {}
    for row in wanted:
        names[job_name(row)] = job_name(row)
        names.setdefault(text(row["JobID"]), job_name(row))
    links = []
    for row in rows:
        for item in dependency_items(text(row["Dependency"])):
            match = DEPENDENCY.match(item)
            if match and match.group(1) in ENDS and match.group(2) in names:
                links.append([job_name(row), match.group(1), names[match.group(2)]])
    return {
        "at": at,
        "fields": list(SWEEP_FIELDS),
        "rows": [sweep_cells(row) for row in wanted],
        "links": links[:20000],
        "total": len(rows),
    }


def sweep_cells(row: Dict[str, bytes]) -> List[str]:
    """The quick way for rows that need no cut: there are thousands."""
    if sum(map(len, row.values())) <= MAX_TEXT:
        return [text(value) for value in row.values()]
    return [bounded(field, value) for field, value in row.items()]


def verb_job(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    slurm.ping()
    return {"job": public(look(slurm, words.job()))}


def verb_attempts(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    return {"rows": attempts(slurm, words.job())}


def verb_relatives(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    slurm.ping()
    found = look(slurm, words.job())
    reply = relatives(slurm, found, words.names("--children"), failed_at(words))
    reply["job"] = public(found)
    return reply


NODE_KEY = re.compile(
    r"(?:^| )(NodeName|State|RealMemory|CPUTot|CPUEfctv|Partitions|ActiveFeatures|AvailableFeatures"
    r"|BootTime|SlurmdStartTime)=(\S*)"
)


def verb_nodes(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    slurm.ping()
    return {"nodes": shown_nodes(slurm)}


def shown_nodes(slurm: Slurm) -> List[Dict[str, str]]:
    return read_nodes(slurm.read(["scontrol", "-o", "--all", "show", "nodes"]))


def facts_in(line: str, keys: "re.Pattern[str]") -> Dict[str, str]:
    """The values of those keys in a line of scontrol -o; of a key that stands twice the first."""
    facts: Dict[str, str] = {}
    for key, value in keys.findall(line):
        facts.setdefault(key, value)
    return facts


def read_nodes(shown: bytes) -> List[Dict[str, str]]:
    nodes = []
    for line in text(shown).splitlines():
        if line.startswith("NodeName="):
            facts = facts_in(line, NODE_KEY)
            # "Reason=… [who@when]" is followed by nothing that is needed here.
            reason = re.search(r" Reason=(.*?)(?: \[[^\[\]]*@[^\[\]]*\].*)?\Z", line)
            facts["Reason"] = reason.group(1).strip()[:400] if reason else ""
            nodes.append(facts)
    return nodes


TOPOLOGY_KEY = re.compile(r"(?:^| )(SwitchName|BlockName|Level|Nodes)=(\S+)")


def verb_topology(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    """Switches or blocks, one a line. A cluster without topology says so in an error, which is no trouble."""
    slurm.ping()
    status, out, _ = slurm.run(["scontrol", "show", "topology"], READ_LIMIT_S)
    return {"topology": read_topology(out[:MAX_OUTPUT]) if status == 0 else []}


def read_topology(shown: bytes) -> List[Dict[str, str]]:
    lines = [dict(TOPOLOGY_KEY.findall(line)) for line in text(shown).splitlines()]
    return [facts for facts in lines if len(facts.get("Nodes", "")) <= MAX_NODE_LIST and facts]


CONFIG_KEYS = (
    "ClusterName", "SLURM_VERSION", "MinJobAge", "AuthInfo", "JobRequeue", "AccountingStoreFlags",
    "AccountingStorageType", "KillWait", "RequeueExit", "RequeueExitHold", "EpilogMsgTime", "MessageTimeout",
)  # fmt: skip


RESERVATION_KEY = re.compile(r"(?:^| )(ReservationName|StartTime|EndTime|Nodes|NodeCnt|Flags|PartitionName)=(\S*)")


def verb_reservations(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    slurm.ping()
    return {"reservations": list(reservations(slurm).values())}


def reservations(slurm: Slurm) -> Dict[str, Dict[str, str]]:
    """All reservations by name. Where there is none, some versions say so in an error."""
    argv = ["scontrol", "-o", "--all", "show", "reservation"]
    status, out, err = slurm.run(argv, READ_LIMIT_S)
    if status != 0 and "no reservations" not in (text(out) + err).lower():
        raise failure(argv, err or text(out))
    found = {}
    for line in text(out).splitlines()[:10000]:
        facts = facts_in(line, RESERVATION_KEY)
        if "ReservationName" in facts:
            found[facts["ReservationName"]] = {key: value[:MAX_NODE_LIST] for key, value in facts.items()}
    return found


def verb_config(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    slurm.ping()
    return {"config": read_config(slurm.read(["scontrol", "show", "config"]))}


def read_config(shown: bytes) -> Dict[str, str]:
    facts = {}
    for line in text(shown).splitlines():
        key, _, value = line.partition("=")
        if key.strip() in CONFIG_KEYS:
            facts[key.strip()] = value.strip()[:400]
    if "AuthInfo" in facts:  # where sockets and keys lie is nobody's business
        facts["AuthInfo"] = ",".join(part for part in facts["AuthInfo"].split(",") if part.startswith("cred_expire"))
    return facts


# ------------------------------------------------------------------------------------------------ changing verbs


def known_nodes(slurm: Slurm, names: Sequence[str]) -> List[str]:
    """Those of the names that Slurm knows. One unknown name would make a whole update fail."""
    if not names:
        return []
    _, out, err = slurm.run(["scontrol", "-o", "show", "node", ",".join(names)], READ_LIMIT_S)
    known = set(re.findall(r"^NodeName=(\S+)", text(out), re.M))
    if not known and "not found" not in (text(out) + err):
        raise failure(["scontrol", "show", "node"], err or text(out))
    return [name for name in names if name in known]


def lease_words(words: Words, exclude: Optional[Sequence[str]]) -> List[str]:
    """The one update that sets exclusions and start together. No exclusion list given: the job's own stays."""
    parts = []
    if exclude is not None:
        parts.append("ExcNodeList=" + ",".join(exclude))
    if words.flag("--start-in"):
        parts.append("StartTime=now+" + words.options["--start-in"])
    return parts


def refuse_restart_of(found: Job, asked: Sequence[str]) -> None:
    """Refuses every state from which a restart would harm."""
    base, job, row = found["base"], found["id"], found["raw"]
    refuse_unless_batch(found)
    if base is None:
        raise Refusal(
            "completing",
            "job %s is COMPLETING and cannot be told from a cancelled one (%s): look again when its epilog is done"
            % (job, found["base_from"]),
        )
    if base == "CANCELLED":
        raise Refusal("cancelled", "job %s was cancelled" % job)
    if base == "COMPLETED":
        raise Refusal("finished", "job %s has completed" % job)
    if base in ("SUSPENDED", "STOPPED"):
        raise Refusal("suspended", "job %s is %s" % (job, base))
    if base == "SPECIAL_EXIT" or (base == "PENDING" and text(row["PriorityLong"]) == "0"):
        raise Refusal("held", "job %s is held (%s)" % (job, text(row["Reason"])))
    if base == "PENDING":
        raise Refusal("pending", "job %s waits already: there is nothing to requeue, use lease" % job)
    if base not in RESTARTABLE and not (base in RESTARTABLE_WHEN_ASKED and base in asked):
        raise Refusal("state_not_allowed", "job %s is %s, which this restart does not name (--state-ok)" % (job, base))
    if text(row["Requeue"]) == "0":
        raise Refusal("not_restartable", "job %s was submitted with --no-requeue; arm it while it is alive" % job)


def failed_at(words: Words) -> Optional[int]:
    return int(words.options["--failed-at"]) if words.flag("--failed-at") else None


def refuse_company(slurm: Slurm, found: Job, words: Words) -> None:
    """Stands aside for whoever may already write the same checkpoint."""
    allowed = words.names("--allow")
    family = relatives(slurm, found, words.names("--children"), failed_at(words))
    started = [entry["id"] for entry in family["dependents"] if entry["started"]]
    if started and "dependent" not in allowed:
        raise Refusal(
            "dependent",
            "dependents of job %s have started: %s" % (found["id"], ", ".join(started[:10])),
            jobs=started[:50],
        )
    twins = [entry["id"] for entry in family["twins"]]
    if twins and "twin" not in allowed:
        raise Refusal(
            "twin",
            "copies of job %s that were submitted since it failed live: %s" % (found["id"], ", ".join(twins[:10])),
            jobs=twins[:50],
        )


def set_lease(slurm: Slurm, change: Change, known: Optional[List[str]]) -> Tuple[bool, str, Optional[List[str]]]:
    """Applies the update; tries again for a moment when slurmctld stumbles: a requeue without its lease is the one
    half-done state that starts a job on the nodes it should avoid."""
    note = ""
    for attempt in range(4):
        try:
            slurm.change(["scontrol", "update", "jobid=" + change.job] + lease_words(change.words, known))
            return True, note, known
        except Refusal as refusal:
            note = refusal.message
            if refusal.kind == "unknown_node" and known:
                known = known_nodes(slurm, known)
            elif refusal.kind not in ("slurmctld_away", "slurm_error") or time.time() >= change.deadline:
                break
        time.sleep(0.2 * (attempt + 1))
    return False, note, known


def verb_restart(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    if not words.flag("--start-in"):
        raise Refusal("bad_request", "restart needs --start-in S: the lease after which Slurm starts the job by itself")
    change = Change(slurm, words, settings, words.job())
    found = change.look()
    wanted = words.names("--exclude")
    known = known_nodes(slurm, wanted) if words.flag("--exclude") else None
    unknown = [name for name in wanted if known is not None and name not in known]
    if words.flag("--again") and found["restarts"] == words.number("COUNT") + 1:
        return restart_again(slurm, change, found, known, unknown)
    change.fenced(found)
    refuse_restart_of(found, words.names("--state-ok"))
    refuse_company(slurm, found, words)
    change.go(found)
    if change.dry:
        return change.answer(found, False, unknown=unknown, leased=False)
    acted_at = change.run(["scontrol", "requeue", change.job])
    leased, note, known = set_lease(slurm, change, known)
    unknown = [name for name in wanted if known is not None and name not in known]
    return change.answer(found, True, acted_at, leased=leased, note=note, unknown=unknown)


def restart_again(slurm: Slurm, change: Change, found: Job, known: Optional[List[str]], unknown: List[str]) -> Answer:
    """The requeue was made by an earlier run of this step: only its lease may be missing."""
    if found["base"] == "CANCELLED":
        raise Refusal("cancelled", "job %s was cancelled after its restart" % change.job)
    if found["base"] != "PENDING":
        return change.answer(found, False, already=True, leased=False, unknown=unknown)
    change.go(found)
    if change.dry:
        return change.answer(found, False, already=True, leased=False, unknown=unknown)
    leased, note, known = set_lease(slurm, change, known)
    return change.answer(found, True, time.time(), already=True, leased=leased, note=note, unknown=unknown)


def verb_lease(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    if not words.flag("--start-in") and not words.flag("--exclude"):
        raise Refusal("bad_request", "lease needs --exclude, --start-in or both")
    change = Change(slurm, words, settings, words.job())
    found = change.fenced(change.look())
    if found["base"] != "PENDING":
        refuse_over(found)
        raise Refusal("not_pending", "job %s is %s: a lease is set while it waits" % (change.job, found["base"]))
    wanted = words.names("--exclude")
    known = known_nodes(slurm, wanted) if words.flag("--exclude") else None
    change.go(found)
    acted_at = None
    if not change.dry:
        acted_at = change.run(["scontrol", "update", "jobid=" + change.job] + lease_words(words, known))
    unknown = [name for name in wanted if known is not None and name not in known]
    return change.answer(found, not change.dry, acted_at, leased=not change.dry, unknown=unknown)


def verb_stop(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    change = Change(slurm, words, settings, words.job())
    found = change.fenced(change.look())
    refuse_over(found)
    change.go(found)
    if change.dry:
        return change.answer(found, False)
    return change.answer(found, True, change.run(["scancel", change.job]))


def verb_signal(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    if not words.flag("--signal"):
        raise Refusal("bad_request", "signal needs --signal NAME, such as USR1")
    change = Change(slurm, words, settings, words.job())
    found = change.fenced(change.look())
    refuse_over(found)
    refuse_unless_batch(found)
    if found["base"] != "RUNNING":
        raise Refusal(
            "state_not_allowed", "job %s is %s: only a running job is signalled" % (change.job, found["base"])
        )
    change.go(found)
    if change.dry:
        return change.answer(found, False)
    to = {"steps": [], "batch": ["--batch"], "all": ["--full"]}[words.options.get("--to", "steps")]
    argv = ["scancel", "--signal=" + words.options["--signal"]] + to + [change.job]
    return change.answer(found, True, change.run(argv))


def verb_release(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    change = Change(slurm, words, settings, words.job())
    found = change.fenced(change.look())
    refuse_over(found)
    reason = text(found["raw"]["Reason"]).replace(" ", "_").lower()
    held = found["base"] == "SPECIAL_EXIT" or text(found["raw"]["PriorityLong"]) == "0"
    if found["base"] not in ("PENDING", "SPECIAL_EXIT") or not held:
        raise Refusal("not_pending", "job %s is not held (%s, %s)" % (change.job, found["state"], reason))
    if reason not in SLURM_HELD_REASONS:
        raise Refusal("held", "job %s is held by a person or the site (%s): not ours to release" % (change.job, reason))
    change.go(found)
    if change.dry:
        return change.answer(found, False)
    return change.answer(found, True, change.run(["scontrol", "release", change.job]))


def verb_arm(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    change = Change(slurm, words, settings, words.job())
    found = change.fenced(change.look())
    refuse_over(found)
    refuse_unless_batch(found)
    if text(found["raw"]["Requeue"]) == "1":
        return change.answer(found, False, already=True)
    change.go(found)
    if change.dry:
        return change.answer(found, False)
    return change.answer(found, True, change.run(["scontrol", "update", "jobid=" + change.job, "Requeue=1"]))


def rearmed(value: str, parent: Dict[str, bytes]) -> Tuple[str, bool]:
    """The child's dependency text as an update takes it, and whether it names the parent by afterok at all."""
    separators = set(re.findall(r"[,?]", value))
    if len(separators) > 1:
        raise Refusal("bad_request", "dependency %r mixes ',' and '?': not understood" % value[:200])
    items, names_parent = [], False
    for item in dependency_items(value):
        match = DEPENDENCY.match(item)
        if match:
            items.append("%s:%s%s" % (match.group(1), match.group(2).replace("_*", ""), match.group(3)))
            names_parent = names_parent or "afterok" in kinds_naming(item, parent)
        elif SINGLETON.match(item):
            items.append("singleton")
        else:
            raise Refusal("bad_request", "dependency %r is not understood: nothing is changed" % value[:200])
    return (separators.pop() if separators else ",").join(items), names_parent


def verb_rearm(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    change = Change(slurm, words, settings, words.job("CHILD"))
    parent = look(slurm, words.job("PARENT"))
    found = change.look()
    refuse_over(found)
    if found["raw"]["UserID"] != parent["raw"]["UserID"]:
        raise Refusal("denied", "job %s belongs to another user than job %s" % (found["id"], parent["id"]))
    if parent["base"] not in ALIVE + ("COMPLETED",):
        raise Refusal("finished", "job %s is %s: such a parent cannot fulfil afterok" % (parent["id"], parent["state"]))
    waits = text(found["raw"]["Dependency"])
    value, names_parent = rearmed(waits, parent["raw"])
    if not names_parent:
        raise Refusal(
            "bad_request", "job %s does not wait for afterok:%s (%s)" % (found["id"], parent["id"], waits[:200])
        )
    if text(found["raw"]["Reason"]) != "DependencyNeverSatisfied" and "(failed)" not in waits:
        return change.answer(found, False, already=True)
    change.go(found)
    if change.dry:
        return change.answer(found, False)
    return change.answer(found, True, change.run(["scontrol", "update", "jobid=" + change.job, "Dependency=" + value]))


# ------------------------------------------------------------------------------------------------ changing nodes

OURS = "relight: "
USABLE = ("IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED")
OUT_OF_SERVICE = ("DRAIN", "FAIL", "FAILING", "DOWN", "MAINTENANCE", "MAINT", "REBOOT", "REBOOT_REQUESTED")
UNFIT = OUT_OF_SERVICE + (
    "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "INVALID_REG", "UNDRAIN", "RESERVED",
)  # fmt: skip


def node_words(node: Dict[str, str]) -> Tuple[str, List[str]]:
    """`IDLE+DRAIN`, `DOWN*`: the base state, and its flags; a mark that is not known counts as NOT_RESPONDING."""
    parts = node.get("State", "").split("+")
    flags = parts[1:]
    base = parts[0].rstrip("*~#!%$@^-")
    if parts[0][len(base) :].strip("#-"):
        flags.append("NOT_RESPONDING")
    return base, flags


def is_usable(node: Dict[str, str]) -> bool:
    base, flags = node_words(node)
    return base in USABLE and not any(flag in UNFIT for flag in flags)


class NodeChange:
    """What every change of a node shares: one lock for all of them, the fences, and looks before and after."""

    def __init__(self, slurm: Slurm, words: Words, settings: Settings) -> None:
        self.slurm = slurm
        self.words = words
        self.node = words.named["NODE"]
        self.deadline = words.number("DEADLINE")
        self.dry = words.flag("--dry-run")
        self.state = OwnState(settings)
        self.check()
        self.last_look = time.monotonic()
        self.window_s: Optional[float] = None
        self.held = self.state.lock("nodes.lock", min(self.deadline, time.time() + LOCK_LIMIT_S))
        slurm.ping()

    @property
    def reason(self) -> str:
        """The words in Slurm by which a drain of ours is known again. Nothing in them was typed by a user."""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(self.words.options["--until"])))
        return "%s%s job %s until %s" % (OURS, self.words.options["--why"], self.words.job(), until)

    def check(self) -> None:
        self.state.check_stop()
        if time.time() >= self.deadline:
            raise Refusal("late", "the deadline %d passed %.1f s ago" % (self.deadline, time.time() - self.deadline))

    def nodes(self) -> Dict[str, Dict[str, str]]:
        found = {node["NodeName"]: node for node in shown_nodes(self.slurm)}
        if self.node not in found:
            raise Refusal("unknown_node", "Slurm knows no node %s" % self.node)
        return found

    def look(self) -> Dict[str, str]:
        return self.nodes()[self.node]

    def go(self, found: Dict[str, str], kinds: Sequence[str]) -> None:
        """The fences once more, and a last look whether the node is still as judged."""
        self.check()
        self.state.spend(self.dry, kinds)
        self.last_look = time.monotonic()
        now = self.look()
        if in_service(now) != in_service(found) or now["Reason"] != found["Reason"]:
            told = (self.node, found["State"], now["State"])
            raise Refusal("changed", "node %s changed while it was checked (%s, now %s): look again" % told)
        self.check()

    def run(self, argv: Sequence[str]) -> float:
        self.slurm.change(argv)
        self.window_s = time.monotonic() - self.last_look
        return time.time()

    def answer(
        self, before: Dict[str, str], done: bool, acted_at: Optional[float] = None, already: bool = False
    ) -> Answer:
        reply: Answer = {"done": done, "already": already, "dry_run": self.dry, "before": before, "note": ""}
        reply["acted_at"] = round(acted_at, 3) if acted_at is not None else None
        reply["window_ms"] = int(self.window_s * 1000) if self.window_s is not None else None
        reply["node"] = None
        try:
            reply["node"] = self.look()
        except Refusal as refusal:
            reply["note"] = "cannot look after the change: " + refusal.message
        return reply


def in_service(node: Dict[str, str]) -> bool:
    base, flags = node_words(node)
    return base != "DOWN" and not any(flag in OUT_OF_SERVICE for flag in flags)


def is_drained(node: Dict[str, str]) -> bool:
    return "DRAIN" in node_words(node)[1]


def verb_drain(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    change = NodeChange(slurm, words, settings)
    reason = change.reason
    nodes = change.nodes()
    found = nodes[change.node]
    if is_drained(found) and found["Reason"] == reason:
        return change.answer(found, False, already=True)
    if not in_service(found):
        told = (change.node, found["State"], found["Reason"] or "no reason given")
        raise Refusal("node_taken", "node %s is out of service already (%s, %s): not ours to touch" % told)
    leave = int(words.options["--leave"])
    for partition in found.get("Partitions", "").split(","):
        members = [node for node in nodes.values() if partition and partition in node.get("Partitions", "").split(",")]
        left = [node["NodeName"] for node in members if node["NodeName"] != change.node and is_usable(node)]
        if members and len(left) < leave:
            told_left = (change.node, partition, len(left), leave)
            raise Refusal("last_nodes", "without %s partition %s has %d usable nodes, %d must stay" % told_left)
    change.go(found, ("drains", "changes"))
    if change.dry:
        return change.answer(found, False)
    argv = ["scontrol", "update", "nodename=" + change.node, "state=drain", "reason=" + reason]
    return change.answer(found, True, change.run(argv))


def verb_undrain(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    change = NodeChange(slurm, words, settings)
    reason = change.reason
    found = change.look()
    if not is_drained(found):
        raise Refusal("not_drained", "node %s is not drained (%s)" % (change.node, found["State"]))
    if found["Reason"] != reason:
        raise Refusal(
            "node_taken", "node %s is drained by others now (%s): not ours to touch" % (change.node, found["Reason"])
        )
    change.go(found, ("changes",))
    if change.dry:
        return change.answer(found, False)
    # Not resume: a node that is down as well stays down.
    return change.answer(found, True, change.run(["scontrol", "update", "nodename=" + change.node, "state=undrain"]))


def reservation_name(words: Words) -> str:
    return "relight_%s_%s" % (words.job(), words.named["COUNT"])


def verb_hold(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    """A short reservation of healthy nodes for the job's user. MAGNETIC: the job finds it without naming it, so that it
    can never be stranded by a reservation that is over; FLEX: it may use other nodes as well, and outlive it."""
    change = Change(slurm, words, settings, words.job())
    found = change.fenced(change.look())
    refuse_unless_batch(found)
    if found["base"] in ("CANCELLED", "COMPLETED"):
        raise Refusal("finished", "job %s is %s" % (change.job, found["base"]))
    user = text(found["raw"]["UserName"])
    if not USER_NAME.match(user):
        raise Refusal("bad_request", "user %r has no name that a reservation takes" % user[:80])
    name = reservation_name(words)
    with change.state.lock("nodes.lock", min(change.deadline, time.time() + LOCK_LIMIT_S)):
        standing = reservations(slurm)
        if name in standing:
            return change.answer(found, False, already=True, held=words.names("--nodes"))
        nodes = {node["NodeName"]: node for node in shown_nodes(slurm)}
        healthy = [node for node in words.names("--nodes") if node in nodes and is_usable(nodes[node])]
        ours = [entry for entry in standing.values() if entry["ReservationName"].startswith("relight_")]
        total = sum(int(entry["NodeCnt"]) for entry in ours if NUMBER.match(entry.get("NodeCnt", "")))
        most = int(words.options["--most"])
        if not healthy:
            raise Refusal("unknown_node", "none of %s can be held" % ",".join(words.names("--nodes"))[:200])
        if total + len(healthy) > most:
            told = (total, len(healthy), most)
            raise Refusal("cap", "relight holds %d nodes already, %d more would be above %d" % told)
        change.go(found)
        if change.dry:
            return change.answer(found, False, held=healthy)
        argv = ["scontrol", "create", "reservation", "reservationname=" + name, "users=" + user]
        argv += ["nodes=" + ",".join(healthy), "starttime=now", "duration=" + words.options["--minutes"]]
        argv += ["flags=ignore_jobs,magnetic,flex"]
        return change.answer(found, True, change.run(argv), held=healthy)


def verb_unhold(slurm: Slurm, words: Words, settings: Settings) -> Answer:
    """Ends the reservation made for that attempt, whatever has become of the job. It would end by itself."""
    state = OwnState(settings)
    state.check_stop()
    deadline = words.number("DEADLINE")
    if time.time() >= deadline:
        raise Refusal("late", "the deadline %d passed" % deadline)
    with state.lock("nodes.lock", min(deadline, time.time() + LOCK_LIMIT_S)):
        slurm.ping()
        name = reservation_name(words)
        if name not in reservations(slurm):
            return {"done": False, "already": True}
        state.spend(words.flag("--dry-run"))
        if words.flag("--dry-run"):
            return {"done": False, "already": False}
        try:
            slurm.change(["scontrol", "delete", "reservationname=" + name])
        except Refusal as refusal:
            if "in use" not in refusal.message:
                raise
            return {"done": False, "already": False}  # the job runs in it, and nobody waits for its end
        return {"done": True, "already": False}


class Verb(NamedTuple):
    run: Callable[[Slurm, Words, Settings], Answer]
    positional: Tuple[str, ...] = ()
    options: Tuple[str, ...] = ()
    required: Tuple[str, ...] = ()  # of the options


FENCE = ("ID", "COUNT", "DEADLINE")
VERBS: Dict[str, Verb] = {
    "ping": Verb(verb_ping),
    "sweep": Verb(verb_sweep, (), ("--all",)),
    "job": Verb(verb_job, ("ID",)),
    "attempts": Verb(verb_attempts, ("ID",)),
    "relatives": Verb(verb_relatives, ("ID",), ("--children", "--failed-at")),
    "nodes": Verb(verb_nodes),
    "topology": Verb(verb_topology),
    "config": Verb(verb_config),
    "reservations": Verb(verb_reservations),
    "restart": Verb(
        verb_restart, FENCE,
        ("--exclude", "--start-in", "--again", "--allow", "--state-ok", "--children", "--failed-at", "--dry-run"),
    ),
    "lease": Verb(verb_lease, FENCE, ("--exclude", "--start-in", "--dry-run")),
    "stop": Verb(verb_stop, FENCE, ("--dry-run",)),
    "signal": Verb(verb_signal, FENCE, ("--signal", "--to", "--dry-run")),
    "release": Verb(verb_release, FENCE, ("--dry-run",)),
    "arm": Verb(verb_arm, FENCE, ("--dry-run",)),
    "rearm": Verb(verb_rearm, ("CHILD", "PARENT", "DEADLINE"), ("--dry-run",)),
    "hold": Verb(verb_hold, FENCE, ("--nodes", "--minutes", "--most", "--dry-run"), ("--nodes", "--minutes", "--most")),
    "unhold": Verb(verb_unhold, FENCE, ("--dry-run",)),
    "drain": Verb(
        verb_drain, ("NODE", "ID", "DEADLINE"),
        ("--why", "--until", "--leave", "--dry-run"), ("--why", "--until", "--leave"),
    ),
    "undrain": Verb(
        verb_undrain, ("NODE", "ID", "DEADLINE"), ("--why", "--until", "--dry-run"), ("--why", "--until"),
    ),
}  # fmt: skip


def answer_to(argv: Sequence[str]) -> Answer:
    try:
        words = parse(request_words(argv))
        settings = load_settings()
        reply: Answer = {"v": VERSION, "ok": True, "verb": words.verb}
        reply.update(VERBS[words.verb].run(Slurm(settings), words, settings))
        return reply
    except Refusal as refusal:
        error = dict(refusal.more, kind=refusal.kind, message=refusal.message)
    except Exception as problem:  # a bug must still be one JSON document
        error = {"kind": "gate_error", "message": "%s: %s" % (type(problem).__name__, problem)}
    return {"v": VERSION, "ok": False, "error": error}


def main() -> int:
    reply = answer_to(sys.argv[1:])
    document = json.dumps(reply, separators=(",", ":")).encode("ascii")
    if len(document) > MAX_OUTPUT:
        reply = {"v": VERSION, "ok": False, "error": {"kind": "slurm_error", "message": "the answer is too large"}}
        document = json.dumps(reply).encode("ascii")
    sys.stdout.buffer.write(document + b"\n")
    sys.stdout.buffer.flush()
    return 0 if reply["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
