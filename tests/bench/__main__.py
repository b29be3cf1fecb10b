"""`./dev bench`: measures relight against yardsticks that run beside it. Ratios carry over, absolute figures do not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from tests.bench import keep_nodes, scan
from tests.bench.report import Report, keep, show

BENCHES: dict[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], Report]]] = {
    "scan": (scan.options, scan.run),
    "keep-nodes": (keep_nodes.options, keep_nodes.run),
}
"""By sub-command: what its options are, and what runs it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when all goals are met, 1 when one is missed."""
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    commands = parser.add_subparsers(dest="bench", required=True, metavar="|".join(BENCHES))
    for name, (options, run) in BENCHES.items():
        command = commands.add_parser(name, help=(run.__doc__ or "").splitlines()[0])
        command.add_argument("--json", action="store_true", help="print JSON for machines")
        command.add_argument("--no-keep", action="store_true", help="do not append to bench-results.jsonl")
        options(command)
    given = parser.parse_args(arguments)
    report = BENCHES[given.bench][1](given)
    show(report, as_json=given.json)
    if not given.no_keep:
        keep(report)
    return 0 if all(goal.met for goal in report.goals) else 1


if __name__ == "__main__":
    sys.exit(main())
