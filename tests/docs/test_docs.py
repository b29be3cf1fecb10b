"""The documentation leads somewhere, and says what the code says."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.main import get_command

from activities.contracts import EventKind
from recovery.directive import Directive, parse_comment
from recovery.faults.blocks import BlockCutter
from recovery.faults.catalogue import Catalogue, schema
from recovery.policy_file import parse as parse_policy
from recovery.progress import ProgressReader
from recovery.records import FaultClass, Mode, OutcomeKind, Retry, Role
from tests.docs.pages import PAGES, README, ROOT, Block, anchors, blocks, first_column, links, named, prose, target
from workers.cli import app
from workers.settings import load_settings
from workflows.state import Phase
from workflows.telling import SEARCH_ATTRIBUTES

DOCS = ROOT / "docs"
RELIGHT = get_command(app)
every_page = pytest.mark.parametrize("page", PAGES, ids=named)

FORBIDDEN = re.compile(
    r"/work/|/root/|/home/\w|pypi\.org|pythonhosted|npmjs|crates\.io|deb\.debian\.org|proxy\.golang|docker\.io|ghcr\.io"
)


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------------------ pages and links


def test_generated_parts_say_what_the_code_says() -> None:
    stale = [named(path) for path in _generator().out_of_date()]
    assert not stale, f"{', '.join(stale)}: run docs/generate.py"


@every_page
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, anchor = target(page, link)
        assert path.exists(), f"{named(page)} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(path), f"{named(page)} links to {link}: no such heading in {path.name}"


def test_every_page_is_within_two_clicks_of_the_readme() -> None:
    reached, edge = {README}, {README}
    for _ in range(2):
        found = {target(page, link)[0] for page in edge for link in links(page)}
        edge = {path for path in found if path.suffix == ".md"} - reached
        reached |= edge
    assert {named(page) for page in PAGES} <= {named(page) for page in reached}


@every_page
def test_no_page_names_a_machine_or_a_registry(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not FORBIDDEN.search(text), f"{named(page)}: {FORBIDDEN.search(text)}"


def test_the_readme_opens_with_what_it_is_the_two_commands_and_how_to_opt_in() -> None:
    text = README.read_text(encoding="utf-8")
    places = [text.index(words) for words in ("# relight", "./dev demo", "./dev test", "#SBATCH --comment=relight")]
    assert places == sorted(places)
    assert places[-1] < len(text) / 2


# ------------------------------------------------------------------------------------------------ commands


def _shown_commands(page: Path) -> Iterator[str]:
    """`relight …` in shell blocks and between backticks."""
    for block in blocks(page):
        if block.kind == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                yield from re.split(r"&&|\|\||;(?!;)", line)
    yield from re.findall(r"`([^`\n]+)`", prose(page))


def _words(line: str) -> list[str]:
    """The words behind `relight`, up to a pipe, a redirection or a comment; empty for other commands."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    while words[:1] == ["sudo"] or words[:1] == ["-u"]:
        words = words[2:] if words[0] == "-u" else words[1:]
    if not words or words[0].rsplit("/", 1)[-1] != "relight":
        return []
    end = next((at for at, word in enumerate(words) if word in {"|", ">", ">>", "<"}), len(words))
    return words[1:end]


