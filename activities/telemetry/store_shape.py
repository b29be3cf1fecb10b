"""How a site's shipper labels the lines of a job, and what stream a line belongs to by its labels. Asks nothing."""

from __future__ import annotations

from collections.abc import Mapping

from activities.telemetry.logsource import stream_name
from recovery.records import Record

NODE_FIELDS = ("hostname", "host", "node", "nodename", "node_name", "instance")
RANK_FIELDS = ("slurm_procid", "rank", "procid")
FILE_FIELDS = ("filename", "file", "path", "log.file.path")


class StoreShape(Record):
    """Names of labels (Loki) or fields (VictoriaLogs)."""

    job_field: str = "slurm_job_id"
    job_is_label: bool = True
    """Loki: false where it is structured metadata."""
    node_fields: tuple[str, ...] = NODE_FIELDS
    rank_fields: tuple[str, ...] = RANK_FIELDS
    file_fields: tuple[str, ...] = FILE_FIELDS
    selector: str = ""
    """Put into every query, in the store's own language: `{cluster="prod"}`."""
    tenant: str = ""

    @property
    def all_fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.job_field, *self.node_fields, *self.rank_fields, *self.file_fields)))

    def node(self, labels: Mapping[str, object]) -> str:
        """The node's name as the store tells it, without a port."""
        name = _first(labels, self.node_fields)
        if ":" not in name:
            return name
        host, _, port = name.rpartition(":")
        return host if port.isdigit() else name

    def stream(self, labels: Mapping[str, object]) -> str:
        rank, file = _first(labels, self.rank_fields), _first(labels, self.file_fields)
        return stream_name(self.node(labels), rank, file.rpartition("/")[2])


def _first(labels: Mapping[str, object], names: tuple[str, ...]) -> str:
    for name in names:
        value = labels.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def quoted(text: str) -> str:
    """A string literal as both LogsQL and LogQL read it."""
    pieces = []
    for letter in text:
        if letter in '"\\':
            pieces.append("\\" + letter)
        elif letter.isprintable() and letter.isascii():
            pieces.append(letter)
        else:
            code = ord(letter)
            pieces.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(pieces) + '"'


def text_bytes(text: str) -> bytes:
    """A line as bytes again. What was no UTF-8 comes back as it was, half a surrogate pair becomes a question mark."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
