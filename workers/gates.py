"""Makes each cluster's gate as configured: a child process on this machine, or a far one over SSH. Starts nothing."""

from __future__ import annotations

import logging
import os

from activities.slurm.ssh import SentGate, SshGate, SshHost
from activities.slurm.transport import GateTransport, LocalGate
from workers.settings import ClusterSettings, Settings

log = logging.getLogger("relight.worker")

FAR_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin"


def gate_of(settings: Settings, name: str) -> GateTransport:
    """The gate of one cluster."""
    cluster = settings.clusters[name]
    if cluster.ssh is not None:
        return _far(settings, name, cluster)
    folder = settings.gate_dir(name)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    except OSError as problem:
        log.warning("the gate's folder %s cannot be made (%s): every change will be refused", folder, problem.strerror)
    env = _env(settings, name, cluster.path or os.environ.get("PATH", os.defpath))
    if cluster.slurm_conf is None and os.environ.get("SLURM_CONF"):
        env["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return LocalGate(python=cluster.gate.python, env=env, timeout_s=cluster.gate.timeout_s)


def _far(settings: Settings, name: str, cluster: ClusterSettings) -> SshGate:
    ssh = cluster.ssh
    assert ssh is not None

    def host(name: str, user: str, port: int, jump: SshHost | None = None) -> SshHost:
        return SshHost(
            name,
            user,
            ssh.key_file,
            ssh.known_hosts,
            port=port,
            jump=jump,
            connect_timeout_s=ssh.connect_timeout_s,
        )

    way = ssh.way
    jump = host(way.host, way.user or ssh.user, way.port) if way is not None else None
    sent = None
    if not ssh.installed:
        sent = SentGate(python=cluster.gate.python, env=_env(settings, name, cluster.path or FAR_PATH))
    return SshGate(host(ssh.host, ssh.user, ssh.port, jump), sent=sent, timeout_s=cluster.gate.timeout_s)


def _env(settings: Settings, name: str, path: str) -> dict[str, str]:
    cluster = settings.clusters[name]
    env = {
        "PATH": path,
        "RELIGHT_GATE_DIR": str(settings.gate_dir(name)),
        "RELIGHT_GATE_CEILING": str(cluster.gate.ceiling),
        "RELIGHT_GATE_DRAIN_CEILING": str(cluster.gate.drain_ceiling),
    }
    if cluster.slurm_conf is not None:
        env["SLURM_CONF"] = str(cluster.slurm_conf)
    return env
