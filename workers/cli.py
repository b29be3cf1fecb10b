"""The `relight` command. Says what each command is; what it does stands in the modules it opens when called.

Nothing heavy is imported here, so that --help, --version and shell completion answer at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer


def _examples(*lines: str) -> str:
    """The last part of a command's help; \\b keeps its lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


EXIT_CODES = """\b
Exit codes: 0 done; 1 refused, failed, not found, or a check that found something;
2 wrong usage, configuration or input. With --json an error is {"error": "..."}."""

PLAIN: Any = {"rich_markup_mode": None}
"""Help as plain text: the same on a pipe, and rich alone would take longer to load than all the rest."""

app = typer.Typer(
    name="relight",
    help="Brings failed training runs on Slurm back by themselves, on good nodes, or stops them with a reason.",
    epilog=_examples(
        "relight jobs                      # what is watched, and what relight thinks of it",
        "relight show prod-12345           # the story of one job, and what it waits for",
        'relight pause prod-12345 --reason "debugging"',
        "relight diagnose slurm-4711.out   # what broke, from a log alone",
        "relight force --help              # every command has examples",
    )
    + f"\n\n{EXIT_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    **PLAIN,
)
policy_app = typer.Typer(help="Check and explain the policy.", no_args_is_help=True, **PLAIN)
config_app = typer.Typer(help="Check the configuration.", no_args_is_help=True, **PLAIN)
patterns_app = typer.Typer(help="Check, list and try fault patterns.", no_args_is_help=True, **PLAIN)
app.add_typer(policy_app, name="policy")
app.add_typer(config_app, name="config")
app.add_typer(patterns_app, name="patterns")
node_app = typer.Typer(help="Look at one node, or call it well.", no_args_is_help=True, **PLAIN)
app.add_typer(node_app, name="node")
incidents_app = typer.Typer(
    help="Faults that several jobs share: list them, close one.",
    epilog=_examples("relight incidents", "relight incidents --all --json"),
    **PLAIN,
)
app.add_typer(incidents_app, name="incidents")
audit_app = typer.Typer(help="Look after the audit store.", no_args_is_help=True, **PLAIN)
app.add_typer(audit_app, name="audit")
doctor_app = typer.Typer(help="Look at what relight depends on.", no_args_is_help=True, **PLAIN)
app.add_typer(doctor_app, name="doctor")

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file; default $RELIGHT_CONFIG, /etc/relight/relight.yaml."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Job = Annotated[
    str, typer.Argument(metavar="JOB", help="Job, as prod-12345; with one configured cluster also 12345 or 12345_7.")
]
By = Annotated[str, typer.Option("--by", help="Who asks, for the record; default your login name.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the record.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of one node, as n07.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="The node's cluster, where there are several.")]
Signal = Annotated[bool, typer.Option("--signal", help="Send it without waiting for an answer.")]


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"relight {version('relight')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog=_examples(
        "relight worker",
        "relight worker --config /etc/relight/relight.yaml",
    )
)
def worker(config: Config = None) -> None:
    """Run the worker: watches the clusters and recovers their jobs."""
    from workers.cli_run import run_worker

    run_worker(config)


@app.command(
    "console",
    epilog=_examples(
        "relight console",
        "relight console --listen 127.0.0.1:9000",
        "relight console --without-sign-in viewer",
    ),
    short_help="Run the console: pages, API, metrics.",
)
def run_the_console(
    listen: Annotated[str, typer.Option("--listen", help="host:port; default console.listen.")] = "",
    open_to: Annotated[
        str,
        typer.Option(
            "--without-sign-in", help="viewer or operator: what everybody on this host may do. Loopback only."
        ),
    ] = "",
    config: Config = None,
) -> None:
    """Run the console: pages, HTTP API and metrics of what relight sees and does."""
    from workers.console.serve import run_console

    run_console(config, listen=listen, open_to=open_to)


