# ruff: noqa: E501 - lines of logs are as long as they are
"""Logs of jobs that ended by something of their own, or by the storage they use: no node is bad, save where said."""

from __future__ import annotations

from recovery.records import FaultClass as C
from recovery.records import Retry as R
from tests.recovery.lookalike_lab import Lab
from tests.recovery.lookalike_stories import Expected, crash, story


@story()
def bad_record(lab: Lab) -> Expected:
    crash(
        lab, "json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column 12 (char 11)", "next(data)"
    )
    return Expected(True, C.USER, R.NO)


@story()
def not_a_number(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    where = f"Device: {rank % lab.per_node}, node: {lab.node_of(rank)}"
    lab.traceback(rank, f"AssertionError: Rank {rank}: found NaN in local forward loss calculation. {where}")
    lab.fall({rank}, {rank: 1})
    return Expected(True, C.APPLICATION, R.ONCE, happened_on=frozenset({lab.node_of(rank)}))


@story()
def wrong_shapes(lab: Lab) -> Expected:
    lab.launch()
    lab.begin()
    for rank in lab.shuffled(list(lab.ranks)):
        lab.traceback(rank, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (128x96 and 128x384)")
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
    return Expected(True, C.USER, R.NO)


@story()
def missing_module(lab: Lab) -> Expected:
    lab.launch()
    for rank in lab.ranks:
        lab.traceback(
            None, "ModuleNotFoundError: No module named 'fused_kernels'", "import fused_kernels", node=lab.node_of(rank)
        )
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
    return Expected(True, C.USER, R.NO)


@story()
def out_of_host_memory(lab: Lab) -> Expected:
    crash(lab, "MemoryError", "cache.append(read())")
    return Expected(True, C.OUT_OF_MEMORY, R.NO)


@story()
def memory_limit_everywhere(lab: Lab) -> Expected:
    lab.run()
    for node in lab.random.sample(list(lab.nodes), len(lab.nodes)):
        lab.say(f"slurmstepd-{node}: error: StepId=4711.0 exceeded memory limit (344539136 > 104857600), being killed")
        lab.say("slurmstepd: error: Exceeded job memory limit")
    return Expected(True, C.OUT_OF_MEMORY, R.NO)


@story()
def out_of_gpu_memory(lab: Lab) -> Expected:
    crash(
        lab,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB"
        " of which 1.44 GiB is free. 310.22 MiB is reserved by PyTorch but unallocated.",
    )
    return Expected(True, C.OUT_OF_MEMORY, R.NO)


@story()
def index_error(lab: Lab) -> Expected:
    crash(lab, "IndexError: list index out of range", "data[step]")
    return Expected(True, C.APPLICATION, R.ONCE)


@story()
def bad_argument(lab: Lab) -> Expected:
    for node in lab.nodes:
        for _ in lab.ranks_on(node):
            lab.say(
                f"usage: {lab.script} [-h] [--steps N]",
                f"{lab.script}: error: unrecognized arguments: --hidden=96",
                node=node,
            )
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 2))
    return Expected(True, C.USER, R.NO)


@story(per_node=(2, 4))
def left_early(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    for victim in lab.shuffled([one for one in lab.ranks if one != rank]):
        lab.lost(victim, lab.node_of(rank))
    for node in lab.nodes:
        here = [one for one in lab.shuffled(lab.ranks_on(node)) if one != rank]
        lab.gives_up(node, {here[0]: 1} | dict.fromkeys(here[1:], -15))
    return Expected(True, C.APPLICATION, R.NO)


@story()
def killed_rank(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    lab.fall({rank}, {rank: -9})
    return Expected(True, C.SYSTEM_SOFTWARE, R.YES, happened_on=frozenset({lab.node_of(rank)}))


@story()
def segfault(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    lab.fall({rank}, {rank: -11})
    return Expected(True, C.APPLICATION, R.ONCE, happened_on=frozenset({lab.node_of(rank)}))


@story()
def segfault_with_a_stack(lab: Lab) -> Expected:
    lab.run()
    rank = lab.random.choice(lab.ranks)
    node = lab.node_of(rank)
    lab.say(
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f2a0c0ffee0 (most recent call first):",
        f'  File "/opt/llm/{lab.script}", line 160 in main',
        node=node,
    )
    lab.fall({rank}, {rank: -11})
    return Expected(True, C.APPLICATION, R.ONCE, happened_on=frozenset({node}))


@story()
def segfault_everywhere(lab: Lab) -> Expected:
    lab.launch()
    for rank in lab.ranks:
        lab.say(
            "Fatal Python error: Segmentation fault",
            "",
            f'File "/opt/llm/{lab.script}", line 9 in <module>',
            node=lab.node_of(rank),
        )
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), -11))
    return Expected(True, C.APPLICATION, R.NO)


