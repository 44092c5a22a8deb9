"""The dashboard without a mouse, without sight, on a phone, in the dark, and without motion."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import DESKTOP, PHONE, Dashboard, dashboard
from tests.support.gateway import ADMIN, Running
from tests.support.semantic import ASKED, REWORDED, Room
from tests.support.traffic import decision
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow

AXE = Path(__file__).resolve().parents[1] / "node" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": DESKTOP},
    "phone": {"viewport": PHONE, "is_mobile": True, "has_touch": True},
}
TAP = 24  # pixels, by WCAG 2.2

# Controls that can be seen and are smaller than a fingertip needs; of a choice with its label the label counts.
SMALL = """
(least) => [...document.querySelectorAll("a, button, input, select, summary, [tabindex='0']")].filter((el) => {
  const dialog = [...document.querySelectorAll("dialog[open]")].at(-1);
  const hidden = !el.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
  if (hidden || (dialog && !dialog.contains(el))) return false;
  const box = (el.closest("label") ?? el).getBoundingClientRect();
  return box.width && box.right > 0 && (box.width < least || box.height < least);
}).map((el) => `${el.outerHTML.slice(0, 120)} ${JSON.stringify(el.getBoundingClientRect())}`)
"""
WIDE = """
() => document.scrollingElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
  .filter((el) => el.getBoundingClientRect().right > innerWidth + 1 && !el.closest(".scroll-x"))
  .map((el) => el.outerHTML.slice(0, 120))
