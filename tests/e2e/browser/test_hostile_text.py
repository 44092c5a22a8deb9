"""Whatever people, models and backends say is shown as it was said, and never run."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.e2e.browser.conftest import WEBAPP
from tests.support.browser import Dashboard, dashboard
from tests.support.gateway import Running
from tests.support.traffic import decision, fixed
from tests.support.upstream import Reply, Upstream, chat_answer, numbered, reply_for

pytestmark = pytest.mark.slow

RUN = "window.pwned=1"
IMAGE = f"<img src=x onerror={RUN}>"
HOSTILE = {
    "image": IMAGE,
    "script": f'"><script>{RUN}</script>',
    "svg": f"<svg onload={RUN}>",
    "frame": f'<iframe srcdoc="<script>parent.{RUN}</script>">',
    "elsewhere": '<img src="http://attacker.invalid/x.png"><link rel=stylesheet href=//attacker.invalid/x.css>',
    "attribute": f"x' onmouseover='{RUN}' onfocus={RUN} autofocus tabindex=1 y=\"",
    "address": f"javascript:{RUN}",
    "style": "</style><style>*{display:none!important}</style>",
    "css": 'x"]{} body{background:url(//attacker.invalid)}',
    "template": "{{constructor.constructor('window.pwned=1')()}}${window.pwned=1}",
    "prototype": "__proto__",
    "constructor": "constructor",
    "entities": "&lt;b&gt;&amp;&#0;",
    "emoji": "👩‍👩‍👧‍👦 \u200d🏳️‍🌈 é́́́",
    "long": "W" * 3000,
    "path": "../../admin/purge?key=1#/entries",
}
TURNED = "gpt-\u202egpj.exe\u202c\u2066x"
SHOWN = "gpt-[U+202E]gpj.exe[U+202C][U+2066]x"
BARE = 'x"><img src=x onerror=window.pwned=1>'  # for places where commas, spaces or other marks have a meaning
ODD_PLACES = (
    f"#/requests?model={IMAGE}&text={IMAGE}&endpoint={IMAGE}&outcome={IMAGE}",
    f"#/entries?tag={IMAGE}&document={IMAGE}&tenant={IMAGE}",
    f"#/overview?endpoint={IMAGE}&range={IMAGE}",
    f"#/requests/{IMAGE}",
    f"#/entries/{IMAGE}",
    "#/entries/%E0%A4%A",
    "#/__proto__/constructor?__proto__=1&constructor=2",
    f"#javascript:{RUN}",
    "#/requests?range=all&range=1w&range",
)


@pytest.fixture
def it(browser: Browser, gw: Running) -> Iterator[Dashboard]:
    with dashboard(browser, gw) as page:
        yield page
        assert page.run("window.pwned") is None
        assert page.page.locator("iframe, object, embed, base, main style, main script, dialog style").count() == 0
        assert page.run("getComputedStyle(document.body).backgroundImage") == "none"
        assert page.run("Object.prototype.pwned ?? Object.keys(Object.prototype).length") == 0


def text_of_page(it: Dashboard) -> str:
    return str(it.run("document.body.textContent"))


def through_all(it: Dashboard, ids: list[str], keys: list[str]) -> str:
    """Everything there is to see, opened one after the other; gives all texts."""
    seen = []
    for place in ("#/overview", "#/requests", "#/entries"):
        it.go(place)
        expect(it.page.locator("h1")).to_have_text(place[2:].capitalize())
        rows = {"#/requests": it.at("request-row"), "#/entries": it.at("entry-row")}.get(place)
        if rows is not None:
            rows.first.wait_for()
        else:
            it.page.locator(".overview canvas").first.wait_for()
            for group in ("Tenant", "Model"):
                it.page.get_by_role("radio", name=group, exact=True).check()
                seen.append(text_of_page(it))
            for button in it.page.get_by_role("button", name=re.compile("show as a table")).all():
                button.click()
        seen.append(text_of_page(it))
        for option in it.page.locator("option").all_text_contents():
            seen.append(option)
    for place, name in [(f"#/requests/{id}", "decision-detail") for id in ids] + [
        (f"#/entries/{key}", "entry-detail") for key in keys
    ]:
        it.go(place)
        seen.append(it.opened(name).text_content() or "")
    return "\n".join(seen)


def test_names_and_answers_of_real_traffic(it: Dashboard, gw: Running, up: Upstream) -> None:
    """Models, tags, users and answers as hostile as a client or a backend can make them."""
    ids, keys = [], []
    for name, text in {**HOSTILE, "turned": TURNED}.items():
        up.script = lambda seen, number, text=text: reply_for(seen, chat_answer(text, model=text[:200], id=text[:200]))
        headers = {"x-refrain-on-behalf": f"user={BARE} {name}", "x-refrain-tags": f"{BARE} {name}"}
        answer = gw.chat(text, model=text[:200], key=WEBAPP, headers=headers)
        assert answer.status_code == 200, answer.text
        made = decision(gw, answer)
        ids.append(made["id"])
        keys += [made["key"]] * made["stored"]
    up.script = numbered
    assert len(keys) == len(ids)
    seen = through_all(it, ids, keys)
    for name, text in HOSTILE.items():
        assert text[:200] in seen, name
    assert SHOWN in seen
    assert "\u202e" not in seen
    assert f"{BARE} image" in seen
    assert f"#{BARE} image" in seen


def test_errors_of_backends_and_addresses(it: Dashboard, gw: Running, up: Upstream) -> None:
    ids = []
    for name, text in HOSTILE.items():
        error = {"error": {"message": text, "type": text, "param": text, "code": text}}
        up.script = fixed(Reply([json.dumps(error).encode()], status=400, headers={"x-request-id": "req <b>"}))
        ids.append(gw.chat(name, model=text[:200]).headers["x-request-id"])
    up.script = numbered
    for path in (f"/{IMAGE}/v1", "/__proto__/v1", f"/{HOSTILE['script'].replace('/', '')}/v1"):
        ids.append(gw.chat("x", path=path).headers["x-request-id"])
    gw.chat("so that there is an entry")
    it.go("#/requests?status=error")
    it.at("request-row").first.wait_for()
    known = [id for id in ids if gw.admin("GET", f"/admin/decisions?id={id}").status_code == 200]
    seen = through_all(it, known, [])
    assert len(known) >= len(HOSTILE)
    shown = re.sub(r"\s|_", "", seen)
    for name in ("image", "script", "svg", "style"):
        assert re.sub(r"\s|_", "", HOSTILE[name]) in shown, name


def test_what_is_typed(it: Dashboard, gw: Running) -> None:
    """Into filters and the dialog for purging; it stays text in the address too."""
    gw.chat("a")
    for view, fields in (("requests", ("model", "text")), ("entries", ("model", "tag", "document", "text"))):
        it.go(f"#/{view}")
        for name in fields:
            for text in (IMAGE, HOSTILE["script"], HOSTILE["prototype"], "%00%", "\\' OR 1=1 --", "(" * 300):
                field = it.at(f"filter-{name}")
                field.fill(text)
                expect(it.page.locator(".empty, .tally").filter(visible=True).first).not_to_have_text("Loading…")
                assert field.input_value() == text
            field.fill("")
    it.at("purge-many").click()
    dialog = it.at("purge-dialog")
    for box in dialog.locator("input:not([type=checkbox])").all():
        box.fill(IMAGE)
    it.at("purge-count").click()
    expect(dialog.get_by_role("status")).to_contain_text("older_than")
    it.page.keyboard.press("Escape")


def test_addresses_made_by_somebody_else(it: Dashboard, gw: Running) -> None:
    gw.chat("a")
    for place in ODD_PLACES:
        it.go(place)
        expect(it.page.locator("h1")).to_have_text(re.compile("Overview|Requests|Entries"))
    for place in ODD_PLACES[:3]:
        it.go(place)
        it.page.reload()
        it.is_live()
        expect(it.page.locator("h1")).to_have_text(place[2:].partition("?")[0].capitalize())


def poisoned(value: Any, text: str) -> Any:
    """The same with this text for every other, but for the words that the page reads as such."""
    if isinstance(value, dict):
        return {k: v if k in ("outcome", "result", "state") else poisoned(v, text) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v, text) for v in value]
    return text if isinstance(value, str) else value


EVERYTHING = pytest.param(" ".join(HOSTILE.values()), id="markup")
NAMES = pytest.param("__proto__", id="prototype", marks=pytest.mark.slow)


@pytest.mark.parametrize("text", [EVERYTHING, NAMES])
def test_whatever_the_gateway_says(browser: Browser, gw: Running, text: str) -> None:
    """Documents, details of backends, reasons and all other texts of the admin API, replaced on their way."""
    gw.chat("a")
    made = decision(gw, gw.chat("b", temperature=1, headers={"x-refrain-tags": "t"}))

    def answer(route: Route) -> None:
        response = route.fetch()
        out = poisoned(response.json(), text)
        for entry in out.get("entries", ()):
            entry["documents"] = [text]
        route.fulfill(response=response, body=json.dumps(out))

    def stream(route: Route) -> None:
        out = poisoned(gw.admin("GET", "/admin/overview").json(), text)
        out["semantic"] |= {"state": "degraded", "detail": text, "misses": {text: 3}}
        out["backends"] = {text: {"state": "down", "detail": text, "models": {text: {"samples": 3}}}}
        route.fulfill(body=f"event: overview\ndata: {json.dumps(out)}\n\n", content_type="text/event-stream")

    with dashboard(browser, gw) as it:
        it.page.route("**/admin/decisions*", answer)
        it.page.route("**/admin/entries*", answer)
        it.page.route("**/admin/live*", stream)
        it.page.reload()
        seen = through_all(it, [made["id"]], [made["key"]])
        assert text in seen
        assert it.run("window.pwned") is None
