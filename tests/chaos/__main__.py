"""`./dev chaos [--runs N] [--seed S] [--json]`: breaks jobs, relight and its surroundings, then checks."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.chaos.arena import Arena
from tests.chaos.plan import Scenario, plan
from tests.chaos.play import Play, Result


def main() -> int:
    options = _options()
    scenarios = [plan(options.seed + number) for number in range(options.runs)]
    if options.plan:
        for scenario in scenarios:
            print(f"seed {scenario.seed}: {scenario.told}")
        return 0
    began = time.monotonic()
    results = []
    for result in _played(scenarios):
        results.append(result)
        _tell(result)
    told = _summary(results, time.monotonic() - began)
    _say(f"{told['runs']} runs in {told['seconds']} s, {told['violations']} violations")
    _say(f"  injected: {_counts(told['injected'])}")
    _say(f"  verified: {_counts(told['verified'])}")
    for seed in told["failing_seeds"]:
        _say(f"  replay: ./dev chaos --runs 1 --seed {seed}")
    if options.json:
        print(json.dumps({**told, "results": [one.model_dump(mode="json") for one in results]}, indent=2))
    return 1 if told["violations"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev chaos", description="Breaks things and checks that nothing is lost.")
    parser.add_argument("--runs", type=int, default=3, help="how many, each with its own seed (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next ones count on (default 1)")
    parser.add_argument("--plan", action="store_true", help="only print what would be done")
    parser.add_argument("--json", action="store_true", help="print the results as JSON on stdout")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs is {options.runs}, expected at least 1")
    return options


def _played(scenarios: list[Scenario]) -> Iterator[Result]:
    """All on one arena; after a violation on a new one, so that no run pays for another."""
    left = list(scenarios)
    while left:
        _say(f"starting a cluster, Temporal, PostgreSQL and a worker for {len(left)} runs")
        with Arena() as arena:
            while left:
                scenario = left.pop(0)
                _say(f"seed {scenario.seed}: {scenario.told}")
                result = Play(arena, scenario).run()
                if not result.violations:
                    try:
                        arena.healthy()
                    except AssertionError as failure:
                        result.violations.append(f"the stage was not healthy afterwards: {failure}")
                if result.violations:
                    log = arena.stage.worker_log.read_text(errors="replace")[-6000:]
                    result.stories.append(f"the worker's last words:\n{log}")
                yield result
                if result.violations:
                    break


def _tell(result: Result) -> None:
    verdict = "VIOLATED" if result.violations else "ok"
    _say(f"seed {result.seed}: {verdict} in {result.seconds} s; injected {_counts(result.injected)}")
    for text in (*result.violations, *result.stories):
        _say(f"  {text}")


def _summary(results: list[Result], seconds: float) -> dict[str, Any]:
    injected: Counter[str] = Counter()
    verified: Counter[str] = Counter()
    for one in results:
        injected.update(one.injected)
        verified.update(one.verified)
    return {
        "runs": len(results),
        "seconds": round(seconds, 1),
        "violations": sum(len(one.violations) for one in results),
        "failing_seeds": [one.seed for one in results if one.violations],
        "injected": dict(sorted(injected.items())),
        "verified": dict(sorted(verified.items())),
    }


def _counts(told: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in told.items()) or "nothing"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
