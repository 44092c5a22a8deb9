"""A real browser: the Chromium of this machine, or Playwright's own. And a page of it that has the dashboard open."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    CDPSession,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

from tests.support.gateway import ADMIN, Running

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "No browser: `apt-get install chromium`, or `.venv/bin/playwright install chromium`."
DESKTOP = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 780}
PATIENCE = 15_000  # ms: a busy machine takes its time
# A refused load is an error of the console too, and what some tests want.
EXPECTED = re.compile(r"Failed to load resource: the server responded with a status of 40[01345]")
WATCH = """
document.addEventListener("securitypolicyviolation", (e) =>
  console.error(`VIOLATION ${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips the test where there is none, but in CI, where there has to be one."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        playwright.selectors.set_test_id_attribute("data-test")
        expect.set_options(timeout=PATIENCE)
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error:
            if path is not None or os.environ.get("CI"):
                raise
            pytest.skip(HOW)
        yield browser
        browser.close()


@dataclass
class Dashboard:
    """A page with the dashboard. `bodies` is all that the page was sent, `troubles` what a good page has none of:
    exceptions, dialogs of the browser, violations of the content security policy, requests to other hosts."""

    gw: Running
    page: Page
    troubles: list[str] = field(default_factory=list)
    _bodies: list[str] = field(default_factory=list, repr=False)
    _finished: list[Request] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        page, host = self.page, urlsplit(self.gw.url).netloc
        page.set_default_timeout(PATIENCE)
        page.add_init_script(WATCH)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.troubles.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (self.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: self.troubles.append(f"popup: {popup.url}"))
        page.on("request", lambda r: None if _stays(r.url, host) else self.troubles.append(f"request: {r.url}"))
        page.on("requestfinished", lambda request: self._finished.append(request))
        self._listen(page.context.new_cdp_session(page))

    def _listen(self, protocol: CDPSession) -> None:
        # The body of a stream never ends, so its events are taken one by one.
        protocol.on("Network.eventSourceMessageReceived", lambda event: self._bodies.append(event["data"]))
        protocol.send("Network.enable")

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not EXPECTED.match(message.text):
            self.troubles.append(f"console: {message.text}")

    def bodies(self) -> list[str]:
        """Everything that came so far. To be called before the page is left, too: then the browser forgets it."""
        while self._finished:
            response = self._finished.pop(0).response()
            if response is not None and response.status not in (204, 304):
                self._bodies.append(f"{response.url} {response.all_headers()} {response.text()}")
        return self._bodies

    def open(self, place: str = "") -> None:
        """The page anew; `place` is a hash route."""
        self.page.goto(f"{self.gw.url}/dashboard{place}")

    def go(self, place: str) -> None:
        """To a hash route, without loading anything anew."""
        self.page.evaluate("place => { location.hash = place }", place)

    def at(self, name: str, **data: str) -> Locator:
        """What has this data-test, and these data attributes."""
        more = "".join(f'[data-{k}="{v}"]' for k, v in data.items())
        return self.page.locator(f'[data-test="{name}"]{more}')

    def sign_in(self, key: str = ADMIN) -> None:
        self.at("signin-key").fill(key)
        self.at("signin-submit").click()
        self.is_live()

    def is_live(self) -> None:
        self.page.locator('[data-test="live-state"][data-state="live"]').wait_for()

    def figure(self, card: str) -> Locator:
        """What a card says in large."""
        return self.at(card).locator(".card-value")

    def row(self, request_id: str) -> Locator:
        return self.at("request-row", id=request_id)

    def opened(self, name: str = "decision-detail") -> Locator:
        """The sheet of that name, once it is there with all of it."""
        sheet = self.at(name)
        sheet.locator(".facts").first.wait_for()
        return sheet

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)


def _stays(url: str, host: str) -> bool:
    return urlsplit(url).netloc == host or url.startswith(("data:", "about:"))


@contextmanager
def dashboard(browser: Browser, gw: Running, *, key: str | None = ADMIN, **options: Any) -> Iterator[Dashboard]:
    """The dashboard in a browser that knows nothing yet; signed in with this key, or with None not at all. `options`
    are those of a Playwright context. At the end the page must have had no trouble."""
    usual = {"viewport": DESKTOP, "locale": "en-US", "timezone_id": "UTC", "reduced_motion": "reduce"}
    with browser.new_context(**{**usual, **options}) as context:
        it = Dashboard(gw, context.new_page())
        it.open()
        if key is not None:
            it.sign_in(key)
        yield it
        assert it.troubles == [], "\n".join(it.troubles)
