"""Reads the documentation as its readers do: pages, links, anchors, code blocks and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, ROOT / "CHANGELOG.md", ROOT / "compose" / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands behind the fence, and its text."""

    page: Path
    kind: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    for kind, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        yield Block(page, kind.strip(), text)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Relative links of the page, with their anchors."""
    return [link for link in _LINK.findall(prose(page)) if "://" not in link and not link.startswith("mailto:")]


def anchors(page: Path) -> set[str]:
    """The anchors that headings make, as a forge renders them."""
    return {_anchor(title) for title in _HEADING.findall(prose(page))}


def _anchor(title: str) -> str:
    words = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def target(page: Path, link: str) -> tuple[Path, str]:
    """The file a link leads to, and the anchor in it."""
    path, _, anchor = link.partition("#")
    return (page.parent / path).resolve() if path else page, anchor


def first_column(page: Path, heading: str) -> set[str]:
    """The words in backticks in the first column of the tables under a heading."""
    text = prose(page)
    match = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{page.name} has no heading {heading!r}"
    rows = [line.split("|")[1] for line in match.group(1).splitlines() if line.startswith("| ")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))
