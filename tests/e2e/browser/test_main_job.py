"""What somebody does at the dashboard in an hour, in a real browser: comes in, sees traffic arrive, asks why, takes an
answer away, says that one is wrong, and leaves."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.support.browser import Dashboard, dashboard
from tests.support.gateway import ADMIN, ALICE, Running
from tests.support.live import listening
from tests.support.semantic import ASKED, REWORDED, Room
from tests.support.traffic import decision, fixed, outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, numbered

pytestmark = pytest.mark.slow

TOKENS = 18  # of the scripted answer: 11 in, 7 out
PRICE = 0.025  # of it, at the prices of these tests
CARDS = ("card-hit-rate", "card-usd-saved", "card-tokens-saved", "card-requests")
HERE = "window.here ??= Math.random()"  # the same until the page is loaded anew


def joined_pair(gw: Running, up: Upstream, prompt: str) -> None:
    """Two that ask the same at the same time."""
    gate = threading.Event()

    def held(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.gate = gate
        return reply

    up.script = held
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(gw.chat, prompt) for _ in range(2)]
        try:
            listening(gw, 2)
        finally:
            gate.set()
        assert sorted(outcome(a.result()) for a in answers) == ["joined", "miss"]
    up.script = numbered


def refused(gw: Running, up: Upstream, prompt: str) -> None:
    error = {"error": {"message": "No such model.", "type": "invalid_request_error", "param": None, "code": "no_model"}}
    up.script = fixed(Reply([json.dumps(error).encode()], status=400))
    assert gw.chat(prompt).status_code == 400
    up.script = numbered


def traffic(gw: Running, up: Upstream) -> None:
    """Four of nine from cache: one exact, one by meaning, one joined, one stream."""
    assert [outcome(gw.chat("a")) for _ in range(2)] == ["miss", "exact"]
    room = Room(gw)
    room.serves(REWORDED, room.told(ASKED))
    joined_pair(gw, up, "b")
    refused(gw, up, "c")
    assert [outcome(gw.chat("d", stream=True)) for _ in range(2)] == ["miss", "exact"]


def confirm_purge(sheet: Locator) -> None:
    sheet.get_by_test_id("purge-entry").click()
    sheet.page.get_by_test_id("confirm").click()


def test_only_a_key_with_the_role_opens_it(browser: Browser, gw: Running) -> None:
    with dashboard(browser, gw, key=None) as it:
        problem = it.page.get_by_role("alert")
        for key, remark in (("", "Enter a key"), ("rf-no-such-key", "not known"), (ALICE, "role")):
            it.at("signin-key").fill(key)
            it.at("signin-submit").click()
            expect(problem).to_contain_text(remark)
            expect(it.at("nav-requests")).to_have_count(0)
        it.sign_in(ADMIN)
        expect(it.at("live-state")).to_have_text("Live")
        expect(it.page.get_by_text("ops / root")).to_be_visible()
        assert it.run("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})") == "{}"


def test_the_numbers_move_while_one_looks(browser: Browser, gw: Running, up: Upstream) -> None:
    gw.chat("before")
    with dashboard(browser, gw) as it:
        expect(it.figure("card-requests")).to_have_text("1")
        before, mark = [it.figure(card).inner_text() for card in CARDS], it.run(HERE)
        traffic(gw, up)
        expect(it.figure("card-requests")).to_have_text("10")
        expect(it.figure("card-hit-rate")).to_have_text("40.0 %")
        expect(it.figure("card-tokens-saved")).to_have_text(str(4 * TOKENS))
        expect(it.figure("card-usd-saved")).to_have_text(f"${4 * PRICE:.2f}")
        stats = gw.admin("GET", "/admin/stats").json()
        assert sum(stats["requests"].values()) == 10
        assert stats["tokens"]["saved"] == 4 * TOKENS
        assert stats["usd"]["saved"] == pytest.approx(4 * PRICE)
        for card, was in zip(CARDS, before, strict=True):
            assert it.figure(card).inner_text() != was
        shares = re.compile(r"exact\s*20.0 %\s*semantic\s*10.0 %\s*joined\s*10.0 %")
        expect(it.at("card-hit-rate")).to_contain_text(shares)
        expect(it.page.get_by_role("region", name="Ledger")).to_contain_text("adds up")
        expect(it.page.get_by_role("region", name="Ledger").get_by_text("differs")).to_have_count(0)
        assert it.run(HERE) == mark
        expect(it.at("live-state")).to_have_text("Live")


def test_filters_change_the_figures(browser: Browser, gw: Running) -> None:
    for path in ("/v1", "/rr/v1", "/rr/v1"):
        gw.chat("a", path=path)
    with dashboard(browser, gw) as it:
        expect(it.figure("card-requests")).to_have_text("3")
        it.at("filter-endpoint").select_option("rr")
        expect(it.figure("card-requests")).to_have_text("2")
        expect(it.figure("card-hit-rate")).to_have_text("50.0 %")
        it.at("filter-tenant").select_option("acme")
        it.page.get_by_role("radio", name="15m").check()
        expect(it.figure("card-requests")).to_have_text("2")
        it.at("nav-requests").click()
        expect(it.at("request-row").filter(visible=True)).to_have_count(2)
        it.at("filter-endpoint").select_option("")
        expect(it.at("request-row").filter(visible=True)).to_have_count(3)


def test_a_decision_says_why(browser: Browser, gw: Running) -> None:
    first = gw.chat("a", temperature=0)
    other = gw.chat("a", temperature=0.5)
    hit = gw.chat("a", temperature=0.5)
    with dashboard(browser, gw) as it:
        it.at("nav-requests").click()
        row = it.row(other.headers["x-request-id"])
        expect(row).to_contain_text("temperature")
        row.click()
        sheet = it.opened()
        expect(sheet.get_by_test_id("decision-why")).to_contain_text("temperature")
        assert decision(gw, other)["why"]["text"] == sheet.get_by_test_id("decision-why").inner_text()
        bars = sheet.get_by_test_id("decision-waterfall").locator("tbody tr")
        phases = " ".join(bars.all_inner_texts())
        assert bars.count() == len(decision(gw, other)["spans"])
        assert "Upstream call" in phases
        assert all(box["width"] > 0 for bar in bars.locator("i").all() if (box := bar.bounding_box()))
        expect(sheet.get_by_text(other.headers["x-request-id"], exact=True)).to_be_visible()
        # From there to the answer that was nearest.
        sheet.get_by_role("link", name="nearest").first.click()
        entry = it.opened("entry-detail")
        expect(entry.locator("pre.answer")).to_have_text(text_of(first))
        it.page.go_back()
        it.page.go_back()
        it.row(hit.headers["x-request-id"]).click()
        expect(it.opened().get_by_test_id("decision-why")).to_contain_text("same request")


def test_requests_appear_by_themselves(browser: Browser, gw: Running) -> None:
    with dashboard(browser, gw) as it:
        it.at("nav-requests").click()
        expect(it.page.get_by_text("No requests yet")).to_be_visible()
        first = gw.chat("a")
        expect(it.row(first.headers["x-request-id"])).to_be_visible()
        it.at("pause").click()
        second = gw.chat("b")
        expect(it.at("show-new")).to_have_text("1 new")
        expect(it.row(second.headers["x-request-id"])).to_have_count(0)
        it.at("show-new").click()
        expect(it.row(second.headers["x-request-id"])).to_be_visible()


def test_an_answer_is_taken_away(browser: Browser, gw: Running, up: Upstream) -> None:
    first, kept = gw.chat("a"), gw.chat("b")
    keys = [decision(gw, answer)["key"] for answer in (first, kept)]
    with dashboard(browser, gw) as it:
        it.at("nav-entries").click()
        it.at("entry-row", key=keys[0]).click()
        sheet = it.opened("entry-detail")
        expect(sheet.locator("pre.answer")).to_have_text(text_of(first))
        sheet.get_by_test_id("purge-entry").click()
        it.page.get_by_role("button", name="Cancel").click()
        assert outcome(gw.chat("a")) == "exact"
        confirm_purge(sheet)
        expect(it.page.get_by_test_id("toast")).to_have_text("The answer is gone.")
        expect(it.at("entry-row", key=keys[0]).filter(visible=True)).to_have_count(0)
        expect(it.at("entry-row", key=keys[1])).to_be_visible()
    with upstream_calls(up, 1):
        assert [outcome(gw.chat("a")) for _ in range(2)] == ["miss", "exact"]
        assert outcome(gw.chat("b")) == "exact"


def test_a_wrong_answer_is_marked_and_not_given_again(browser: Browser, gw: Running, up: Upstream) -> None:
    room = Room(gw)
    answer = room.told(ASKED)
    served = room.serves(REWORDED, answer)
    with dashboard(browser, gw) as it:
        it.at("nav-requests").click()
        it.row(served.headers["x-request-id"]).click()
        sheet = it.opened()
        expect(sheet).to_contain_text("similarity")
        sheet.get_by_test_id("mark-wrong").click()
        expect(it.page.get_by_test_id("toast")).to_contain_text("wrong")
        with upstream_calls(up, 1):
            room.refuses(REWORDED, why="reported_wrong")
        it.page.keyboard.press("Escape")
        it.at("nav-overview").click()
        panel = it.page.get_by_role("region", name="Semantic tier")
        expect(panel.locator("div", has=it.page.get_by_text("reported wrong", exact=True)).last).to_contain_text("1")
        expect(panel).to_contain_text("reported as wrong")


def test_the_place_is_kept(browser: Browser, gw: Running) -> None:
    """Back, forward and reload, and links that others send."""
    answer = gw.chat("a", path="/rr/v1")
    place = f"#/requests/{answer.headers['x-request-id']}?endpoint=rr"
    with dashboard(browser, gw) as it:
        it.at("nav-requests").click()
        it.at("filter-endpoint").select_option("rr")
        it.row(answer.headers["x-request-id"]).click()
        it.opened()
        assert it.page.url.endswith(place)
        it.page.reload()
        it.opened()
        assert it.page.url.endswith(place)
        it.page.go_back()
        expect(it.at("decision-detail")).to_have_count(0)
        expect(it.at("filter-endpoint")).to_have_value("rr")
        it.page.go_back()
        expect(it.page.get_by_role("heading", name="Overview")).to_be_visible()
        it.page.go_forward()
        expect(it.row(answer.headers["x-request-id"])).to_be_visible()


def test_an_address_opened_while_a_sheet_closes_is_where_one_arrives(browser: Browser, gw: Running) -> None:
    """A dialog says that it was closed a moment after it was."""
    ids = [answer.headers["x-request-id"] for answer in (gw.chat("a"), gw.chat("b"))]
    key = decision(gw, gw.chat("a"))["key"]
    close = "place => { document.querySelector('dialog').close(); location.hash = place }"
    with dashboard(browser, gw) as it:
        it.go(f"#/requests/{ids[0]}")
        it.opened()
        it.run(close, f"#/requests/{ids[1]}")
        expect(it.opened().get_by_text(ids[1], exact=True)).to_be_visible()
        it.run(close, f"#/entries/{key}")
        it.opened("entry-detail")
        it.run(close, "#/overview")
        expect(it.page.locator("h1")).to_have_text("Overview")
        assert it.page.url.endswith("#/overview")


def test_signing_out_ends_it_everywhere(browser: Browser, gw: Running) -> None:
    answer = gw.chat("a")
    with dashboard(browser, gw) as it:
        other = it.page.context.new_page()
        other.goto(f"{gw.url}/dashboard#/requests")
        other.get_by_test_id("request-row").first.wait_for()
        it.at("nav-requests").click()
        it.row(answer.headers["x-request-id"]).click()
        it.opened()
        it.page.keyboard.press("Escape")
        it.at("sign-out").click()
        expect(it.at("signin-key")).to_be_focused()
        expect(it.at("request-row")).to_have_count(0)
        it.page.go_back()
        expect(it.at("signin-key")).to_be_visible()
        assert it.run("fetch('/admin/stats').then(r => r.status)") == 401
        # The other tab finds out by itself, with its next word from the gateway at the latest.
        gw.chat("b")
        expect(other.get_by_test_id("signin-key")).to_be_visible()


def test_a_gateway_that_goes_away_is_found_again(browser: Browser, gw: Running) -> None:
    with dashboard(browser, gw) as it:
        gw.chat("a")
        expect(it.figure("card-requests")).to_have_text("1")
        it.page.context.set_offline(True)
        gw.chat("b")
        it.page.context.set_offline(False)
        gw.chat("c")
        expect(it.figure("card-requests")).to_have_text("3")
        expect(it.at("live-state")).to_have_text("Live")


def calls(it: Dashboard) -> list[str]:
    return list(it.run("performance.getEntriesByType('resource').map((e) => e.name)"))


def test_the_page_asks_for_nothing_while_nothing_happens(browser: Browser, gw: Running) -> None:
    """The stream is all it needs."""
    with dashboard(browser, gw) as it:
        gw.chat("a")
        expect(it.figure("card-requests")).to_have_text("1")
        before = len(calls(it))
        for n in range(3):
            gw.chat("a")
            expect(it.figure("card-requests")).to_have_text(str(n + 2))
        assert len(calls(it)) == before
        expect(it.figure("card-hit-rate")).to_have_text("75.0 %")
