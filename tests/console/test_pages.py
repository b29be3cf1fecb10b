"""The pages, as they are served."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from recovery.records import FaultClass
from tests.console.conftest import HOSTILE, Client, Grounds
from workers.console.tokens import Role

PAGES = ("/", "/jobs", "/jobs/prod-12345", "/nodes", "/nodes/prod/n02", "/incidents", "/incidents?closed=true",
         "/reports", "/policy", "/jobs/prod-12345/do/restart", "/jobs?closed=true&q=none")  # fmt: skip
ELSEWHERE = re.compile(r"""(?:src|href|action|hx-get|sse-connect)=["'](?:https?:)?//""")


class Scripts(HTMLParser):
    """What in a page could run, and what its elements are."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.tags: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_script = tag == "script"
        self.inline += [f"{name}={value}" for name, value in attrs if name.startswith("on") or name == "style"]
        self.inline += [f"{name}={value}" for name, value in attrs if (value or "").lower().startswith("javascript:")]

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.inline.append(data)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_shows_itself_and_nothing_in_it_runs_or_comes_from_elsewhere(
    path: str, grounds: Grounds, client: Client
) -> None:
    grounds.story(words=HOSTILE)
    page = client(grounds.operator).get(path)
    assert page.status_code == 200, page.text
    found = Scripts()
    found.feed(page.text)
    assert found.inline == []
    assert found.tags.count("script") == 4
    assert "img" not in found.tags
    assert not ELSEWHERE.search(page.text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f‮]", page.text)
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


def test_hostile_text_is_shown_as_it_was_written(grounds: Grounds, client: Client) -> None:
    grounds.story(words=HOSTILE)
    page = client(grounds.viewer).get("/jobs/prod-12345").text
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") >= 5  # name, finding, evidence, source, who…
    assert "{{7*7}}" in page
    assert ">49" not in page


def test_a_job_page_tells_its_story(grounds: Grounds, client: Client) -> None:
    grounds.write(", temporal_ui: 'http://127.0.0.1:8233/'")
    grounds.story()
    page = client(grounds.viewer).get("/jobs/prod-12345").text
    for words in (
        "Attempt 0", "Attempt 1", "GPU fell off the bus", "NVRM: Xid 79 on n02", "line 881", "named in the log",
        "one suspect: n02", "restarts 1", "restarted on n01, n03", "by oncall", "step 150 of 1000",
        "relight show prod-12345", "temporal workflow show --workflow-id prod-12345",
        "http://127.0.0.1:8233/namespaces/default/workflows/prod-12345", "If it failed now",
    ):  # fmt: skip
        assert words in page, words
    assert page.count("<svg") == 2  # of the whole story, and of the end of the attempt that failed


def test_a_viewer_is_shown_no_actions(grounds: Grounds, client: Client) -> None:
    grounds.story()
    grounds.job("7", phase="waiting_approval")
    viewer, operator = client(grounds.viewer), client(grounds.operator)
    for path in ("/", "/jobs/prod-12345", "/jobs/prod-7"):
        assert "/do/" not in viewer.get(path).text
        assert "/do/" in operator.get(path).text
    assert viewer.get("/jobs/prod-7/do/approve").status_code == 403


def test_a_filter_has_an_address_and_its_pages_too(grounds: Grounds, client: Client) -> None:
    for number in range(1, 54):
        grounds.job(str(number), fault=FaultClass.STORAGE)
    grounds.job("99")
    api = client(grounds.viewer)
    first = api.get("/jobs?fault=storage&user=alice").text
    assert "53 jobs" in first
    assert '<option value="storage" selected>' in first
    following = re.search(r'href="(/jobs\?[^"]+)" rel="next"', first)
    assert following is not None
    second = api.get(following[1].replace("&amp;", "&")).text
    assert [int(one) for one in re.findall(r'<a href="/jobs/prod-(\d+)">', second)] == [3, 2, 1]
    assert 'rel="next"' not in second


def test_a_search_for_a_job_goes_straight_to_it(grounds: Grounds, client: Client) -> None:
    grounds.story()
    found = client(grounds.viewer).get("/jobs?q=prod-12345")
    assert (found.status_code, found.headers["location"]) == (303, "/jobs/prod-12345")


def test_a_job_is_shown_although_the_policy_file_is_broken(grounds: Grounds, client: Client) -> None:
    grounds.story()
    broken = grounds.config.parent / "policy.yaml"
    broken.write_text("policies: 7\n")
    grounds.config.write_text(grounds.config.read_text() + f"policy_file: {broken}\n")
    page = client(grounds.viewer).get("/jobs/prod-12345")
    assert page.status_code == 200
    assert "policy.yaml" in page.text


def test_a_page_that_is_not_there_says_so(grounds: Grounds, client: Client) -> None:
    page = client(grounds.viewer).get("/jobs/prod-999")
    assert page.status_code == 404
    assert "no record of job prod-999" in page.text


def test_the_table_for_spreadsheets_holds_no_formula(grounds: Grounds, client: Client) -> None:
    grounds.story()
    text = client(grounds.viewer).get("/reports.csv?since=7d").text
    assert text.splitlines()[0].startswith("at,cluster,job_id")
    assert "prod,12345,0,hardware" in text
    from workers.console.csv_text import csv_of

    assert csv_of(("a",), [["=HYPERLINK(1)"], ["plain"], [-3]]).splitlines() == ["a", "'=HYPERLINK(1)", "plain", "-3"]


def test_without_sign_in_everybody_on_loopback_may_look(grounds: Grounds, client: Client) -> None:
    assert client(open_to=Role.VIEWER).get("/").status_code == 200
