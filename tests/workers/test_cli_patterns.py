"""`relight patterns`: checking, listing and trying fault patterns."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.workers.conftest import Relight

SITE = """\
version: 1
signatures:
  - id: site.switch
    title: The switch agent complains
    pattern: 'switch agent: port (?:down|flapping)'
    class: interconnect
    role: root
    retry: yes
    node: named
    extract: ['on (?P<node>[a-z0-9]+)']
    examples: ["switch agent: port down on n07"]
    near_misses: ["switch agent: port up on n07"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(SITE)
    return path


def test_the_built_in_patterns_pass_their_own_check(relight: Relight) -> None:
    shown = relight("patterns", "check")
    assert (shown.code, shown.err) == (0, "")
    assert "each found in its examples and not in its near misses" in shown.out
    machine = relight("patterns", "check", "--json").json
    assert (machine["ok"], machine["error"]) == (True, None)
    assert machine["entries"] > 100


def test_a_sites_file_is_checked_by_itself(relight: Relight, site: Path) -> None:
    assert f"{site}: 1 entries" in relight("patterns", "check", str(site)).out
    assert relight("patterns", "check", str(site), "--json").json["entries"] == 1


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("port down on n07", "plug down on n07", 11, "pattern does not match its own example"),
        ("port up on n07", "port down on n08", 12, "pattern matches its own near miss"),
        ("(?:down|flapping)", "(down", 5, "missing )"),
        ("agent: port", "agent(?=: port)", 5, "invalid perl operator"),
        ("role: root", "role: culprit", 7, "role: Input should be"),
        ("    role: root\n    retry: yes\n", "", 3, "role, retry: Field required"),
        ("id: site.switch", "id: cuda.ecc", 3, "the id is taken in"),
        ("signatures:", "signatures: [", 12, "is not YAML"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_reason(
    relight: Relight, site: Path, old: str, new: str, line: int, reason: str
) -> None:
    site.write_text(SITE.replace(old, new, 1))
    refused = relight("patterns", "check", str(site))
    assert refused.code == 2
    assert reason in refused.err
    if "YAML" not in reason:
        assert f"{site}:{line}: " in refused.err
    machine = relight("patterns", "check", str(site), "--json")
    assert machine.code == 2
    assert machine.json["ok"] is False
    assert reason in machine.json["error"]


def test_an_example_that_another_entry_hides_is_told(relight: Relight, site: Path) -> None:
    hidden = "switch agent: port down on n07, retrying in 5 s"
    site.write_text(SITE.replace("switch agent: port down on n07", hidden))
    refused = relight("patterns", "check", str(site))
    assert refused.code == 2
    assert "site.switch is not found in its example" in refused.err


def test_all_patterns_are_listed_with_what_they_say(relight: Relight, site: Path) -> None:
    shown = relight("patterns", "list", "--catalogue", str(site)).out
    assert "xid.79" in shown
    assert "site.switch" in shown
    listed = relight("patterns", "list", "--json").json
    ecc = next(one for one in listed if one["id"] == "cuda.ecc")
    assert (ecc["class"], ecc["retry"], ecc["node"]) == ("hardware", "yes", "reporter")


def test_a_text_is_tried(relight: Relight, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Nov 12 03:14:15 n07 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    found = relight("patterns", "test", text, "--json").json
    assert [(one["id"], one["fields"].get("node")) for one in found] == [("xid.79", "n07"), ("gpu.lost", "n07")]
    shown = relight("patterns", "test", "all is well\nswitch agent: port down on n07", "--catalogue", str(site))
    assert "line 2: site.switch: The switch agent complains" in shown.out
    assert "a cause; class interconnect, retry yes, points at the node it names" in shown.out
    assert "with node=n07" in shown.out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert "xid.79" in relight("patterns", "test", "-").out


def test_a_text_that_shows_nothing_is_no_match(relight: Relight) -> None:
    none = relight("patterns", "test", "all is well")
    assert none.code == 1
    assert "none of" in none.out
    assert "try it with --catalogue FILE" in none.out
    assert relight("patterns", "test", "all is well", "--json").json == []


def test_a_file_that_is_not_there_is_named(relight: Relight, tmp_path: Path) -> None:
    for command in (["check", "absent.yaml"], ["list", "--catalogue", "absent.yaml"]):
        refused = relight("patterns", *command)
        assert refused.code == 2
        assert "absent.yaml: cannot be read" in refused.err