@app.command(
    epilog=_examples("relight token oncall --role operator", "relight token ci --json"),
    short_help="Make a token for the console.",
)
def token(
    name: Annotated[str, typer.Argument(help="Whose it is, as the record shall name them: oncall, ci, alice.")],
    role: Annotated[str, typer.Option("--role", help="viewer looks, operator also acts.")] = "viewer",
    as_json: AsJson = False,
) -> None:
    """Make a token for the console: prints it once, and the line for console.tokens_file."""
    from workers.console.tokens import print_new

    print_new(name, role, as_json=as_json)


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog=_examples("relight demo", "relight demo --keep"),
    short_help="See a recovery on a small real cluster.",
)
def demo(
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed on, for example --keep or --json.")] = None,
) -> None:
    """Show a recovery on a small real cluster (in a checkout of the source)."""
    from workers.cli_run import run_demo

    run_demo(arguments or [])


@app.command(
    epilog=_examples(
        "relight jobs --state waiting_permit",
        "relight jobs --user alice --all",
        "relight jobs --json | jq -r '.[] | select(.waits != \"\") | .job_id'",
    )
)
def jobs(
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only this cluster.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's jobs.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="Only jobs in this Slurm state or phase.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that Slurm has forgotten.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Most jobs to print.")] = 200,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the jobs relight watches."""
    from workers.cli_jobs import list_jobs

    list_jobs(config, cluster=cluster, user=user, state=state, everything=everything, limit=limit, as_json=as_json)


@app.command(
    epilog=_examples(
        "relight show prod-12345",
        "relight show 12345_7 --json",
    ),
    short_help="Tell the story of one job, and what it waits for.",
)
def show(job: Job, config: Config = None, as_json: AsJson = False) -> None:
    """Tell the story of one job: attempts, findings, decisions, steps, outcomes."""
    from workers.cli_jobs import show_job

    show_job(config, job, as_json=as_json)


@app.command(
    epilog=_examples("relight export prod-12345", "relight export prod-12345 -o -"),
    short_help="Write everything about one job into one file.",
)
def export(
    job: Job,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write, - for standard output; default relight-JOB.json."),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write everything about one job into one file: histories, rows, ends of logs, policy; secrets masked."""
    from workers.cli_export import export_job

    export_job(config, job, output, as_json=as_json)


@app.command(
    epilog=_examples(
        "relight replay relight-prod-12345.json", "relight replay relight-prod-12345.json --policy new-policy.yaml"
    ),
    short_help="Decide an exported story anew, by today's rules.",
)
def replay(
    file: Annotated[Path, typer.Argument(help="A file that `relight export` wrote.", show_default=False)],
    policy: Annotated[Path | None, typer.Option("--policy", help="Policy file to decide by.")] = None,
    recorded_policy: Annotated[
        bool, typer.Option("--recorded-policy", help="Decide by the policy in the file, with the rules of today.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Tell an exported story to today's code and rules; 0: all as then, 1: decisions differ, 2: it does not replay."""
    from workers.cli_replay import replay_file

    replay_file(config, file, policy=policy, recorded_policy=recorded_policy, as_json=as_json)


@app.command(
    epilog=_examples(
        "relight scorecard",
        "relight scorecard --since 8w --cluster prod --json",
    ),
    short_help="Compare advice with what happened next.",
)
def scorecard(
    since: Annotated[str, typer.Option("--since", help="How far to look back: 12h, 30d, 8w.")] = "30d",
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only this cluster.")] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Compare what relight advised with what really happened next, and say where acting is safe."""
    from workers.cli_scorecard import show_scorecard

    show_scorecard(config, since=since, cluster=cluster, as_json=as_json)


@app.command(
    epilog=_examples(
        "relight nodes",
        "relight nodes --cluster prod --json",
    ),
    short_help="List what is held against nodes, and until when.",
)
def nodes(cluster: ClusterName = None, config: Config = None, as_json: AsJson = False) -> None:
    """List what is held against nodes: suspicions, exclusions, drains, with why and until when."""
    from workers.cli_nodes import list_nodes

    list_nodes(config, cluster=cluster, as_json=as_json)


@node_app.command("show", epilog=_examples("relight node show n07"))
def node_show(node: Node, cluster: ClusterName = None, config: Config = None, as_json: AsJson = False) -> None:
    """Tell everything about one node, also what is over."""
    from workers.cli_nodes import show_node

    show_node(config, node, cluster=cluster, as_json=as_json)


@node_app.command(
    "clear",
    epilog=_examples('relight node clear n07 --reason "new cable"'),
    short_help="Call a node well: suspicions count no more.",
)
def node_clear(
    node: Node,
    by: By = "",
    reason: Reason = "",
    cluster: ClusterName = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Call a node well: suspicions so far count no more, and relight returns it to service if it drained it."""
    from workers.cli_nodes import clear_node

    clear_node(config, node, cluster=cluster, by=by, reason=reason, as_json=as_json)


@app.command(
    epilog=_examples(
        'relight pause prod-12345 --reason "debugging"',
        "relight pause prod-12345 --signal  # also when no worker runs",
    )
)
def pause(
    job: Job, by: By = "", reason: Reason = "", signal: Signal = False, config: Config = None, as_json: AsJson = False
) -> None:
    """Keep relight's hands off a job until it is resumed."""
    from workers.cli_operate import operate

    operate(config, job, "pause", {}, by=by, reason=reason, signal=signal, as_json=as_json)


@app.command(
    epilog=_examples(
        "relight resume prod-12345",
    )
)
def resume(
    job: Job, by: By = "", reason: Reason = "", signal: Signal = False, config: Config = None, as_json: AsJson = False
) -> None:
    """Take a pause back."""
    from workers.cli_operate import operate

    operate(config, job, "resume", {}, by=by, reason=reason, signal=signal, as_json=as_json)


@app.command(
    epilog=_examples(
        'relight force prod-12345 --action restart --exclude n07 --reason "bad link"',
        "relight force prod-12345 --action stop",
        "relight force prod-12345 --action restart --restart-count 3  # only if it is still that attempt",
    )
)
def force(
    job: Job,
    action: Annotated[str, typer.Option("--action", help="restart, stop or release.")],
    exclude: Annotated[str, typer.Option("--exclude", help="Nodes the next attempt keeps off: n[01-03],n07.")] = "",
    restart_count: Annotated[
        int | None, typer.Option("--restart-count", min=0, help="Refuse when the job is at another restart count.")
    ] = None,
    by: By = "",
    reason: Reason = "",
    signal: Signal = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make relight restart, stop or release a job now."""
    from workers.cli_operate import force_payload, operate

    payload = force_payload(action, exclude, restart_count)
    operate(config, job, "force", payload, by=by, reason=reason, signal=signal, as_json=as_json)


@app.command(
    epilog=_examples(
        "relight jobs --state waiting_approval",
        "relight approve prod-12345 --yes",
        'relight approve prod-12345 --no --reason "wrong node"',
    )
)
def approve(
    job: Job,
    yes: Annotated[bool | None, typer.Option("--yes/--no", help="Your answer.")] = None,
    by: By = "",
    reason: Reason = "",
    signal: Signal = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Answer a job that waits for approval."""
    from workers.cli_operate import approve_payload, operate

    operate(config, job, "approve", approve_payload(yes), by=by, reason=reason, signal=signal, as_json=as_json)


@app.command(
    epilog=_examples(
        "relight diagnose slurm-4711.out",
        "relight diagnose --nodes 'n[01-16]' run7.out run7.err.gz",
        "kubectl logs pod | relight diagnose -",
    )
)
def diagnose(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Log files of one attempt, also .gz and .zst; - reads standard input.", show_default=False),
    ] = None,
    nodes: Annotated[str, typer.Option("--nodes", help="The job's nodes: n[01-16].")] = "",
    start: Annotated[str, typer.Option("--start", help="When the job started: 2026-11-12T03:14:15.")] = "",
    progress: Annotated[str, typer.Option("--progress", help="How its steps are written: step=(?P<step>\\d+).")] = "",
    catalogue: Annotated[list[Path] | None, typer.Option("--catalogue", help="More fault catalogues.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what broke, from a log alone. Needs no server and no configuration."""
    from workers.cli_diagnose import diagnose_logs

    diagnose_logs(files or [], nodes=nodes, start=start, progress=progress, catalogues=catalogue or [], as_json=as_json)


@patterns_app.command(
    "check",
    epilog=_examples("relight patterns check", "relight patterns check /etc/relight/site-faults.yaml"),
    short_help="Check catalogue files.",
)
def patterns_check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Catalogue files; none checks the built-in one.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check catalogue files: every entry must work, and be found in its own examples only."""
    from workers.cli_patterns import check_patterns

    check_patterns(files or [], as_json=as_json)


@patterns_app.command("list", epilog=_examples("relight patterns list --json"))
def patterns_list(
    catalogue: Annotated[list[Path] | None, typer.Option("--catalogue", help="More fault catalogues.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the entries of the catalogue."""
    from workers.cli_patterns import list_patterns

    list_patterns(catalogue or [], as_json=as_json)


@patterns_app.command(
    "test",
    epilog=_examples(
        "relight patterns test 'NCCL WARN Cuda failure'", "tail -n 200 run7.out | relight patterns test -"
    ),
    short_help="Say which entries a text shows.",
)
def patterns_test(
    text: Annotated[str, typer.Argument(help="One or more lines; - reads standard input.")],
    catalogue: Annotated[list[Path] | None, typer.Option("--catalogue", help="More fault catalogues.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which entries a text shows, and what is captured."""
    from workers.cli_patterns import test_text

    test_text(text, catalogue or [], as_json=as_json)


@policy_app.command(
    "check",
    epilog=_examples(
        "relight policy check policy.yaml",
        "relight policy check policy.yaml --cluster prod --partition gpu --comment relight",
    ),
    short_help="Check a policy file and say what holds where.",
)
def policy_check(
    file: Annotated[Path, typer.Argument(help="Policy file.")],
    comment: Annotated[
        str | None, typer.Option("--comment", help="Also check what a job with this comment asks.")
    ] = None,
    cluster: Annotated[str, typer.Option("--cluster", help="That job's cluster.")] = "",
    partition: Annotated[str, typer.Option("--partition", help="Its partition.")] = "",
    account: Annotated[str, typer.Option("--account", help="Its account.")] = "",
    qos: Annotated[str, typer.Option("--qos", help="Its QOS.")] = "",
    user: Annotated[str, typer.Option("--user", help="Its user.")] = "",
    as_json: AsJson = False,
) -> None:
    """Check a policy file and say what holds where; with --comment also what a job would get, and what is refused."""
    from workers.cli_check import JobWords, check_policy

    words = JobWords(comment, cluster, partition, account, qos, user)
    check_policy(file, words if words.asked else None, as_json=as_json)


@policy_app.command(
    "show", epilog=_examples("relight policy show"), short_help="Say which policy the running workers follow."
)
def policy_show(config: Config = None, as_json: AsJson = False) -> None:
    """Say which policy the running workers follow, and whether that is the file as it is now."""
    from workers.cli_policy import show_policy

    show_policy(config, as_json=as_json)


@policy_app.command(
    "explain", epilog=_examples("relight policy explain prod-12345"), short_help="Say why a job got what it got."
)
def policy_explain(job: Job, config: Config = None, as_json: AsJson = False) -> None:
    """Say which rule fired for a job, on which facts, what budgets are left and what the next failure would get."""
    from workers.cli_policy import explain

    explain(config, job, as_json=as_json)


@policy_app.command("table", epilog=_examples("relight policy table"), short_help="Print the table of rules.")
def policy_table(as_json: AsJson = False) -> None:
    """Print the table of rules, in the order in which they are asked."""
    from workers.cli_check import print_rules

    print_rules(as_json=as_json)


@policy_app.command("schema", epilog=_examples("relight policy schema > policy.schema.json"))
def policy_schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of policy files."""
    from workers.cli_check import print_schema

    print_schema()


@config_app.command(
    "check",
    epilog=_examples("relight config check", "relight config check --config ./relight.yaml --json"),
    short_help="Check and print the configuration.",
)
def config_check(config: Config = None, as_json: AsJson = False) -> None:
    """Check the configuration and print the effective one, without secrets."""
    from workers.cli_check import check_config

    check_config(config, as_json=as_json)


@incidents_app.callback(invoke_without_command=True)
def incidents(
    context: typer.Context,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only this cluster.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also closed ones.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Most to print, of each cluster.")] = 200,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the open incidents: faults that several jobs share."""
    if context.invoked_subcommand is not None:
        return
    from workers.cli_incidents import list_incidents

    list_incidents(config, cluster=cluster, everything=everything, limit=limit, as_json=as_json)


@incidents_app.command(
    "close",
    epilog=_examples('relight incidents close storage-1a2b3c4d --reason "file system is back"'),
    short_help="Close an incident by hand.",
)
def incidents_close(
    incident: Annotated[str, typer.Argument(help="Its id, as the list tells it.")],
    by: By = "",
    reason: Reason = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Close an incident by hand: from then on its jobs are treated one by one."""
    from workers.cli_incidents import close_incident

    close_incident(config, incident, by=by, reason=reason, as_json=as_json)


@audit_app.command(
    "verify",
    epilog=_examples("relight audit verify", "relight audit verify --job prod-12345 --repair"),
    short_help="Compare the audit store with the histories.",
)
def audit_verify(
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only this cluster.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only this job, as prod-12345.")] = None,
    since: Annotated[str, typer.Option("--since", help="How far to look back: 12h, 30d, 8w.")] = "30d",
    repair: Annotated[bool, typer.Option("--repair", help="Put back rows that are missing; nothing else.")] = False,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=1000, help="Most calls to Temporal in a second.")] = 50,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Compare the audit store with the workflows' histories; 0: they agree, 1: they do not."""
    from workers.cli_audit import verify

    verify(config, cluster=cluster, job=job, since=since, repair=repair, rate=rate, as_json=as_json)


@audit_app.command(
    "prune",
    epilog=_examples("relight audit prune --older-than 400d --dry-run"),
    short_help="Delete jobs that ended long ago.",
)
def audit_prune(
    older_than: Annotated[str, typer.Option("--older-than", help="Jobs that ended so long ago: 400d, 60w.")] = "400d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be deleted.")] = False,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only this cluster.")] = None,
    by: By = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Delete jobs that ended long ago, with all their rows and files."""
    from workers.cli_audit import prune

    prune(config, older_than=older_than, cluster=cluster, dry_run=dry_run, by=by, as_json=as_json)


@doctor_app.command(
    "telemetry",
    epilog=_examples("relight doctor telemetry", "relight doctor telemetry --nodes 'n[01-16]'"),
    short_help="Say which metrics and logs are there.",
)
def doctor_telemetry(
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only this cluster.")] = None,
    nodes: Annotated[str, typer.Option("--nodes", help="Nodes whose metrics are expected: n[01-16].")] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say which metrics exist, what the missing ones blind, how hosts are named, and whether the log store answers."""
    from workers import cli_doctor

    cli_doctor.doctor_telemetry(config, cluster=cluster, nodes=nodes, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 1 refused or failed, 2 wrong usage, configuration or input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="relight")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from workers.screen import ending

        return ending(error, as_json="--json" in given)
    return 0


def console() -> NoReturn:
    """The `relight` program. Ends without taking the interpreter apart.

    Temporal's client runs threads of its own that call into Python; one that does so while the interpreter is being
    torn down aborts the process, after everything was said and done. What was written is flushed first.
    """
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    console()
