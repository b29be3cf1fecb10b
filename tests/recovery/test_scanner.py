"""Scanning: what is found, where, and what hostile bytes cost."""

from __future__ import annotations

import os
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.faults import scanner as scanner_module
from recovery.faults.blocks import BLOCK_BYTES, BlockCutter, shown
from recovery.faults.catalogue import Catalogue
from recovery.faults.scanner import BRIEF, PER_BLOCK, PER_LOG, Hit, Scanner
from recovery.log_reader import LogReader
from tests.recovery.logs import SCANNER, saved, steps

CATALOGUE = Catalogue.built_in()
ECC = b"[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


def scan(data: bytes, piece: int = 0) -> list[Hit]:
    scanner = Scanner(CATALOGUE)
    size = piece or max(len(data), 1)
    hits = [hit for start in range(0, len(data), size) for hit in scanner.feed(data[start : start + size])]
    return [*hits, *scanner.finish()]


def test_a_hit_tells_line_offset_text_and_what_was_captured() -> None:
    before = steps(1, 3).encode()
    (hit,) = scan(before + ECC + b"\n" + steps(4, 5).encode())
    assert (hit.signature.id, hit.line, hit.offset) == ("cuda.ecc", 4, len(before))
    assert hit.text == ECC.decode()
    assert hit.fields == {"rank": "3"}


@pytest.mark.parametrize("piece", [1, 7, 64, 4096])
def test_the_same_is_found_however_the_log_arrives(piece: int) -> None:
    data = steps(1, 5).encode() + ECC + b"\n" + b"srun: error: n02: task 3: Exited with exit code 1\n" + ECC
    whole = scan(data)
    assert [hit.signature.id for hit in whole] == ["cuda.ecc", "srun.task_exited", "cuda.ecc"]
    assert scan(data, piece) == whole


def test_a_line_on_the_border_of_two_blocks_is_found_and_numbered() -> None:
    filler = b"x" * 99 + b"\n"
    lines = BLOCK_BYTES // 100
    data = filler * lines + ECC + b"\n" + filler * lines + ECC + b"\n"
    first, second = scan(data)
    assert (first.line, second.line) == (lines + 1, 2 * lines + 2)
    assert data[first.offset :].startswith(ECC)
    assert data[second.offset :].startswith(ECC)


def test_a_line_without_its_end_is_found_at_the_finish_only() -> None:
    scanner = Scanner(CATALOGUE)
    assert scanner.feed(ECC) == []
    assert [hit.signature.id for hit in scanner.finish()] == ["cuda.ecc"]
    assert scanner.finish() == []


def test_carriage_returns_end_a_shown_line_but_do_not_count_as_one() -> None:
    bar = b"\r".join(b"pretrain: %d%%| %d/30 [00:01<00:02, 3.1it/s]" % (n * 3, n) for n in range(30))
    (hit,) = scan(b"start\n" + bar + b"\r" + ECC + b"\rmore\r\n")
    assert (hit.line, hit.offset, hit.text) == (2, 6, ECC.decode())


def test_colours_do_not_hide_a_line() -> None:
    coloured = (
        b"ok\n\x1b[1;31mRuntimeError\x1b[0m: CUDA error: \x1b[4muncorrectable\x1b[0m ECC error encountered\x1b[K\n"
    )
    (hit,) = scan(coloured)
    assert (hit.line, hit.offset) == (2, 3)
    assert hit.text == "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def test_a_pattern_does_not_reach_over_a_line_end() -> None:
    assert scan(b"NVRM: Xid (PCI:0000:9b:00): \n79, pid=1\n") == []
    assert scan(b"CUDA error:\nuncorrectable\nECC error encountered\n") == []


def test_several_signatures_of_one_line_come_in_the_order_of_the_catalogue() -> None:
    hits = scan(b"[rank6]: AssertionError: Rank 6: found NaN in local forward loss calculation. Device: 0, node: n18\n")
    assert [hit.signature.id for hit in hits] == ["training.nan", "python.exception"]
    assert hits[0].fields["node"] == "n18"