@story()
def data_loader_killed(lab: Lab) -> Expected:
    crash(lab, "RuntimeError: DataLoader worker (pid 29027) is killed by signal: Killed. ", "next(loader)")
    return Expected(True, C.SYSTEM_SOFTWARE, R.ONCE)


@story()
def disk_full(lab: Lab) -> Expected:
    lab.run()
    lab.traceback(
        0, "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 796416 vs 796304", "save()"
    )
    lab.fall({0}, {0: 1})
    return Expected(True, C.STORAGE, R.NO)


@story()
def shared_memory_full(lab: Lab) -> Expected:
    """Reads like a full disk."""
    lab.launch()
    lab.begin()
    rank = lab.random.choice(lab.ranks)
    lab.traceback(rank, "OSError: [Errno 28] No space left on device", "self._semlock = _multiprocessing.SemLock(")
    lab.fall({rank}, {rank: 1})
    return Expected(True, C.SYSTEM_SOFTWARE, R.NO, happened_on=frozenset({lab.node_of(rank)}))


@story()
def read_only_storage(lab: Lab) -> Expected:
    lab.run()
    lab.traceback(0, "OSError: [Errno 30] Read-only file system: '/ckpt/iter_0000020'", "save_checkpoint(step)")
    lab.fall({0}, {0: 1})
    return Expected(True, C.STORAGE, R.ONCE)


@story(per_node=(2, 4))
def missing_mount(lab: Lab) -> Expected:
    node = lab.any_node()
    lab.launch()
    lab.begin()
    for rank in lab.shuffled(lab.ranks_on(node)):
        lab.traceback(rank, f"FileNotFoundError: [Errno 2] No such file or directory: '/data/shard_{rank:03d}.jsonl'")
    lab.fall(set(lab.ranks_on(node)), dict.fromkeys(lab.ranks_on(node), 1))
    return Expected(True, C.STORAGE, R.YES, frozenset({node}))


@story(per_node=(2, 4))
def stale_handle_on_one_node(lab: Lab) -> Expected:
    node = lab.any_node()
    lab.run()
    for rank in lab.shuffled(lab.ranks_on(node)):
        lab.traceback(rank, "OSError: [Errno 116] Stale file handle: '/data/shard.bin'")
    lab.fall(set(lab.ranks_on(node)), dict.fromkeys(lab.ranks_on(node), 1))
    return Expected(True, C.STORAGE, R.YES, frozenset({node}))


@story(per_node=(2, 4))
def broken_package_on_one_node(lab: Lab) -> Expected:
    node = lab.any_node()
    lab.launch()
    for _ in lab.ranks_on(node):
        lab.traceback(None, "ImportError: cannot import name 'tqdm' from 'tqdm'", "from tqdm import tqdm", node=node)
    lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
    for other in lab.nodes:
        if other != node:
            for _ in lab.ranks_on(other):
                error = "torch.distributed.DistStoreError: wait timeout after 20000ms, keys: /default_pg/0//cpu//0/4"
                lab.traceback(None, error, "dist.init_process_group('gloo')", node=other)
            lab.gives_up(other, dict.fromkeys(lab.shuffled(lab.ranks_on(other)), 1))
            lab.loses_store(other)
    return Expected(True, C.SYSTEM_SOFTWARE, R.YES, frozenset({node}))


@story()
def corrupt_checkpoint(lab: Lab) -> Expected:
    lab.launch()
    for rank in lab.shuffled(list(lab.ranks)):
        error = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
        lab.traceback(rank, error, "load_checkpoint(model)")
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
    return Expected(True, C.STORAGE, R.NO)


@story()
def stale_handle_everywhere(lab: Lab) -> Expected:
    lab.run()
    for rank in lab.shuffled(list(lab.ranks)):
        lab.traceback(rank, "OSError: [Errno 116] Stale file handle: '/data/shard.bin'")
    for node in lab.nodes:
        lab.gives_up(node, dict.fromkeys(lab.shuffled(lab.ranks_on(node)), 1))
    return Expected(True, C.STORAGE, R.NO)
