"""Renders slurm.conf and slurmdbd.conf of a test cluster. Knows Slurm 22.05 to 24.11; starts nothing.

Everything a daemon reads or writes lies below the cluster's folder; /etc/slurm, /run/munge and /var are never used.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

# Keys that may stand in slurm.conf more than once; any other key of extra_conf replaces our own line.
_REPEATABLE = {"nodename", "partitionname", "nodeset", "downnodes", "frontendname", "include", "switchname"}


@dataclass(frozen=True)
class Layout:
    """Where the parts of a cluster lie."""

    folder: Path

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge" / "munge.sock"

    @property
    def munge_key(self) -> Path:
        return self.folder / "munge" / "munge.key"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def database(self) -> Path:
        return self.folder / "db"

    @property
    def database_socket(self) -> Path:
        return self.run / "db.sock"

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"


@dataclass(frozen=True)
class Ports:
    """Counted from the first port of the cluster's reservation."""

    first: int

    @property
    def slurmctld(self) -> int:
        return self.first

    @property
    def slurmdbd(self) -> int:
        return self.first + 1

    @property
    def mariadb(self) -> int:
        return self.first + 2

    @property
    def nodes(self) -> int:
        return self.first + 3

    @staticmethod
    def needed(nodes: int) -> int:
        return 3 + nodes


@dataclass(frozen=True)
class Settings:
    """What a test may choose; times in seconds."""

    name: str = "prod"
    nodes: int = 4
    cpus: int = 4
    memory_mb: int = 1000
    accounting: bool = False
    first_job_id: int = 1
    cred_expire_s: int = 5  # 5 is Slurm's minimum; a requeued job waits this + 1 s. Sites have 120.
    min_job_age_s: int = 300
    kill_wait_s: int = 2  # sites have 30
    slurmd_timeout_s: int = 10  # sites have 300
    extra_conf: str = ""

    @property
    def node_names(self) -> tuple[str, ...]:
        width = max(2, len(str(self.nodes)))
        return tuple(f"n{number:0{width}d}" for number in range(1, self.nodes + 1))


def host_name() -> str:
    """This machine's short name: slurmctld and slurmd only start where their configuration names it."""
    return socket.gethostname().split(".")[0]


def hosts_file(settings: Settings) -> str:
    """This machine's /etc/hosts and the nodes: what runs on a node tells its own name to slurmctld as the address to
    answer to, and newer ones wait many seconds for a name that cannot be resolved."""
    nodes = "".join(f"127.0.0.1 {name}\n" for name in settings.node_names)
    return Path("/etc/hosts").read_text() + "\n" + nodes


def slurm_conf(settings: Settings, layout: Layout, ports: Ports, *, epilog: bool, prolog: bool) -> str:
    lines = {
        "ClusterName": settings.name,
        "SlurmctldHost": f"{host_name()}(127.0.0.1)",
        "SlurmctldPort": str(ports.slurmctld),
        "SlurmUser": "slurm",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket},cred_expire={settings.cred_expire_s}",
        "CredType": "cred/munge",
        "StateSaveLocation": str(layout.folder / "ctld"),
        "SlurmdSpoolDir": f"{layout.folder}/spool/%n",
        "SlurmctldPidFile": str(layout.run / "slurmctld.pid"),
        "SlurmdPidFile": f"{layout.folder}/spool/slurmd-%n.pid",
        "SlurmctldLogFile": str(layout.log / "slurmctld.log"),
        "SlurmdLogFile": f"{layout.log}/slurmd-%n.log",
        "PlugStackConfig": str(layout.etc / "plugstack.conf"),
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SwitchType": "switch/none",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",  # nodes may claim more CPUs and memory than this machine has
        "ReturnToService": "2",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": str(settings.slurmd_timeout_s),
        "KillWait": str(settings.kill_wait_s),
        "UnkillableStepTimeout": "120",  # a short one drains nodes ("Kill task failed") when slurmctld was away
        "MinJobAge": str(settings.min_job_age_s),
        "JobRequeue": "1",
        "FirstJobId": str(settings.first_job_id),
    }
    if settings.accounting:
        lines |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(ports.slurmdbd),
            # Without this, talks to slurmdbd go through the system's munge socket, whatever AuthInfo says.
            "AccountingStoragePass": str(layout.munge_socket),
            "AccountingStoreFlags": "job_comment",
        }
    if epilog:
        lines["Epilog"] = str(layout.etc / "epilog.sh")
    if prolog:
        lines["Prolog"] = str(layout.etc / "prolog.sh")
    own, repeated = _split(settings.extra_conf)
    spelled = {key.lower(): key for key in lines}
    for key, value in own.items():
        lines[spelled.get(key.lower(), key)] = value
    first, last = settings.node_names[0], settings.node_names[-1]
    span = f"n[{first[1:]}-{last[1:]}]" if settings.nodes > 1 else first
    node_ports = f"[{ports.nodes}-{ports.nodes + settings.nodes - 1}]" if settings.nodes > 1 else str(ports.nodes)
    nodes = (
        f"NodeName={span} NodeAddr=127.0.0.1 NodeHostname={host_name()} Port={node_ports} "
        f"CPUs={settings.cpus} RealMemory={settings.memory_mb} State=UNKNOWN"
    )
    partition = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    return "\n".join([*(f"{key}={value}" for key, value in lines.items()), nodes, partition, *repeated, ""])


def _split(extra_conf: str) -> tuple[dict[str, str], list[str]]:
    own: dict[str, str] = {}
    repeated: list[str] = []
    for line in extra_conf.splitlines():
        key, _, value = line.strip().partition("=")
        if key.lower().strip() in _REPEATABLE or not value:
            repeated.append(line.strip())
        else:
            own[key.strip()] = value.strip()
    return own, repeated


def slurmdbd_conf(layout: Layout, ports: Ports, password: str) -> str:
    lines = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "DbdHost": host_name(),
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(ports.slurmdbd),
        "SlurmUser": "slurm",
        "LogFile": str(layout.log / "slurmdbd.log"),
        "PidFile": str(layout.run / "slurmdbd.pid"),
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(ports.mariadb),
        "StorageUser": "slurm",
        "StoragePass": password,
        "StorageLoc": "slurm_acct",
    }
    return "\n".join(f"{key}={value}" for key, value in lines.items()) + "\n"
