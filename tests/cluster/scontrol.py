"""Reads what scontrol prints about one job or node; made for tests, not for text that somebody forged."""

import re

# Values of these run to the end of their line and may contain blanks and "=".
_WHOLE_LINE = {"Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment", "AdminComment", "SystemComment", "Reason"}
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=")


def fields(text: str) -> dict[str, str]:
    """Fields of the first record (without -o). A field that stands twice keeps its first value."""
    found: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        if " JobName=" in line:
            line, _, found["JobName"] = line.partition(" JobName=")
        whole = re.match(r"\s*(\w+)=(.*)$", line)
        if whole and whole[1] in _WHOLE_LINE:
            found.setdefault(whole[1], whole[2].removesuffix(" "))  # scontrol ends a comment with a blank
            continue
        marks = list(_FIELD.finditer(line))
        ends = [mark.start() for mark in marks[1:]] + [len(line)]
        for mark, end in zip(marks, ends, strict=False):
            found.setdefault(mark[1], line[mark.end() : end].strip())
    return found