@every_page
def test_every_relight_command_shown_exists(page: Path) -> None:
    for line in _shown_commands(page):
        words = _words(line)
        command: Any = RELIGHT
        while words and not words[0].startswith("-") and getattr(command, "commands", None):
            assert words[0] in command.commands, f"{named(page)}: there is no `relight {words[0]}` (in: {line.strip()})"
            command = command.commands[words.pop(0)]
        known = {word for one in command.params for word in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}
        given = {word.split("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}
        if command.name != "demo":
            assert given <= known, f"{named(page)}: {sorted(given - known)} is no option of: {line.strip()}"


def test_every_part_of_dev_that_is_shown_exists() -> None:
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, timeout=60, check=True).stdout
    known = set(re.findall(r"^\./dev ([a-z]+)", usage, re.MULTILINE))
    shown = {word for page in PAGES for word in re.findall(r"\./dev ([a-z]+)", page.read_text(encoding="utf-8"))}
    assert shown <= known


# ------------------------------------------------------------------------------------------------ examples


def _examples(kind: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.kind == kind]


YAMLS = _examples("yaml")


@pytest.mark.parametrize("block", YAMLS, ids=lambda block: named(block.page))
def test_every_yaml_example_is_accepted(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    title, _, _ = block.text.partition("\n")
    file = tmp_path / title.removeprefix("# ")
    file.write_text(block.text, encoding="utf-8")
    if title == "# policy.yaml":
        parse_policy(block.text, title)
        _fits_schema(file, "policy")
    elif title == "# relight.yaml":
        for name in ("RELIGHT_CONFIG", "RELIGHT_POLICY_FILE"):
            monkeypatch.delenv(name, raising=False)
        assert load_settings(file).clusters
    else:
        assert title == "# site-faults.yaml", "the first line of a YAML example says what it is"
        Catalogue.built_in(file)
        _fits_schema(file, "catalogue")


def test_the_built_in_catalogue_fits_its_schema() -> None:
    _fits_schema(ROOT / "recovery" / "faults" / "catalogue.yaml", "catalogue")


def _fits_schema(file: Path, schema: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--schemafile", DOCS / "reference" / f"{schema}.schema.json", file],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@every_page
def test_every_comment_shown_is_understood(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace('\\"', '"')
    comments = re.findall(r"comment='([^']+)'", text) + re.findall(r"#SBATCH --comment=([a-z]\w*)", text)
    for comment in (one for one in comments if "…" not in one):
        parsed = parse_comment(comment)
        assert not parsed.error, f"{named(page)}: {comment}: {parsed.error}"
        assert parsed.opted_in or parsed.opted_out, f"{named(page)}: {comment} does not speak to relight"


def test_every_json_input_shown_is_json() -> None:
    inputs = [one for page in PAGES for one in re.findall(r"--input '([^']+)'", page.read_text(encoding="utf-8"))]
    assert inputs
    for one in inputs:
        assert isinstance(json.loads(one), dict)


def test_the_attribution_request_and_answer_shown_keep_to_their_contracts(tmp_path: Path) -> None:
    shown = [block for block in _examples("json") if block.page.name == "attribution.md"]
    for block, name in zip(shown, ("attribution-request", "attribution-answer"), strict=True):
        file = tmp_path / f"{name}.json"
        file.write_text(block.text, encoding="utf-8")
        _fits_schema(file, name)


@pytest.mark.parametrize("kind", ["text progress", "text checkpoint"])
def test_every_progress_line_shown_is_read(kind: str) -> None:
    (block,) = _examples(kind)
    for line in block.text.splitlines():
        reader, cutter = ProgressReader(), BlockCutter()
        for piece in (*cutter.feed(line.encode() + b"\n"), *cutter.finish()):
            reader.read(piece)
        assert (reader.highest if "progress" in kind else reader.checkpoint) == 20, line


# ------------------------------------------------------------------------------------------------ complete tables


@pytest.mark.parametrize(
    ("page", "heading", "words"),
    [
        ("opt-in.md", "The keys", set(Directive.model_fields)),
        ("reference.md", "Event kinds", {value for key, value in vars(EventKind).items() if key.isupper()}),
        ("reference.md", "Kinds of outcome", {kind.value for kind in OutcomeKind}),
        ("temporal.md", "Find: search attributes", {*(key.name for key in SEARCH_ATTRIBUTES), *Phase}),
        ("operate.md", "From monitor to approve to act", {mode.value for mode in Mode}),
    ],
)
def test_a_table_names_everything_there_is(page: str, heading: str, words: set[str]) -> None:
    assert first_column(DOCS / page, heading) == {str(word) for word in words}


def test_the_words_of_the_fault_table_are_all_explained() -> None:
    text = prose(DOCS / "detectors.md")
    for word in (*FaultClass, *Role, *Retry, *schema()["$defs"]["Says"]["enum"]):
        assert f"`{word}`" in text, word


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    page = DOCS / "dependencies.md"
    for given, heading in (
        (project["project"]["dependencies"], "At run time"),
        (project["dependency-groups"]["dev"], "For development"),
    ):
        assert first_column(page, heading) == {re.split(r"[\[<>=!~ ]", one)[0] for one in given}


def test_the_changelog_names_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"## {project['project']['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_two_configurations_of_the_guide_belong_together() -> None:
    texts = [block.text for block in YAMLS if block.page.name == "operate.md"]
    settings, policy = (yaml.safe_load(text) for text in texts[:2])
    assert settings["clusters"].keys() == policy["clusters"].keys()
