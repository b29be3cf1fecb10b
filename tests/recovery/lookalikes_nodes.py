# ruff: noqa: E501 - lines of logs are as long as they are
"""Logs of jobs that a node, its GPUs or the network ended."""

from __future__ import annotations

from datetime import timedelta

from recovery.records import FaultClass as C
from recovery.records import Retry as R
from tests.recovery.lookalike_lab import Lab
from tests.recovery.lookalike_stories import Expected, crash, story


@story()
def stopped_rank(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    for other in lab.shuffled([one for one in lab.ranks if one != rank]):
        lab.traceback(
            other, "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
        )
    for node in lab.nodes:
        here = lab.shuffled([one for one in lab.ranks_on(node) if one != rank]) + [
            one for one in (rank,) if node == lab.node_of(rank)
        ]
        lab.gives_up(
            node, {here[0]: 1 if here[0] != rank else -9} | {one: -9 if one == rank else -15 for one in here[1:]}
        )
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({lab.node_of(rank)}))


@story()
def cut_off_node(lab: Lab) -> Expected:
    """Its ranks time out like all others; its launcher waits for the store for ever."""
    lab.run()
    node = lab.any_node()
    for rank in lab.shuffled(list(lab.ranks)):
        word = lab.random.choice(("recv", "send"))
        lab.traceback(
            rank, f"RuntimeError: [unbound_buffer.cc:78] Timed out waiting 20000ms for {word} operation to complete"
        )
    for other in lab.nodes:
        if other != node:
            lab.gives_up(other, dict.fromkeys(lab.shuffled(lab.ranks_on(other)), 1))
            lab.loses_store(other)
    return Expected(True, C.INTERCONNECT, R.YES, happened_on=frozenset({node}))


@story()
def programs_that_do_not_match(lab: Lab) -> Expected:
    """Every rank waits for another operation, and every launcher comes to its end: nobody is suspected."""
    lab.run()
    for rank in lab.shuffled(list(lab.ranks)):
        lab.traceback(
            rank, "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
        )
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
        lab.loses_store(node)
    return Expected(True, C.INTERCONNECT, R.YES)


@story()
def stopped_rank_under_nccl(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    for other in lab.shuffled([one for one in lab.ranks if one != rank]):
        lab.say(
            f"[rank{other}]:[E{lab.glog} ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank {other}] Watchdog"
            " caught collective operation timeout: WorkNCCL(SeqNum=4815, OpType=ALLREDUCE, NumelIn=1, NumelOut=1,"
            " Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
        )
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({lab.node_of(rank)}))


@story()
def rank_behind_under_nccl(lab: Lab) -> Expected:
    lab.run()
    late = lab.random.choice(lab.ranks)
    for rank in lab.shuffled(list(lab.ranks)):
        number = 4815 - (rank == late)
        lab.say(
            f"[rank{rank}]:[E{lab.glog} ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Watchdog"
            f" caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1,"
            " Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
        )
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({lab.node_of(late)}))


@story()
def missing_at_a_barrier(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice([one for one in lab.ranks if one])
    lab.say(
        f"[rank0]:[E{lab.glog} ProcessGroupGloo.cpp:2901] [Rank 0]: Rank {rank} failed to pass monitoredBarrier in 20000 ms"
    )
    lab.fall({rank}, {rank: -9})
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({lab.node_of(rank)}))