"""
MOVING = "() => document.getAnimations().filter((a) => a.playState === 'running').map((a) => a.animationName)"
FOCUS = """
() => {
  const el = document.activeElement, near = el.closest("label") ?? el;
  const marks = [el, near, el.nextElementSibling ?? el].map((e) => getComputedStyle(e));
  return {name: el.getAttribute("data-test") ?? el.textContent.trim() ?? "", tag: el.tagName,
    seen: el.matches(":focus-visible") && marks.some((s) => s.outlineStyle !== "none" || s.boxShadow !== "none")};
}
"""
ORDER = "rows => rows.sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((r) => r.dataset.id)"


@pytest.fixture
def made(gw: Running, up: Upstream) -> dict[str, str]:
    """Requests of all kinds; ids and keys of those to look at."""
    room = Room(gw)
    served = room.serves(REWORDED, room.told(ASKED))
    first = gw.chat("a", headers={"x-refrain-tags": "handbook"})
    gw.chat("a", temperature=0.5)
    gw.chat("a", headers={"cache-control": "only-if-cached"}, seed=5)
    return {"semantic": served.headers["x-request-id"], "key": decision(gw, first)["key"]}


def views(it: Dashboard, made: dict[str, str]) -> Iterator[str]:
    """Each view in turn, with all that is in it."""
    it.go("#/overview")
    it.page.locator(".overview canvas").first.wait_for()
    yield "overview"
    it.page.get_by_role("button", name=re.compile("show as a table")).first.click()
    yield "overview with a table"
    it.go("#/requests")
    it.at("request-row").first.wait_for()
    yield "requests"
    it.go(f"#/requests/{made['semantic']}")
    it.opened()
    yield "decision"
    it.at("decision-detail").get_by_test_id("purge-entry").click()
    it.at("confirm").wait_for()
    yield "question"
    it.page.keyboard.press("Escape")
    it.go("#/entries")
    it.at("entry-row").first.wait_for()
    yield "entries"
    it.at("purge-many").click()
    it.at("purge-count").wait_for()
    yield "purge"
    it.page.keyboard.press("Escape")
    it.go(f"#/entries/{made['key']}")
    it.opened("entry-detail")
    yield "entry"


def violations(page: Page) -> list[str]:
    found = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES)
    bad = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    return [f"{v['id']}: {node['html'][:200]} {node['failureSummary']}" for v in bad for node in v["nodes"]]


@pytest.mark.parametrize(
    ("size", "theme"), [("desktop", "light"), pytest.param("phone", "dark", marks=pytest.mark.slow)]
)
def test_no_serious_barrier(browser: Browser, gw: Running, made: dict[str, str], size: str, theme: str) -> None:
    """By axe, in every view."""
    assert AXE.exists(), "run `make test` once: its setup installs axe-core"
    with dashboard(browser, gw, key=None, color_scheme=theme, **SIZES[size]) as it:
        it.run(AXE.read_text())
        assert violations(it.page) == [], "sign in"
        it.sign_in(ADMIN)
        for view in views(it, made):
            assert violations(it.page) == [], view


def test_a_phone_shows_all_of_it(browser: Browser, gw: Running, made: dict[str, str]) -> None:
    """Nothing is wider than the screen, nothing to tap smaller than a fingertip, and nothing moves for who has said
    that nothing shall."""
    with dashboard(browser, gw, key=None, **SIZES["phone"]) as it:
        assert it.run(WIDE) == it.run(SMALL, TAP) == []
        it.sign_in(ADMIN)
        for view in views(it, made):
            assert it.run(WIDE) == [], view
            assert it.run(SMALL, TAP) == [], view
            assert it.run(MOVING) == [], view
        it.page.keyboard.press("Escape")
        it.go("#/requests")
        expect(it.at("filter-outcome")).to_be_hidden()
        it.at("more-filters").tap()
        it.at("filter-outcome").select_option("semantic")
        expect(it.at("request-row").filter(visible=True)).to_have_count(1)


def test_the_narrowest_and_the_widest(browser: Browser, gw: Running, made: dict[str, str]) -> None:
    with dashboard(browser, gw) as it:
        for width in (320, 721, 2560):
            it.page.set_viewport_size({"width": width, "height": 700})
            for view in views(it, made):
                assert it.run(WIDE) == [], (width, view)
            it.page.keyboard.press("Escape")


def test_the_whole_way_by_keyboard(browser: Browser, gw: Running, made: dict[str, str]) -> None:
    """Without a mouse: in, to the list, down it, into a request, to its entry, purge it, and out again."""
    with dashboard(browser, gw, key=None) as it:
        keys = it.page.keyboard
        expect(it.at("signin-key")).to_be_focused()
        keys.type(ADMIN)
        keys.press("Enter")
        it.is_live()
        it.page.locator(".overview canvas").first.wait_for()
        tab_to(it, "nav-requests")
        keys.press("Enter")
        it.at("request-row").first.wait_for()
        tab_to(it, "filter-endpoint")
        keys.type("default")
        expect(it.at("filter-endpoint")).to_have_value("default")
        tab_to(it, "request-row")
        rows = it.at("request-row").filter(visible=True)
        order = rows.evaluate_all(ORDER)
        keys.press("End")
        expect(it.row(order[-1])).to_be_focused()
        keys.press("Home")
        expect(it.row(order[0])).to_be_focused()
        for id in order[1:3]:
            keys.press("ArrowDown")
            expect(it.row(id)).to_be_focused()
        assert it.run(FOCUS)["seen"]
        keys.press("Enter")
        sheet = it.opened()
        assert it.run("document.querySelector('dialog').contains(document.activeElement)")
        keys.press("Escape")
        expect(sheet).to_have_count(0)
        expect(it.row(order[2])).to_be_focused()
        tab_to(it, "nav-entries", back=True)
        keys.press("Enter")
        it.at("entry-row").first.wait_for()
        tab_to(it, "entry-row")
        keys.press("End")
        keys.press("Enter")
        it.opened("entry-detail")
        tab_to(it, "purge-entry")
        keys.press("Enter")
        it.at("confirm").wait_for()
        keys.press("Escape")
        expect(it.at("confirm")).to_have_count(0)
        expect(it.at("purge-entry")).to_be_focused()
        before = len(gw.admin("GET", "/admin/entries").json()["entries"])
        keys.press("Enter")
        tab_to(it, "confirm")
        keys.press("Enter")
        expect(it.at("entry-detail")).to_have_count(0)
        assert len(gw.admin("GET", "/admin/entries").json()["entries"]) == before - 1
        assert it.run("document.activeElement !== document.body")
        tab_to(it, "sign-out", back=True)
        keys.press("Enter")
        expect(it.at("signin-key")).to_be_focused()


def tab_to(it: Dashboard, name: str, *, back: bool = False) -> None:
    """By the Tab key alone; each stop on the way must be seen to have the focus."""
    for _ in range(60):
        it.page.keyboard.press("Shift+Tab" if back else "Tab")
        at = it.run(FOCUS)
        assert at["seen"] or at["tag"] == "BODY", at
        if at["name"] == name:
            return
    raise AssertionError(f"no way to {name}")


def test_the_first_stop_leads_past_the_head(browser: Browser, gw: Running, made: dict[str, str]) -> None:
    with dashboard(browser, gw) as it:
        it.go("#/requests")
        it.page.reload()
        it.at("request-row").first.wait_for()
        it.page.keyboard.press("Tab")
        expect(it.page.get_by_role("link", name="Skip to the content")).to_be_focused()
        it.page.keyboard.press("Enter")
        expect(it.page.get_by_role("main")).to_be_focused()
        assert it.page.url.endswith("#/requests")


def test_what_a_screen_reader_hears(browser: Browser, gw: Running, made: dict[str, str]) -> None:
    with dashboard(browser, gw) as it:
        page = it.page
        for view in views(it, made):
            assert it.run(UNNAMED) == [], view
            assert in_order(it.run(HEADINGS)), (view, it.run(HEADINGS))
            for dialog in page.get_by_role("dialog").all():
                expect(dialog).to_have_accessible_name(re.compile(r"\w"))
        page.keyboard.press("Escape")
        it.go("#/overview")
        charts = page.locator(".plot").filter(visible=True)
        expect(charts.first).to_have_attribute("role", "img")
        for chart in charts.all():
            expect(chart).to_have_accessible_name(re.compile(r"\d"))
        expect(it.at("live-state")).to_have_attribute("role", "status")
        expect(page.locator("#toasts")).to_have_attribute("role", "status")
        it.go("#/requests")
        expect(page.get_by_role("grid", name="Requests")).to_have_attribute("aria-rowcount", "6")
        expect(page.get_by_role("link", name="Requests", exact=True)).to_have_attribute("aria-current", "page")
        assert page.title().startswith("Requests")


UNNAMED = """
() => [...document.querySelectorAll("a, button, input, select, textarea, summary, dialog, [role=grid], [role=img]")]
  .filter((el) => el.checkVisibility() && !el.closest("[aria-hidden=true]"))
  .filter((el) => !(el.ariaLabel || el.getAttribute("aria-labelledby") || el.labels?.length || el.textContent.trim()))
  .map((el) => el.outerHTML.slice(0, 150))
"""
HEADINGS = """
() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((h) => h.checkVisibility())
  .map((h) => +h.tagName[1])
"""


def in_order(levels: list[int]) -> bool:
    """One first heading, and no level left out on the way down."""
    return levels.count(1) == 1 and all(b <= a + 1 for a, b in pairwise(levels))


def background(it: Dashboard) -> int:
    """How light the page is, 0 to 255."""
    color = it.run("getComputedStyle(document.body).backgroundColor")
    return max(int(part) for part in re.findall(r"\d+", color)[:3])


def test_light_and_dark(browser: Browser, gw: Running) -> None:
    """As the system has it, until the reader says otherwise; that is remembered."""
    with dashboard(browser, gw, color_scheme="dark") as it:
        assert background(it) < 60
        it.page.emulate_media(color_scheme="light")
        assert background(it) > 200
        it.page.get_by_role("button", name="Dark theme").click()
        assert background(it) < 60
        expect(it.page.get_by_role("button", name="Light theme")).to_be_focused()
        it.page.reload()
        it.is_live()
        assert background(it) < 60
        it.page.emulate_media(color_scheme="dark")
        it.at("theme-toggle").click()
        assert background(it) > 200
