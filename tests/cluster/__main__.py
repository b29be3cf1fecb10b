"""`python -m tests.cluster up|down|shell|status`: a real Slurm cluster for a person to play with.

It lives until `down`. There may be several, each in its own folder.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from tests.cluster import accounts
from tests.cluster.client import ClusterError
from tests.cluster.cluster import SlurmCluster

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
Folder = Annotated[Path, typer.Option("--folder", help="Where the cluster lives; one cluster per folder.")]
DEFAULT = Path("/tmp/relight-playground")


@app.command()
def up(
    folder: Folder = DEFAULT,
    nodes: Annotated[int, typer.Option(min=1, max=256)] = 4,
    name: Annotated[str, typer.Option(help="ClusterName in slurm.conf.")] = "prod",
    first_job_id: Annotated[int, typer.Option(min=1)] = 1,
    accounting: Annotated[bool, typer.Option(help="With MariaDB and slurmdbd, so that sacct works.")] = True,
) -> None:
    """Starts a cluster, unless the one in the folder is running already."""
    try:
        cluster = SlurmCluster.attach(folder)
        print(f"already running in {folder}")
    except ClusterError:
        _clear(folder)
        print(f"starting a Slurm cluster of {nodes} nodes in {folder} …", flush=True)
        cluster = SlurmCluster(
            folder=folder, nodes=nodes, name=name, first_job_id=first_job_id, accounting=accounting
        ).start()
        cluster.keep()
    _explain(cluster)


@app.command()
def down(folder: Folder = DEFAULT) -> None:
    """Ends the cluster and everything that runs on it; its logs and the jobs' output stay until the next `up`."""
    try:
        SlurmCluster.attach(folder).stop()
    except ClusterError as nothing:
        print(f"nothing to stop: {nothing}")
        return
    print(f"stopped; logs are in {folder}/log, the jobs' output in {folder}/jobs")


@app.command()
def shell(folder: Folder = DEFAULT) -> None:
    """Opens a shell in which squeue, sbatch and scontrol talk to the cluster."""
    cluster = SlurmCluster.attach(folder)
    _explain(cluster)
    print("leave this shell with `exit`; the cluster stays up")
    environment = {**os.environ, "SLURM_CONF": cluster.env["SLURM_CONF"]}
    environment.pop("SLURM_TIME_FORMAT", None)
    os.chdir(cluster.dir)
    program = os.environ.get("SHELL", "/bin/bash")
    os.execvpe(program, [program], environment)


@app.command()
def status(folder: Folder = DEFAULT) -> None:
    """Shows nodes and jobs."""
    cluster = SlurmCluster.attach(folder)
    for words in (["sinfo", "-N", "-l"], ["squeue", "-a", "-l"]):
        print(cluster.run(*words, check=True).stdout)
    _explain(cluster)


def _clear(folder: Path) -> None:
    if not folder.exists():
        return
    if not (folder / "cluster.json").exists():
        raise ClusterError(f"{folder} exists and is not the folder of an earlier cluster; choose another --folder")
    shutil.rmtree(folder)


def _explain(cluster: SlurmCluster) -> None:
    option = "" if cluster.dir == DEFAULT else f" --folder {cluster.dir}"
    print(f"""cluster {cluster.name}, nodes {", ".join(cluster.nodes)}, in {cluster.dir}

  export SLURM_CONF={cluster.layout.slurm_conf}
  sinfo; squeue                             # as root
  cd {cluster.home("alice")} && su alice -c 'sbatch --wrap "hostname; sleep 60"'

users: {", ".join(accounts.USERS)} (they submit), {cluster.operator} (may change everybody's jobs)
job output: {cluster.dir}/jobs/<user>   logs: {cluster.dir}/log   description: {cluster.dir}/cluster.json
end it: ./dev cluster down{option}""")


if __name__ == "__main__":
    try:
        app()
    except (ClusterError, PermissionError) as problem:
        sys.exit(f"cluster: {problem}")
