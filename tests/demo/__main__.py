"""`./dev demo [--json] [--keep] [--end]`: shows in the terminal what relight sees and does."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.demo.story import Case, Story
from tests.stage import Stage, end_kept

NOTE = Path(__file__).parent.parent.parent / ".dev" / "demo.json"


def main() -> int:
    options = _options()
    if options.end:
        print(end_kept(NOTE))
        return 0
    if NOTE.exists():
        Console(stderr=True).print(f"an earlier demo was left running; first {end_kept(NOTE)}")
    out = Console(stderr=True, highlight=False, soft_wrap=True, width=None if sys.stderr.isatty() else 150)
    began = time.monotonic()

    def say(job: str, text: str) -> None:
        out.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  [bold]{job:>6}[/]  ", end="")
        out.print(text, markup=False, style=_style(text))

    say("", "starting a Slurm cluster of 4 nodes with accounting, Temporal with its Web UI, and the relight worker")
    # As the manual asks of a site: whoever looks around for a while still finds the jobs.
    with Stage(ui=True, min_job_age_s=3600) as stage:
        stage.start_worker()
        say("", f"everything runs; Temporal's Web UI is at {stage.temporal.ui_url}")
        story = Story(stage, say)
        try:
            cases = [story.gpu_fault(), story.user_error(), story.monitor_mode()]
        except Exception:
            out.print(f"\nthe worker's last words ({stage.worker_log}):", markup=False)
            out.print(stage.worker_log.read_text(errors="replace")[-3000:], markup=False)
            raise
        told = _told(stage, cases, time.monotonic() - began)
        if options.keep:
            stage.keep(NOTE)
        _show(out, stage, cases, told, kept=options.keep)
    if options.json:
        print(json.dumps(told, indent=2))
    return 0 if told["ok"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev demo", description="A training job loses a GPU and comes back by itself."
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    parser.add_argument("--keep", action="store_true", help="leave everything running to explore")
    parser.add_argument("--end", action="store_true", help="end a demo that was left running")
    return parser.parse_args()


def _style(text: str) -> str:
    if text.startswith("---"):
        return "bold red"
    kind = text.split(" ", 1)[0]
    return {"finding": "yellow", "verdict": "yellow", "advice": "cyan", "step": "green", "outcome": "bold green"}.get(
        kind, ""
    )


def _told(stage: Stage, cases: list[Case], took_s: float) -> dict[str, Any]:
    gpu, user, monitor = (case.figures for case in cases)
    return {
        "ok": bool(gpu["recovered"] and user["stopped"] and monitor["untouched"]),
        "recovered": gpu["recovered"],
        "user_error_stopped": user["stopped"],
        "monitor_untouched": monitor["untouched"],
        "took_s": round(took_s, 1),
        "cluster": stage.cluster_name,
        "temporal_address": stage.temporal.target,
        "temporal_namespace": stage.temporal.namespace,
        "web_ui": stage.temporal.ui_url,
        "environment": str(stage.config.parent / "env.sh"),
        "jobs": [
            {"job_id": case.job_id, "title": case.title, "fault": case.fault, "expected": case.expected, **case.figures}
            for case in cases
        ],
    }


def _show(out: Console, stage: Stage, cases: list[Case], told: dict[str, Any], *, kept: bool) -> None:
    table = Table(title="What happened", title_justify="left")
    for column in ("job", "fault", "detected (s)", "action done (s)", "first new step (s)", "nodes avoided", "result"):
        table.add_column(column, overflow="fold")
    for case in cases:
        figures = case.figures
        acted = figures.get("acted_s")
        table.add_row(
            str(case.job_id),
            case.fault,
            _number(figures.get("detected_s")),
            _number(acted) if acted is not None else f"none: {figures.get('advice')} advised",
            _number(figures.get("first_new_step_s")),
            str(figures.get("excluded") or "–"),
            f"{figures['state']} after {figures['restarts'] + 1} attempt(s)",
        )
    out.print()
    out.print(table)
    gpu = cases[0]
    if gpu.figures["recovered"]:
        out.print(
            f"Job {gpu.job_id} resumed from its checkpoint at step {gpu.figures['resumed_at_step']} on "
            f"{', '.join(gpu.figures['second_attempt_nodes'])} and finished."
        )
    env = stage.config.parent / "env.sh"
    if kept:
        workflow = f"{stage.cluster_name}-{gpu.job_id}"
        out.print("\nLeft running. Where to look next, in a root shell:")
        for line in (f". {env}", "relight jobs", f"relight show {workflow}", f"{stage.temporal.ui_url}/{workflow}"):
            out.print(f"  {line}", markup=False)
        out.print("The same with the stock temporal command:")
        for line in temporal_lines(stage.cluster_name, gpu.job_id):
            out.print(f"  {line}", markup=False)
        out.print("End it with: ./dev demo --end")
    else:
        out.print("\nRun ./dev demo --keep to explore it: Temporal's Web UI, `relight show`, the cluster itself.")
    if not told["ok"]:
        out.print("[bold red]Not everything went as it should; see above.[/]")


def temporal_lines(cluster: str, job_id: int) -> tuple[str, ...]:
    """What a person may paste after the demo: find, look, tell the story, say something."""
    workflow = f"{cluster}-{job_id}"
    return (
        f"temporal workflow list --query 'RelightCluster=\"{cluster}\"'",
        f"temporal workflow describe --workflow-id {workflow}",
        f"temporal workflow show --workflow-id {workflow}",
        f"temporal workflow signal --workflow-id {workflow} --name pause "
        '--input \'{"by": "me", "reason": "trying it out"}\'',
    )


def _number(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else "–"


if __name__ == "__main__":
    sys.exit(main())
