"""What one entry of a fault catalogue is: the line that shows a kind of trouble, and what that tells.

The shape only. Files are read and checked in catalogue_file.py.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from recovery.faults.expressions import expression
from recovery.records import Confidence, FaultClass, Retry, Role

FIELDS = frozenset(
    {
        "node", "rank", "local_rank", "task", "gpu", "pci", "peer", "address", "xid", "code", "step", "group", "seq",
        "reason",
    }
)  # fmt: skip
"""Names of groups that an `extract`, `before` or `prefixes` expression may capture."""

FARTHEST = 200
"""Most lines that a signature may look back for what must stand before it."""

Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$", max_length=64)]
Examples = Annotated[tuple[str, ...], Field(min_length=1)]


class Says(StrEnum):
    """What a line tells about nodes."""

    REPORTER = "reporter"  # the node that printed it is implicated
    PEER = "peer"  # the other end it names is
    NAMED = "named"  # it names the node itself
    HEAD = "head"  # the job's first node is, where its processes meet
    BATCH_HOST_ONLY = "batch_host_only"  # the name in it is only where the batch script ran
    NONE = "none"


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Variant(Entry):
    """What differs for some values of a captured field. What is left out stays as the signature says."""

    values: Annotated[tuple[str, ...], Field(min_length=1)]
    examples: Examples = Field(description="lines that show the values, each at least once")
    title: str | None = None
    fault_class: FaultClass | None = Field(default=None, alias="class")
    role: Role | None = None
    retry: Retry | None = None
    node: Says | None = None
    confidence: Confidence | None = None


class Signature(Entry):
    """One kind of trouble and the line that shows it."""

    id: Id
    title: str = Field(description="one sentence for people, without a full stop")
    pattern: str = Field(min_length=3, description="an expression that Hyperscan and RE2 take; matched in one line")
    fault_class: FaultClass = Field(alias="class")
    role: Role
    retry: Retry
    node: Says = Says.NONE
    confidence: Confidence | None = Field(
        default=None, description="how sure it is of the node; left out: medium for hardware and interconnect, else low"
    )
    ends: bool = Field(default=False, description="what follows this line in the same attempt is its consequence")
    starts: bool = Field(default=False, description="the training starts anew here: what ended before was survived")
    hides: bool = Field(default=False, description="what later entries find in the same line does not count")
    before: tuple[str, ...] = Field(
        default=(), description="RE2 expressions for lines that must all stand before this one; groups become fields"
    )
    within: int = Field(default=3, ge=1, le=FARTHEST, description="how many lines before this one are looked at")
    extract: tuple[str, ...] = Field(default=(), description="RE2 expressions whose named groups become fields")
    by: str | None = Field(default=None, description="the field whose value picks a variant; it joins the id")
    variants: tuple[Variant, ...] = ()
    examples: Examples = Field(description="texts whose last line must match")
    near_misses: Examples = Field(description="texts whose last line must not match")
    note: str = ""

    def variant(self, value: str) -> Signature:
        """The signature of one value of the `by` field, e.g. `xid.79`."""
        changes: dict[str, Any] = {"id": f"{self.id}.{value.lstrip('-')}", "by": None, "variants": ()}
        for row in self.variants:
            if value in row.values:
                kept = ("title", "fault_class", "role", "retry", "node", "confidence")
                changes |= {name: word for name in kept if (word := getattr(row, name)) is not None}
        return self.model_copy(update=changes)

    def objection(self, text: str) -> str | None:
        """None where the last line of `text` shows the signature, after the lines before it; else what is missing."""
        *earlier, line = text.encode().split(b"\n")
        if not expression(self.pattern).search(line):
            return "pattern does not match"
        for one in self.before:
            if not any(expression(one).search(other) for other in earlier[-self.within :]):
                return f"before: none of the {self.within} lines before it matches {one!r} in"
        return None


class CatalogueFile(Entry):
    """The shape of a catalogue file."""

    version: int = Field(default=1, ge=1, le=1)
    prefixes: tuple[str, ...] = Field(default=(), description="RE2 expressions that tell where any line comes from")
    signatures: tuple[Signature, ...] = ()
