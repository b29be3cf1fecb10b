# ruff: noqa: E501 - lines of logs are as long as they are
"""A made-up training job on several nodes, and what it prints: the words of PyTorch, gloo, NCCL and Slurm.

Names of nodes, addresses, ranks, times and the order in which nodes speak are drawn by lot. Stories are told elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

TOTAL = 400


class Lab:
    """A job on some nodes and its log so far."""

    def __init__(self, seed: int, *, per_node: Sequence[int] = (1, 2, 4)) -> None:
        self.random = Random(seed)
        draw = self.random
        count, self.per_node = draw.randint(3, 6), draw.choice(per_node)
        first = draw.randint(1, 60)
        style = draw.choice(("gpu-a{:02d}", "n{:03d}", "hgx{}", "rack7-{:04d}"))
        self.nodes = tuple(style.format(first + number) for number in range(count))
        network = f"10.{draw.randint(0, 99)}.{draw.randint(0, 9)}"
        self.address = {node: f"{network}.{first + number}" for number, node in enumerate(self.nodes)}
        self.ranks = range(count * self.per_node)
        self.script = draw.choice(("pretrain_gpt.py", "train.py", "finetune.py"))
        self.at = datetime(2026, draw.randint(1, 12), draw.randint(1, 28), draw.randint(0, 23), 0, tzinfo=UTC)
        self.rows: list[tuple[str, str]] = []
        """Who wrote it (a node), and the line."""
        self.step = 0
        self.highest: int | None = None
        self.saved: int | None = None

    def say(self, *lines: str, node: str = "") -> None:
        """Lines of a node; without one of the first, where the script and srun run."""
        self.rows += ((node or self.nodes[0], line) for line in lines)
        self.at += timedelta(milliseconds=self.random.randint(1, 300))

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for _, line in self.rows)

    @property
    def files(self) -> list[tuple[str, str]]:
        """The same as one file a node."""
        return [
            (f"out-{node}.log", "".join(f"{line}\n" for who, line in self.rows if who == node)) for node in self.nodes
        ]

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
                f"W{self.glog} {pid} torch/distributed/run.py:865] node_rank is only used for static rdzv_backend.",
                f"[W{self.glog}001 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved.",
                node=node,
            )

    def begin(self) -> None:
        for rank in self.shuffled(list(self.ranks)):
            host = self.node_of(rank)
            local = rank % self.per_node
            self.say(
                f"> initialized torch distributed: rank {rank} local_rank {local} host {host} pid {1000 + rank}",
                node=host,
            )
        self.say("WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt")
        self.say(f"[before the start of training step] datetime: {self.at:%Y-%m-%d %H:%M:%S} ")

    def train(self, steps: int, total: int = TOTAL) -> None:
        """Steps, told by the last rank; the first one saves."""
        for _ in range(steps):
            self.step += 1
            self.highest = max(self.step, self.highest or 0)
            self.at += timedelta(seconds=4)
            self.say(
                f" [{self.at:%Y-%m-%d %H:%M:%S}] iteration {self.step:8d}/{total:8d} | consumed samples: {self.step * 32} |"
                f" elapsed time per iteration (ms): {4000 + self.random.random() * 90:.1f} | lm loss: 7.8E+00 |"
                " loss scale: 1.0 | grad norm: 0.594 | number of skipped iterations:   0 | number of nan iterations:   0 |",
                node=self.nodes[-1],
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

    def traceback(self, rank: int | None, error: str, where: str = "loss.backward()", *, node: str = "") -> None:
        label = f"[rank{rank}]: " if rank is not None else ""
        node = node or (self.node_of(rank) if rank is not None else "")
        self.say(
            f"{label}Traceback (most recent call last):",
            f'{label}  File "/opt/llm/{self.script}", line 160, in main',
            f"{label}    {where}",
            f"{label}{error}",
            node=node,
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
            f" local_rank: {first % self.per_node} (pid: {pid}) of binary: /usr/bin/python3",
            node=node,
        )
        error = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
        self.traceback(None, error, "run(args)", node=node)
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
        self.say(*table, "=" * 60, node=node)

    def loses_store(self, node: str) -> None:
        self.say(
            f"[W{self.glog}001 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe",
            "Exception raised from sendBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:758",
            f"W{self.glog} 7 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1298] The node '{node}_7_0' has"
            " failed to shutdown the rendezvous '48210' due to an error of type RendezvousConnectionError.",
            node=node,
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
