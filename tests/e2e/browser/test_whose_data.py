"""A tenant's admin is sent nothing of another tenant, and who is not signed in nothing at all: looked for in every byte
that the browser was sent, not only in what is shown."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser.conftest import CHIEF
from tests.support.browser import Dashboard, dashboard
from tests.support.gateway import ALICE, EVE, Running
from tests.support.semantic import ASKED, REWORDED
from tests.support.traffic import decision
from tests.support.upstream import Upstream, chat_answer, numbered, reply_for

pytestmark = pytest.mark.slow

PAGES = Path(__file__).resolve().parents[3] / "gateway" / "dashboard" / "static"
ADMIN_PATHS = ("stats", "decisions", "entries", "overview", "live", "keys", "audit")


def canaries(tenant: str) -> list[str]:
    return [f"{tenant}-{kind}-canary" for kind in ("model", "tag", "answer", "prompt")]


def traffic(gw: Running, up: Upstream) -> dict[str, list[str]]:
    """Of both tenants: misses, hits, hits by meaning, errors; gives each one's ids and keys, which are secrets too."""
    secrets = {}
    for tenant, key, user in (("acme", ALICE, "alice"), ("globex", EVE, "eve")):
        model, tag, text, prompt = canaries(tenant)
        up.script = lambda seen, number, text=text: reply_for(seen, chat_answer(text, model=seen.body["model"]))
        asks = [prompt, prompt, ASKED, REWORDED]
        answers = [gw.chat(a, model=model, key=key, headers={"x-refrain-tags": tag}) for a in asks]
        answers += [gw.chat(prompt, model=model, key=key, path="/rr/v1", temperature=0.5)]
        failed = gw.chat(prompt, model=model, key=key, headers={"cache-control": "only-if-cached"}, seed=5)
        made = [decision(gw, answer) for answer in [*answers, failed]]
        secrets[tenant] = [*canaries(tenant)[:3], *(d["id"] for d in made), *(d["key"] for d in made), f"/ {user}"]
        assert "semantic" in [d["outcome"] for d in made]
    return secrets


def look_at_everything(it: Dashboard, id: str, key: str) -> str:
    seen = []
    text: Callable[[], str] = lambda: str(it.run("document.body.textContent"))  # noqa: E731
    for view in ("requests", "entries", "overview"):
        it.at(f"nav-{view}").click()
        expect(it.page.locator("h1")).to_have_text(view.capitalize())
        if view != "overview":
            it.at("request-row" if view == "requests" else "entry-row").first.wait_for()
        seen.append(text())
    for group in ("Tenant", "Model"):
        it.page.get_by_role("radio", name=group, exact=True).check()
        seen.append(text())
    for place, name in ((f"#/requests/{id}", "decision-detail"), (f"#/entries/{key}", "entry-detail")):
        it.go(place)
        it.opened(name)
        seen.append(text())
    return "\n".join(seen)


def test_a_tenant_admin_is_sent_its_own_only(browser: Browser, gw: Running, up: Upstream) -> None:
    secrets = traffic(gw, up)
    theirs, up.script = secrets["globex"], numbered
    own = [decision(gw, gw.chat("mine", headers={"x-refrain-tags": canaries("acme")[1]}))]
    with dashboard(browser, gw, key=CHIEF) as it:
        seen = look_at_everything(it, own[0]["id"], own[0]["key"])
        # While it looks, both go on.
        gw.chat("more", key=EVE, model=canaries("globex")[0])
        more = gw.chat("more")
        it.go("#/requests")
        expect(it.row(more.headers["x-request-id"])).to_be_visible()
        # What it may not see it does not get by address either.
        ids = [s for s in theirs if s.startswith("req_")]
        keys = [s for s in theirs if re.fullmatch("[0-9a-f]{64}", s)]
        for place in (f"#/requests/{ids[0]}", f"#/entries/{keys[0]}"):
            it.go(place)
            expect(it.page.locator("dialog")).to_contain_text(re.compile("no decision|no answer"))
            it.page.keyboard.press("Escape")
        it.go("#/overview?tenant=globex")
        expect(it.page.locator("h1")).to_have_text("Overview")
        asked = [f"/admin/decisions?id={ids[0]}", "/admin/decisions?tenant=globex", "/admin/entries?tenant=globex"]
        asked += [f"/admin/entries?key={keys[0]}", "/admin/overview?tenant=globex", "/admin/live?tenant=globex"]
        for path in asked:
            assert it.run("p => fetch(p).then(r => r.status)", path) in (403, 404), path
        bodies = "\n".join(body for body in it.bodies() if not any(path in body for path in asked))
        for secret in secrets["acme"][:2]:
            assert secret in seen
            assert secret in bodies
        sent = "\n".join(it.bodies())
        for secret in theirs:
            # Its own address bar may name what it looked for in vain; that is no answer.
            assert secret not in seen, secret
            assert secret not in (bodies if secret in (*ids, *keys) else sent), secret


