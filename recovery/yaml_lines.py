"""YAML text into plain data that still knows the line of every key, so that errors can name file, line and key.

Pure: text in, data out. Anchors and aliases are refused (a page of them can stand for gigabytes), and so is a key that
stands twice, of which YAML would silently keep the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_CHARACTERS = 1_000_000

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a file: where, and what was expected."""

    file: str
    line: int | None
    key: str
    reason: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.reason}" if self.key else f"{place}: {self.reason}"


@dataclass(frozen=True)
class Lines:
    """Plain data (dicts, lists, scalars), the line of each key, and what was wrong with the text."""

    data: Any = None
    lines: Mapping[Path, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def line(self, path: Path) -> int | None:
        """Line of the key at `path`, or of the nearest key above it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def read_lines(text: str, name: str) -> Lines:
    """Data and lines of `text`, a file called `name`. Never raises: what is wrong stands in `problems`."""

    def wrong(reason: str, line: int | None = None, key: str = "") -> Lines:
        return Lines(problems=(Problem(name, line, key, reason),))

    if len(text) > MAX_CHARACTERS:
        return wrong(f"the file has {len(text)} characters, expected at most {MAX_CHARACTERS}")
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AnchorToken | yaml.AliasToken):
                line = token.start_mark.line + 1
                return wrong("anchors and aliases (& and *) are not taken; repeat the values", line)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return Lines(data={})
        lines: dict[Path, int] = {}
        problems: list[Problem] = []
        _walk(node, (), name, lines, problems)
        if problems:
            return Lines(problems=tuple(problems))
        return Lines(data=loader.construct_document(node), lines=lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return wrong(f"not valid YAML: {error.problem or error.context}", mark.line + 1 if mark else None)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        return wrong(f"not valid YAML: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    except RecursionError:
        return wrong("nested too deeply, expected a handful of levels")


def _walk(node: yaml.Node, path: Path, name: str, lines: dict[Path, int], problems: list[Problem]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for at, item in enumerate(node.value):
            lines[(*path, at)] = item.start_mark.line + 1
            _walk(item, (*path, at), name, lines, problems)
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            reason = "expected a plain name as key (put it in quotes when it looks like a number or a yes/no)"
            problems.append(Problem(name, line, dotted((*path, str(key))), reason))
            continue
        where = (*path, key)
        if where in lines:
            problems.append(Problem(name, line, dotted(where), f"stands twice, first on line {lines[where]}"))
        lines[where] = line
        _walk(value_node, where, name, lines, problems)


def dotted(path: Path) -> str:
    """A path as people write it: clusters.prod.gate.dir, stop_codes[0]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