@story()
def node_gone(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    lab.fall(set(lab.ranks_on(node)), {}, silent=node)
    return Expected(True, C.HARDWARE, R.YES, frozenset({node}))


@story()
def node_of_the_store_gone(lab: Lab) -> Expected:
    """The launchers notice before their ranks do, and end them: no rank says anything."""
    lab.run()
    for node in lab.random.sample(lab.nodes[1:], len(lab.nodes) - 1):
        lab.loses_store(node)
    return Expected(True, C.HARDWARE, R.YES, frozenset({lab.nodes[0]}))


@story()
def node_gone_in_the_middle_of_a_line(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    lab.say(" [2026-11-12 03:14:15] iteration      ")
    lab.fall(set(lab.ranks_on(node)), {}, silent=node)
    return Expected(True, C.HARDWARE, R.YES, frozenset({node}))


@story()
def node_that_slurm_gave_up(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    at = f"{lab.at:%Y-%m-%dT%H:%M:%S}"
    lab.say(
        f"slurmstepd: error: *** JOB 4711 ON {lab.nodes[0]} CANCELLED AT {at} DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"
    )
    lab.say(f"srun: error: Node failure on {node}")
    return Expected(True, C.HARDWARE, R.YES, frozenset({node}))


@story()
def connections_torn_down(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    others = [rank for rank in lab.ranks if lab.node_of(rank) != node]
    for rank in lab.shuffled(others)[:2]:
        lab.lost(rank, node)
    for rank in lab.shuffled(lab.ranks_on(node)):
        peer = lab.address[lab.node_of(lab.random.choice(others))]
        lab.traceback(rank, f"RuntimeError: [pair.cc:537] Read error [{peer}]:124: Software caused connection abort.")
    lab.fall(set(lab.ranks_on(node)), dict.fromkeys(lab.ranks_on(node), 1))
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({node}))


@story()
def no_route(lab: Lab) -> Expected:
    """One node has no way to another: nobody has a rank yet, and the first connection is lost to it."""
    node = lab.any_node(but_first=True)
    lab.launch()
    error = "RuntimeError: [enforce fail at socket.cc:142] rv != -1. -1 vs -1. connect: No route to host"
    lab.traceback(None, error, node=node)
    peer = f"[{lab.address[node]}]:50842"
    lab.traceback(
        None, f"RuntimeError: Gloo connectFullMesh failed with [pair.cc:553] Connection closed by peer {peer}."
    )
    lab.gives_up(lab.nodes[0], {0: 1})
    lab.gives_up(node, {lab.ranks_on(node)[0]: 1})
    for other in lab.nodes:
        lab.loses_store(other)
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({node}))


@story()
def never_came_to_the_rendezvous(lab: Lab) -> Expected:
    node = lab.any_node(but_first=True)
    lab.launch()
    lab.traceback(
        None, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "raise RendezvousTimeoutError"
    )
    for other in lab.nodes[1:]:
        if other != node:
            lab.loses_store(other)
    return Expected(True, C.SYSTEM_SOFTWARE, R.YES, frozenset({node}))


@story()
def head_never_came_to_the_rendezvous(lab: Lab) -> Expected:
    for _ in lab.nodes[1:]:
        lab.say(
            f"[E{lab.glog} socket.cpp:1019] [c10d] The client socket has timed out after 60000ms while trying to connect to"
            f" ({lab.nodes[0]}, 29500)."
        )
    return Expected(True, C.SYSTEM_SOFTWARE, R.YES, frozenset({lab.nodes[0]}))


@story()
def port_in_use(lab: Lab) -> Expected:
    lab.traceback(
        None,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port:"
        " 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    )
    return Expected(True, C.SYSTEM_SOFTWARE, R.YES, frozenset({lab.nodes[0]}))


@story()
def silent_end(lab: Lab) -> Expected:
    lab.run()
    lab.at += timedelta(hours=5)
    return Expected(True, C.INTERCONNECT, R.YES)


@story()
def gpu_memory_error(lab: Lab) -> Expected:
    rank = crash(lab, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    return Expected(True, C.HARDWARE, R.YES, frozenset({lab.node_of(rank)}))


@story()
def gpu_off_the_bus(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    at = f"{lab.at:%b %d %H:%M:%S}"
    lab.say(
        f"{at} {node} kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    rank = lab.ranks_on(node)[0]
    lab.traceback(rank, "RuntimeError: CUDA error: unknown error")
    lab.fall({rank}, {rank: 1})
    return Expected(True, C.HARDWARE, R.YES, frozenset({node}))


@story()
def port_error(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    for host in lab.nodes:
        event = "port error" if host == node else "client reregistration"
        lab.say(f"{host}:211456:212011 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : {event}", node=host)
    lab.fall({lab.ranks_on(node)[0]}, {})
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({node}))


@story()
def switch_down(lab: Lab) -> Expected:
    lab.run()
    for host in lab.random.sample(lab.nodes, len(lab.nodes)):
        lab.say(f"{host}:211456:212011 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error", node=host)
    return Expected(True, C.INTERCONNECT, R.YES)


@story()
def launch_failed(lab: Lab) -> Expected:
    node = lab.any_node()
    lab.say(f"srun: error: Task launch for StepId=4711.0 failed on node {node}: Communication connection failure")
    lab.say("srun: error: Application launch failed: Communication connection failure")
    lab.say("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
    lab.say(f"srun: error: {lab.nodes[0]}: task 0: Killed")
    return Expected(True, C.SCHEDULER, R.YES, frozenset({node}))
