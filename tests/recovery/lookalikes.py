# ruff: noqa: E501 - lines of logs are as long as they are
"""Makes logs of training jobs that go wrong in a known way, as several nodes would write them into one file.

Names of nodes, addresses, ranks, times and the order in which nodes speak are drawn by lot; what is expected of the
diagnosis is known from how a log was made. The words are those of PyTorch, gloo, NCCL, Slurm and the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from recovery.records import FaultClass, Retry

C, R = FaultClass, Retry
TOTAL = 400


@dataclass(frozen=True)
class Expected:
    fault: bool
    fault_class: FaultClass
    retry: Retry
    exclude: frozenset[str] = frozenset()
    """Nodes that the next attempt should keep off."""


HEALTHY = Expected(False, C.NONE, R.HANDS_OFF)


class Lab:
    """A job on some nodes and its log so far."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        draw = self.random
        count, self.per_node = draw.randint(3, 6), draw.choice((1, 2, 4))
        first = draw.randint(1, 60)
        style = draw.choice(("gpu-a{:02d}", "n{:03d}", "hgx{}", "rack7-{:04d}"))
        self.nodes = tuple(style.format(first + number) for number in range(count))
        network = f"10.{draw.randint(0, 99)}.{draw.randint(0, 9)}"
        self.address = {node: f"{network}.{first + number}" for number, node in enumerate(self.nodes)}
        self.ranks = range(count * self.per_node)
        self.script = draw.choice(("pretrain_gpt.py", "train.py", "finetune.py"))
        self.at = datetime(2026, draw.randint(1, 12), draw.randint(1, 28), draw.randint(0, 23), 0, tzinfo=UTC)
        self.lines: list[str] = []
        self.step = 0
        self.saved: int | None = None

    def say(self, *lines: str) -> None:
        self.lines += lines
        self.at += timedelta(milliseconds=self.random.randint(1, 300))

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.per_node]

    def any_node(self, *, but_first: bool = False) -> str:
        return self.random.choice(self.nodes[1:] if but_first else self.nodes)

    def ranks_on(self, node: str) -> list[int]:
        return [rank for rank in self.ranks if self.node_of(rank) == node]

    def shuffled(self, ranks: list[int]) -> list[int]:
        return self.random.sample(ranks, len(ranks))

    @property
    def glog(self) -> str:
        return f"{self.at:%m%d %H:%M:%S}.{self.random.randint(0, 999_999):06d}"

    # -------------------------------------------------------------------------------------------- what a run prints

    def launch(self) -> None:
        for node in self.nodes:
            pid = self.random.randint(300, 99_000)
            self.say(
                f"W{self.glog} {pid} torch/distributed/run.py:865] node_rank is only used for static rdzv_backend."
            )
            self.say(f"[W{self.glog}001 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved.")
            del node

    def begin(self) -> None:
        for rank in self.shuffled(list(self.ranks)):
            host = self.node_of(rank)
            local = rank % self.per_node
            self.say(f"> initialized torch distributed: rank {rank} local_rank {local} host {host} pid {1000 + rank}")
        self.say("WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt")
        self.say(f"[before the start of training step] datetime: {self.at:%Y-%m-%d %H:%M:%S} ")

    def train(self, steps: int, total: int = TOTAL) -> None:
        for _ in range(steps):
            self.step += 1
            self.at += timedelta(seconds=4)
            self.say(
                f" [{self.at:%Y-%m-%d %H:%M:%S}] iteration {self.step:8d}/{total:8d} | consumed samples: {self.step * 32} |"
                f" elapsed time per iteration (ms): {4000 + self.random.random() * 90:.1f} | lm loss: 7.8E+00 |"
                " loss scale: 1.0 | grad norm: 0.594 | number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
            if self.step % 10 == 0:
                self.say(f"saving checkpoint at iteration {self.step:7d} to /ckpt in torch format")
                self.say(f"  successfully saved checkpoint from iteration {self.step:7d} to /ckpt [ t 1/1, p 1/1 ]")
                self.saved = self.step

    def end(self) -> None:
        self.say(f"[after training is done] datetime: {self.at:%Y-%m-%d %H:%M:%S} ")

    def run(self) -> None:
        self.launch()
        self.begin()
        self.train(self.random.randint(12, 40))

    def traceback(self, rank: int | None, error: str, where: str = "loss.backward()") -> None:
        label = f"[rank{rank}]: " if rank is not None else ""
        self.say(
            f"{label}Traceback (most recent call last):",
            f'{label}  File "/opt/llm/{self.script}", line 160, in main',
            f"{label}    {where}",
            f"{label}{error}",
        )

    def lost(self, rank: int, node: str) -> None:
        """A rank says that its connection to a node is gone."""
        peer = f"[{self.address[node]}]:{self.random.randint(1024, 65_000)}"
        self.traceback(
            rank,
            self.random.choice(
                (
                    f"RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer {peer}.",
                    f"RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:537] Read error {peer}: Connection reset by peer.",
                )
            ),
        )

    def gives_up(self, node: str, codes: dict[int, int]) -> None:
        """The launcher of a node ends: the rank that failed first, and then its table."""
        first = next(iter(codes))
        pid = 4000 + first
        self.say(
            f"E{self.glog} {pid} torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {codes[first]})"
            f" local_rank: {first % self.per_node} (pid: {pid}) of binary: /usr/bin/python3"
        )
        self.traceback(None, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "run(args)")
        table = ["=" * 60, f"{self.script} FAILED", "-" * 60, "Failures:"]
        for number, (rank, code) in enumerate(reversed(codes.items())):
            if rank == first:
                table += ["-" * 60, "Root Cause (first observed failure):"]
            table += [
                f"[{number}]:",
                f"  time      : {self.at:%Y-%m-%d_%H:%M:%S}",
                f"  host      : {node}",
                f"  rank      : {rank} (local_rank: {rank % self.per_node})",
                f"  exitcode  : {code} (pid: {4000 + rank}) ",
                "  error_file: <N/A>",
            ]
        self.say(*table, "=" * 60)

    def loses_store(self, node: str) -> None:
        self.say(
            f"[W{self.glog}001 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe",
            "Exception raised from sendBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:758",
            f"W{self.glog} 7 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1298] The node '{node}_7_0' has"
            " failed to shutdown the rendezvous '48210' due to an error of type RendezvousConnectionError.",
        )

    def fall(self, guilty: set[int], codes: dict[int, int], *, silent: str = "") -> None:
        """Everybody but the guilty loses a peer, and all launchers but that of a silent node give up."""
        where = self.node_of(min(guilty))
        victims = self.shuffled([rank for rank in self.ranks if rank not in guilty])
        gone = where
        for rank in victims:
            self.lost(rank, gone)
            gone = self.node_of(rank) if self.random.random() < 0.5 else gone
        for node in self.random.sample(self.nodes, len(self.nodes)):
            if node == silent:
                continue
            here = self.shuffled(self.ranks_on(node))
            own = [rank for rank in here if rank in codes]
            first = own[0] if own else here[0]
            self.gives_up(node, {first: codes.get(first, 1)} | {one: -15 for one in here if one != first})
            self.loses_store(node)


Story = Callable[[Lab], Expected]
STORIES: dict[str, Story] = {}


def story(tell: Story) -> Story:
    STORIES[tell.__name__] = tell
    return tell


def made(name: str, seed: int) -> tuple[Lab, Expected]:
    """A log of that kind and what is expected of its diagnosis."""
    lab = Lab(seed)
    return lab, STORIES[name](lab)


def _crash(lab: Lab, error: str, where: str = "loss = step()") -> int:
    """One rank ends with an error of its own, the others lose it."""
    lab.run()
    rank = lab.random.choice(lab.ranks)
    lab.traceback(rank, error, where)
    lab.fall({rank}, {rank: 1})
    return rank


# ------------------------------------------------------------------------------------------------ nothing broke


@story
def finished(lab: Lab) -> Expected:
    lab.run()
    lab.step = TOTAL - 5
    lab.train(5)
    lab.end()
    for node in lab.nodes[1:]:
        lab.loses_store(node)
    return HEALTHY


@story
def still_running(lab: Lab) -> Expected:
    lab.run()
    return HEALTHY


@story
def asked_to_end(lab: Lab) -> Expected:
    lab.run()
    for node in lab.nodes:
        lab.say(
            f"W{lab.glog} 7 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down"
        )
        lab.loses_store(node)
    return HEALTHY


@story
def time_limit(lab: Lab) -> Expected:
    lab.run()
    at = f"{lab.at:%Y-%m-%dT%H:%M:%S}"
    lab.say(f"slurmstepd: error: *** JOB 4711 ON {lab.nodes[0]} CANCELLED AT {at} DUE TO TIME LIMIT ***")
    lab.fall({0}, {0: -15})
    return HEALTHY


@story
def came_back_in_the_job(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    lab.fall({rank}, {rank: -9})
    lab.step -= 5
    lab.begin()
    lab.train(9)
    return HEALTHY


@story
def requeued_into_the_same_file(lab: Lab) -> Expected:
    _crash(lab, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    lab.step -= 5
    lab.launch()
    lab.begin()
    lab.train(1)
    lab.step = TOTAL - 2
    lab.train(2)
    lab.end()
    return HEALTHY


# ------------------------------------------------------------------------------------------------ the job's own


@story
def bad_record(lab: Lab) -> Expected:
    _crash(
        lab, "json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column 12 (char 11)", "next(data)"
    )
    return Expected(True, C.USER, R.NO)


@story
def not_a_number(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    where = f"Device: {rank % lab.per_node}, node: {lab.node_of(rank)}"
    lab.traceback(rank, f"AssertionError: Rank {rank}: found NaN in local forward loss calculation. {where}")
    lab.fall({rank}, {rank: 1})
    return Expected(True, C.APPLICATION, R.ONCE)


@story
def wrong_shapes(lab: Lab) -> Expected:
    lab.launch()
    lab.begin()
    for rank in lab.shuffled(list(lab.ranks)):
        lab.traceback(rank, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (128x96 and 128x384)")
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
    return Expected(True, C.USER, R.NO)


@story
def missing_module(lab: Lab) -> Expected:
    lab.launch()
    for _ in lab.ranks:
        lab.traceback(None, "ModuleNotFoundError: No module named 'fused_kernels'", "import fused_kernels")
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
    return Expected(True, C.USER, R.NO)


@story
def out_of_host_memory(lab: Lab) -> Expected:
    _crash(lab, "MemoryError", "cache.append(read())")
    return Expected(True, C.OUT_OF_MEMORY, R.NO)


@story
def out_of_gpu_memory(lab: Lab) -> Expected:
    _crash(
        lab,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB"
        " of which 1.44 GiB is free. 310.22 MiB is reserved by PyTorch but unallocated.",
    )
    return Expected(True, C.OUT_OF_MEMORY, R.NO)


@story
def left_early(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    if lab.per_node == 1:
        lab.traceback(rank, "IndexError: list index out of range", "data[step]")
        lab.fall({rank}, {rank: 1})
        return Expected(True, C.APPLICATION, R.ONCE)
    for victim in lab.shuffled([one for one in lab.ranks if one != rank]):
        lab.lost(victim, lab.node_of(rank))
    for node in lab.nodes:
        here = [one for one in lab.shuffled(lab.ranks_on(node)) if one != rank]
        lab.gives_up(node, {here[0]: 1} | dict.fromkeys(here[1:], -15))
    return Expected(True, C.APPLICATION, R.NO)


@story
def killed_rank(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    lab.fall({rank}, {rank: -9})
    return Expected(True, C.SYSTEM_SOFTWARE, R.YES)


@story
def segfault(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    lab.fall({rank}, {rank: -11})
    return Expected(True, C.APPLICATION, R.ONCE)


@story
def segfault_everywhere(lab: Lab) -> Expected:
    lab.launch()
    for _ in lab.ranks:
        lab.say("Fatal Python error: Segmentation fault", "", 'File "/opt/llm/train.py", line 9 in <module>')
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), -11))
    return Expected(True, C.APPLICATION, R.NO)


@story
def data_loader_killed(lab: Lab) -> Expected:
    _crash(lab, "RuntimeError: DataLoader worker (pid 29027) is killed by signal: Killed. ", "next(loader)")
    return Expected(True, C.SYSTEM_SOFTWARE, R.ONCE)


# ------------------------------------------------------------------------------------------------ storage


@story
def disk_full(lab: Lab) -> Expected:
    lab.run()
    lab.traceback(
        0, "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 796416 vs 796304", "save()"
    )
    lab.fall({0}, {0: 1})
    return Expected(True, C.STORAGE, R.NO)


@story
def read_only_storage(lab: Lab) -> Expected:
    lab.run()
    lab.traceback(0, "OSError: [Errno 30] Read-only file system: '/ckpt/iter_0000020'", "save_checkpoint(step)")
    lab.fall({0}, {0: 1})
    return Expected(True, C.STORAGE, R.ONCE)


@story
def missing_mount(lab: Lab) -> Expected:
    node = lab.any_node()
    if lab.per_node == 1:
        return read_only_storage(lab)
    lab.launch()
    lab.begin()
    for rank in lab.shuffled(lab.ranks_on(node)):
        lab.traceback(rank, f"FileNotFoundError: [Errno 2] No such file or directory: '/data/shard_{rank:03d}.jsonl'")
    lab.fall(set(lab.ranks_on(node)), dict.fromkeys(lab.ranks_on(node), 1))
    return Expected(True, C.STORAGE, R.YES, frozenset({node}))


@story
def stale_handle_on_one_node(lab: Lab) -> Expected:
    node = lab.any_node()
    if lab.per_node == 1:
        return read_only_storage(lab)
    lab.run()
    for rank in lab.shuffled(lab.ranks_on(node)):
        lab.traceback(rank, "OSError: [Errno 116] Stale file handle: '/data/shard.bin'")
    lab.fall(set(lab.ranks_on(node)), dict.fromkeys(lab.ranks_on(node), 1))
    return Expected(True, C.STORAGE, R.YES, frozenset({node}))


@story
def stale_handle_everywhere(lab: Lab) -> Expected:
    lab.run()
    for rank in lab.shuffled(list(lab.ranks)):
        lab.traceback(rank, "OSError: [Errno 116] Stale file handle: '/data/shard.bin'")
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
    return Expected(True, C.STORAGE, R.NO)


# ------------------------------------------------------------------------------------------------ nodes and network


@story
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


@story
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


@story
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


@story
def missing_at_a_barrier(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice([one for one in lab.ranks if one])
    lab.say(
        f"[rank0]:[E{lab.glog} ProcessGroupGloo.cpp:2901] [Rank 0]: Rank {rank} failed to pass monitoredBarrier in 20000 ms"
    )
    lab.fall({rank}, {rank: -9})
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({lab.node_of(rank)}))


@story
def node_gone(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    lab.fall(set(lab.ranks_on(node)), {}, silent=node)
    return Expected(True, C.HARDWARE, R.YES, frozenset({node}))


@story
def node_gone_in_the_middle_of_a_line(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    lab.say(" [2026-11-12 03:14:15] iteration      ")
    lab.fall(set(lab.ranks_on(node)), {}, silent=node)
    return Expected(True, C.HARDWARE, R.YES, frozenset({node}))


@story
def node_that_slurm_gave_up(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    at = f"{lab.at:%Y-%m-%dT%H:%M:%S}"
    lab.say(
        f"slurmstepd: error: *** JOB 4711 ON {lab.nodes[0]} CANCELLED AT {at} DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"
    )
    lab.say(f"srun: error: Node failure on {node}")
    return Expected(True, C.HARDWARE, R.YES, frozenset({node}))


@story
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


@story
def no_route(lab: Lab) -> Expected:
    """One node has no way to another: nobody has a rank yet, and the first connection is lost to it."""
    node = lab.any_node(but_first=True)
    lab.launch()
    lab.traceback(None, "RuntimeError: [enforce fail at socket.cc:142] rv != -1. -1 vs -1. connect: No route to host")
    peer = f"[{lab.address[node]}]:50842"
    lab.traceback(
        None, f"RuntimeError: Gloo connectFullMesh failed with [pair.cc:553] Connection closed by peer {peer}."
    )
    lab.gives_up(lab.nodes[0], {0: 1})
    lab.gives_up(node, {lab.ranks_on(node)[0]: 1})
    for other in lab.nodes:
        lab.loses_store(other)
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({node}))


@story
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


@story
def head_never_came_to_the_rendezvous(lab: Lab) -> Expected:
    for _ in lab.nodes[1:]:
        lab.say(
            f"[E{lab.glog} socket.cpp:1019] [c10d] The client socket has timed out after 60000ms while trying to connect to"
            f" ({lab.nodes[0]}, 29500)."
        )
    return Expected(True, C.SYSTEM_SOFTWARE, R.YES, frozenset({lab.nodes[0]}))


@story
def port_in_use(lab: Lab) -> Expected:
    lab.traceback(
        None,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port:"
        " 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    )
    return Expected(True, C.SYSTEM_SOFTWARE, R.YES, frozenset({lab.nodes[0]}))


@story
def silent_end(lab: Lab) -> Expected:
    lab.run()
    lab.at += timedelta(hours=5)
    return Expected(True, C.INTERCONNECT, R.YES)


@story
def gpu_memory_error(lab: Lab) -> Expected:
    rank = _crash(lab, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    return Expected(True, C.HARDWARE, R.YES, frozenset({lab.node_of(rank)}))


@story
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


@story
def port_error(lab: Lab) -> Expected:
    lab.run()
    node = lab.any_node()
    for host in lab.nodes:
        event = "port error" if host == node else "client reregistration"
        lab.say(f"{host}:211456:212011 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : {event}")
    lab.fall({lab.ranks_on(node)[0]}, {})
    return Expected(True, C.INTERCONNECT, R.YES, frozenset({node}))


@story
def switch_down(lab: Lab) -> Expected:
    lab.run()
    for host in lab.random.sample(lab.nodes, len(lab.nodes)):
        lab.say(f"{host}:211456:212011 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error")
    return Expected(True, C.INTERCONNECT, R.YES)


@story
def launch_failed(lab: Lab) -> Expected:
    node = lab.any_node()
    lab.say(f"srun: error: Task launch for StepId=4711.0 failed on node {node}: Communication connection failure")
    lab.say("srun: error: Application launch failed: Communication connection failure")
    lab.say("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
    lab.say(f"srun: error: {lab.nodes[0]}: task 0: Killed")
    return Expected(True, C.SCHEDULER, R.YES, frozenset({node}))