def test_the_captures_of_a_signature_go_before_the_prefix_of_its_line() -> None:
    (hit,) = scan(b"[rank0]:[E1129 g.cpp:1] [Rank 0]: Rank 5 failed to pass monitoredBarrier in 20000 ms\n")
    assert hit.fields["rank"] == "5"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (b"12: RuntimeError: CUDA error: unspecified launch failure", {"task": "12"}),
        (b"[default7]:RuntimeError: CUDA error: unspecified launch failure", {"local_rank": "7"}),
        (b"n22:183006:183220 [1] NCCL WARN NET/IB : Got async event : port error", {"node": "n22", "gpu": "1"}),
        (
            b"n22:1:2 [1] transport/net_ib.cc:94 NCCL WARN NET/IB : Got async event : port error",
            {"node": "n22", "gpu": "1"},
        ),
        (b"[88.1] NVRM: Xid (PCI:0000:9b:00): 79, pid=1", {"pci": "0000:9b:00", "xid": "79"}),
        (
            b"[rank4]:[E PG.cpp:6] [PG 5 Rank 0] Watchdog caught collective operation timeout: W",
            {"rank": "4", "group": "5"},
        ),
    ],
)
def test_where_a_line_comes_from_is_understood(line: bytes, fields: dict[str, str]) -> None:
    assert scan(line + b"\n")[0].fields == fields


def test_bytes_that_are_no_text_cost_nothing_and_hide_nothing() -> None:
    noise = random.Random(7).randbytes(3 * BLOCK_BYTES)
    data = noise + b"\n\xff\xfe\x00" + ECC + b"\x00\x80\n" + noise
    found = [hit for hit in scan(data) if hit.signature.id == "cuda.ecc"]
    assert len(found) == 1
    assert "\x00" not in found[0].text
    assert "uncorrectable ECC error" in found[0].text


def test_a_line_of_megabytes_is_shown_around_what_was_found() -> None:
    data = (
        b"[rank9]: " + b"x" * (BLOCK_BYTES // 2) + b" CUDA error: uncorrectable ECC error encountered " + b"y" * 900_000
    )
    (hit,) = scan(data + b"\n" + ECC + b"\n")[:1]
    assert hit.line == 1
    assert len(hit.text) <= 2_000
    assert "uncorrectable ECC error" in hit.text
    assert hit.fields["rank"] == "9"


def test_a_line_longer_than_a_block_keeps_the_numbers_right() -> None:
    (hit,) = scan(b"z" * (3 * BLOCK_BYTES + 17) + b"\n" + ECC + b"\n")
    assert (hit.line, hit.offset) == (2, 3 * BLOCK_BYTES + 18)


def test_a_flood_of_one_fault_is_counted_and_does_not_hide_another() -> None:
    flood = (ECC + b"\n") * 40_000
    scanner = Scanner(CATALOGUE)
    hits = scanner.feed(flood + b"OSError: [Errno 28] No space left on device\n" + flood) + scanner.finish()
    assert scanner.seen["cuda.ecc"] == 80_000
    assert len(hits) <= PER_LOG + 1
    assert [hit.line for hit in hits if hit.signature.id == "storage.full"] == [40_001]


def test_a_flood_of_victims_does_not_hide_a_cause_megabytes_later() -> None:
    victim = b"[rank1]: RuntimeError: Connection reset by peer\n"
    hits = scan(victim * (20 * BLOCK_BYTES // len(victim)) + ECC + b"\n")
    assert hits[-1].signature.id == "cuda.ecc"
    assert len(hits) == PER_LOG + 1


def test_a_flood_of_every_fault_costs_no_more_than_one_of_a_few_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanner_module, "ALL_LINES", 2_000)
    monkeypatch.setattr(scanner_module, "PER_FLOOD", 16)
    one_line = {one.id: one.examples[0] for one in CATALOGUE.signatures if "\n" not in one.examples[0]}
    kept_back = one_line.pop("storage.full").encode() + b"\n"
    block = b"".join(line.encode() + b"\n" for line in one_line.values())
    scanner = Scanner(CATALOGUE)
    hits = [hit for _ in range(200) for hit in scanner.feed(block)]
    assert scanner.seen.total() > 15_000
    assert len(hits) < 2_000 + len(block.splitlines())  # the block that passes the limit is looked at to its end
    assert "storage.full" in {hit.signature.id for hit in scanner.feed(kept_back)}


def test_of_many_long_lines_only_the_beginning_is_kept() -> None:
    hits = scan((ECC + b" " + b"y" * 1_500 + b"\n") * 200)
    assert len(hits[0].text) > 1_500
    assert len(hits[-1].text) == BRIEF


def test_no_more_than_so_many_lines_of_a_pattern_are_looked_at_in_a_block() -> None:
    hits = scan((ECC + b"\n") * (PER_BLOCK + 500))
    assert len(hits) == PER_BLOCK
    assert hits[-1].line == PER_BLOCK


def test_made_up_numbers_in_a_log_do_not_fill_the_memory() -> None:
    scanner = Scanner(CATALOGUE)
    lines = (f"NVRM: Xid (PCI:0000:9b:00): {number}, pid=1\n".encode() for number in range(50_000))
    hits = scanner.feed(b"".join(lines))
    assert len(hits) <= PER_LOG


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), st.just(ECC), st.just(b"\x1b[0m" * 20)), max_size=30))
def test_any_bytes_are_numbered_as_newlines_count(pieces: list[bytes]) -> None:
    data = b"\n".join(pieces)
    for hit in scan(data, 97):
        assert data[: hit.offset].count(b"\n") == hit.line - 1
        assert hit.offset == 0 or data[hit.offset - 1 : hit.offset] == b"\n"
        assert len(hit.text) <= 2_000


