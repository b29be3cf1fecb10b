"""Where a line happened: addresses, files, tasks, host lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.faults.places import AddressMap, in_slurms_order, names_in, nodes_of_files, task_list
from recovery.faults.scanner import Hit, Scanner
from recovery.records import Confidence
from tests.recovery.logs import CATALOGUE, NODES, hosts, lost, steps, table, told

SCANNER = Scanner(CATALOGUE)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def hits(text: str, source: str = "") -> list[Hit]:
    return [replace(hit, source=source) for hit in SCANNER.text(text.encode())]


def suspects(*files: tuple[str, str], nodes: tuple[str, ...] = NODES) -> list[str]:
    found = told(*files, nodes=nodes)
    return [one.host for one in found.suspects if one.confidence is not Confidence.LOW]


def lost_by(peers: dict[int, str]) -> list[Hit]:
    return hits("".join(lost(rank, peer) for rank, peer in peers.items()))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n01", ("n01",)),
        ("n[01-03]", ("n01", "n02", "n03")),
        ("n[01,07-08]", ("n01", "n07", "n08")),
        ("gpu-a[9-11]", ("gpu-a9", "gpu-a10", "gpu-a11")),
        ("n[01-]", ("n[01-]",)),
        ("n[x]", ("n[x]",)),
        ("n[1-999999999999]", ("n[1-999999999999]",)),
    ],
)
def test_simple_host_lists_are_understood(text: str, names: tuple[str, ...]) -> None:
    assert names_in(text) == names


def test_huge_lists_are_cut() -> None:
    assert len(names_in("n[1-999999999]")) == 4096
    assert len(task_list("0-999999999")) == 4096


def test_slurm_counts_as_people_do() -> None:
    assert in_slurms_order(("n10", "n9", "n1")) == ["n1", "n9", "n10"]
    assert in_slurms_order(("b2", "a10", "a9")) == ["a9", "a10", "b2"]


def test_node_failures_are_named_as_lists_too() -> None:
    assert suspects(("", steps(1, 5) + "srun: error: Node failure on n[02-03]\n")) == ["n02", "n03"]


def test_a_node_that_says_its_address_is_known_by_it() -> None:
    said = hits("n03:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.9.0.77<0>\n")
    known = AddressMap(said, NODES)
    assert (known.node_of("10.9.0.77") or ("",))[0] == "n03"
    assert known.node_of("10.9.0.3") is None


def test_a_name_that_holds_the_address_is_known_by_it() -> None:
    known = AddressMap([], ("ip-10-0-3-17", "ip-10-0-3-18"))
    assert (known.node_of("10.0.3.18") or ("",))[0] == "ip-10-0-3-18"


def test_numbers_tell_addresses_only_where_all_of_them_fit() -> None:
    every = lost_by({number: f"10.0.0.{number}" for number in (1, 2, 3, 4)})
    assert (AddressMap(every, NODES).node_of("10.0.0.3") or ("",))[0] == "n03"
    shifted = lost_by({number: f"10.0.0.{number + 1}" for number in (1, 2, 3, 4)})
    assert AddressMap(shifted, NODES).node_of("10.0.0.3") is None
    two_networks = lost_by({1: "10.0.0.1", 2: "10.0.0.2", 3: "10.0.9.3"})
    assert AddressMap(two_networks, NODES).node_of("10.0.0.2") is None
    assert AddressMap(every, ("a1", "b1", "c2", "d3")).node_of("10.0.0.3") is None
    assert AddressMap(every, ("login", "n02", "n03", "n04")).node_of("10.0.0.3") is None


def test_few_addresses_are_only_a_hint() -> None:
    few = AddressMap(lost_by({1: "10.0.0.3"}), NODES)
    assert few.node_of("10.0.0.3") is None
    assert (few.likely_node_of("10.0.0.3") or ("",))[0] == "n03"


def test_a_peer_that_is_only_an_address_is_no_suspect_by_its_number() -> None:
    line = "n01:1:2 [0] NCCL WARN Connect to 10.0.0.{}<40215> failed : Connection refused\n"
    assert suspects(("", steps(1, 3) + line.format(2))) == []
    said = "n02:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.77<0>\n"
    assert suspects(("", said + steps(1, 3) + line.format(77))) == ["n02"]


def test_of_many_broken_connections_the_end_they_share_is_suspected() -> None:
    line = "{}:1:2 [0] NCCL WARN NET/IB : Got completion from peer {}<37948> with status=12 vendor err 129\n"
    pairs = [("n01", "n03"), ("n02", "n03"), ("n03", "n04")]
    assert suspects(("", "".join(line.format(*pair) for pair in pairs))) == ["n03"]
    from_one = [("n01", "n02"), ("n01", "n03"), ("n01", "n04")]
    assert suspects(("", "".join(line.format(*pair) for pair in from_one))) == ["n01"]
    assert suspects(("", line.format("n01", "n02"))) == ["n02"]


def test_a_port_error_on_most_nodes_is_their_switchs() -> None:
    line = "{}:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
    assert suspects(("", "".join(line.format(node) for node in NODES))) == []
    assert suspects(("", line.format("n02"))) == ["n02"]


def test_a_file_of_one_node_tells_where_its_lines_come_from() -> None:
    clock = "2026-11-12 03:14:2{} x\n"
    first = ("out/n01.log", steps(1, 5) + clock.format(1))
    assert suspects(first, ("out/n03.log", ECC + clock.format(0))) == ["n03"]
    by_words = ("b.log", hosts(("n03",)) + ECC + clock.format(0))
    assert suspects(("a.log", hosts(("n01",)) + steps(1, 5)), by_words) == ["n03"]
    assert suspects(first, ("out/stderr.log", ECC)) == []


def test_two_files_of_one_node_tell_nothing() -> None:
    both = [*hits(hosts(("n01",)), "n01.out"), *hits(hosts(("n01",)), "n01.err")]
    assert nodes_of_files(["n01.out", "n01.err"], both, NODES) == {}
    assert nodes_of_files(["n01.out"], hits(hosts(("n01",)), "n01.out"), NODES) == {}


def test_a_labelled_line_happened_where_srun_says_the_task_ran() -> None:
    text = steps(1, 3) + "2: " + ECC + "srun: error: n03: task 2: Exited with exit code 1\n"
    assert suspects(("", text)) == ["n03"]


def test_a_cause_that_nobody_signed_is_where_connections_were_lost_first() -> None:
    ends = table(("n01", 0, 1), ("n01", 1, -15)) + table(("n03", 4, 1)) + table(("n04", 7, -15))
    lines = "".join(lost(rank, f"10.0.0.{peer}") for rank, peer in ((0, 3), (2, 1), (7, 4)))
    assert suspects(("", hosts() + ECC + lines + ends)) == ["n03"]
    # n04 was only ended by its launcher: it did not go first, so numbers and addresses do not fit here
    other = "".join(lost(rank, f"10.0.0.{peer}") for rank, peer in ((0, 4), (2, 1)))
    assert suspects(("", hosts() + ECC + other + ends)) == []
