"""A real browser opens every page: it renders, nothing in it fails, and nothing is asked of any other host."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from activities.contracts import EventKind, NewEvent
from tests.console.conftest import HOSTILE, Grounds
from tests.services.console import ConsoleProcess

PATIENCE_MS = 60_000
PAGES = ("/jobs", "/jobs/prod-12345", "/nodes", "/incidents", "/reports", "/policy", "/jobs/prod-12345/do/restart")


def _chromium() -> str:
    found = shutil.which("chromium")
    assert found is not None, "Debian's package chromium is missing: ./dev test installs it"
    return found


class Heard:
    """What the browser told of a page."""

    def __init__(self, page: Page, own: str) -> None:
        self.trouble: list[str] = []
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.trouble.append(f"dialog: {dialog.message}"))
        page.on("console", lambda said: self.trouble.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("request", lambda asked: None if asked.url.startswith(own) else self.trouble.append(asked.url))
        page.on(
            "response", lambda told: self.trouble.append(f"{told.status} {told.url}") if told.status >= 400 else None
        )


def test_pages_render_live_and_ask_nobody_else(grounds: Grounds, tmp_path: Path) -> None:
    life = grounds.story(words=HOSTILE)
    with (
        ConsoleProcess(grounds.config) as console,
        sync_playwright() as driver,
        driver.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(color_scheme="dark", viewport={"width": 390, "height": 800})
        page.set_default_timeout(PATIENCE_MS)
        heard = Heard(page, console.url)
        page.goto(f"{console.url}/jobs/prod-12345")  # leads to the sign-in page, and back
        page.fill("input[name=token]", grounds.operator)
        page.click("main button")
        page.wait_for_url(f"{console.url}/jobs/prod-12345")
        page.wait_for_selector(".chart canvas")
        assert page.locator("svg.axis").count() == 2
        page.get_by_text("evidence from").click()
        page.get_by_text("NVRM: Xid 79 on n02").wait_for()

        # What is written now appears without a reload, and what was opened stays open.
        page.evaluate("window.here = true")
        page.wait_for_function("document.getElementById('feed').textContent === 'live'")
        event = NewEvent(
            key=f"{life}:new", kind=EventKind.OPERATOR, at=grounds.now, summary="resumed just now", attempt=1
        )
        grounds.store.append("prod", "12345", life, [event])
        page.get_by_text("resumed just now", exact=True).wait_for()
        assert page.evaluate("window.here") is True
        page.get_by_text("NVRM: Xid 79 on n02").wait_for(state="visible")

        page.goto(console.url)
        page.keyboard.press("/")
        page.keyboard.type("prod-12345\n")
        page.wait_for_url(f"{console.url}/jobs/prod-12345")
        for path in PAGES:
            page.goto(console.url + path)
            page.wait_for_load_state("load")
            assert page.locator("h1").count() == 1
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{path} is {width} wide on a narrow screen"
        assert heard.trouble == []