def test_one_scanner_for_each_thread_finds_the_same() -> None:
    data = steps(1, 2_000).encode() + ECC + b"\n"
    found: list[list[Hit]] = []
    threads = [threading.Thread(target=lambda: found.append(scan(data))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(hits == found[0] for hits in found)
    assert len(found[0]) == 1


def test_marks_tell_their_last_places_in_a_block() -> None:
    scanner = Scanner(CATALOGUE, marks=("saved checkpoint", "never there"))
    cutter = BlockCutter()
    (block,) = cutter.feed(b"successfully saved checkpoint at iteration 10\n")
    hits, marks = scanner.scan(block)
    assert hits == []
    assert {number: list(places) for number, places in marks.items()} == {0: [len("successfully saved checkpoint")]}


def test_a_shown_line_has_no_control_bytes() -> None:
    assert shown(b"a\x00b\x07c\td\xff\x85\n") == "abc\td\ufffd\ufffd"


def test_blocks_put_together_are_the_log() -> None:
    data = os.urandom(200_000).replace(b"\n", b"") + b"\nshort\n" + b"tail"
    cutter = BlockCutter()
    blocks = [block for start in range(0, len(data), 9_999) for block in cutter.feed(data[start : start + 9_999])]
    blocks += cutter.finish()
    assert b"".join(block.raw for block in blocks) == data
    assert [block.offset for block in blocks] == [sum(len(b.raw) for b in blocks[:i]) for i in range(len(blocks))]


def test_lines_between_binary_dumps_are_found_however_they_are_dressed_and_counted_as_usual() -> None:
    source = random.Random(8)
    fault = b"\x1b[31m\x1b[1m" + ECC.replace(b"CUDA", b"\x1b[4mCUDA\x1b[0m") + b"\x1b[K"
    lines = (steps(7, 7).encode(), saved(7).encode(), fault + b"\n", fault + b"\r\n", b"7% \r" + ECC + b"\r99%\n")
    dumps = [source.randbytes(BLOCK_BYTES // 3) + b"\0\x1b[7m\xff\n" for _ in lines]
    data = b"".join(part for pair in zip(dumps, lines, strict=True) for part in pair) + dumps[0]
    reader = LogReader(CATALOGUE, scanner=SCANNER)
    for start in range(0, len(data), BLOCK_BYTES):
        reader.feed(data[start : start + BLOCK_BYTES])
    reader.finish()
    found = [hit for hit in reader.hits if hit.signature.id == "cuda.ecc"]
    assert [hit.text for hit in found] == [ECC.decode()] * 3
    assert [hit.line for hit in found] == [data[: hit.offset].count(b"\n") + 1 for hit in found]
    assert [hit.offset for hit in found] == [data.index(lines[2]), data.index(lines[3]), data.index(lines[4])]
    assert (reader.progress.highest, reader.progress.checkpoint) == (7, 7)
    assert reader.lines == data.count(b"\n")


def test_a_sequence_in_a_binary_block_is_removed_wherever_it_touches_text() -> None:
    for beside in (b"loss 7\x1b[0m\xff", b"\xff\x1b[1mloss 7", b"\x1b[31m\x1b[1mloss 7", b"lo\x1b[0mss 7"):
        (block,) = BlockCutter().feed(b"\0\xff\xfe\n" + beside + b"\n")
        assert b"loss 7" in block.text
        assert b"\x1b" not in block.text