def test_who_is_not_signed_in_is_sent_nothing(browser: Browser, gw: Running, up: Upstream) -> None:
    secrets = sum(traffic(gw, up).values(), ["acme", "globex", "test-model", 'entries": [{'])
    with dashboard(browser, gw, key=None) as it:
        for place in ("", "#/requests", "#/entries", f"#/requests/{secrets[7]}"):
            it.go(place)
            expect(it.at("signin-key")).to_be_visible()
            expect(it.at("nav-requests")).to_have_count(0)
        for path in ADMIN_PATHS:
            assert it.run("p => fetch(p).then(r => r.status)", f"/admin/{path}") == 401, path
            assert it.run("p => fetch(p, {method: 'POST'}).then(r => r.status)", f"/admin/{path}") in (401, 403, 405)
        assert it.run("fetch('/metrics').then(r => r.status)") == 401
        purge = "fetch('/admin/purge', {method: 'POST', body: '{\"tenant\": \"acme\"}'}).then(r => r.status)"
        assert it.run(purge) == 401
        it.at("signin-key").fill(ALICE)
        it.at("signin-submit").click()
        expect(it.page.get_by_role("alert")).to_contain_text("role")
        assert it.run("fetch('/admin/stats').then(r => r.status)") == 401
        sent = "\n".join(it.bodies())
        assert len(sent) > 100_000
        for secret in secrets:
            assert secret not in sent, secret


def test_a_session_that_has_ended_shows_nothing_more(browser: Browser, gw: Running) -> None:
    """By the clock, while the page is open: the stream ends, and nothing is left on the screen."""
    answer = gw.chat("a")
    with dashboard(browser, gw) as it:
        it.go(f"#/requests/{answer.headers['x-request-id']}")
        it.opened()
        gw.clock.offset = 12 * 3600 + 1
        gw.chat("b")
        expect(it.at("signin-key")).to_be_visible()
        expect(it.page.get_by_text("The session has ended")).to_be_visible()
        assert answer.headers["x-request-id"] not in it.page.content()
        it.sign_in()
        expect(it.opened().get_by_text(answer.headers["x-request-id"], exact=True)).to_be_visible()


def test_another_page_in_the_same_browser_is_no_way_in(browser: Browser, gw: Running, up: Upstream) -> None:
    """Not even one of the same host, on another port, which the browser sends the cookie along for."""
    gw.chat("a")
    with dashboard(browser, gw) as it:
        other = it.page.context.new_page()
        other.goto(f"{up.url}/models")
        for path in ("/admin/stats", "/dashboard/session", "/admin/decisions"):
            read = "p => fetch(p, {credentials: 'include'}).then(r => r.text(), () => 'refused')"
            assert other.evaluate(read, f"{gw.url}{path}") == "refused"
        way = "{method: 'POST', credentials: 'include', mode: 'no-cors', body: '{\"tenant\": \"acme\"}'}"
        with other.expect_request("**/admin/purge") as sent:
            other.evaluate(f"p => fetch(p, {way}).then(() => 0, () => 0)", f"{gw.url}/admin/purge")
        refusal = sent.value.response()
        assert refusal is not None
        assert refusal.status == 403  # without the cookie it would be 401
        assert len(gw.admin("GET", "/admin/entries").json()["entries"]) == 1
        frame = "p => { const f = document.createElement('iframe'); f.src = p; document.body.append(f); }"
        with other.expect_console_message(lambda message: "frame-ancestors" in message.text):
            other.evaluate(frame, f"{gw.url}/dashboard")


def test_nothing_comes_from_elsewhere(browser: Browser, gw: Running) -> None:
    """All that the page needs is in the package."""
    for path in PAGES.rglob("*"):
        if path.suffix in (".js", ".css", ".html", ".svg"):
            text = path.read_text(encoding="utf-8")
            found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text, re.I))
            assert {f.rpartition("/")[2] for f in found} <= {"www.w3.org", "github.com"}, path
    gw.chat("a")
    with dashboard(browser, gw) as it:
        names = it.run("performance.getEntriesByType('resource').map((e) => e.name)")
        assert {name for name in names if not name.startswith(gw.url)} == set()
        assert len(names) > 20
