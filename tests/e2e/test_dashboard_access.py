"""The dashboard's door, tried as a stranger would: every path, every file, and pages of other origins in a browser."""

import gzip
import http.client
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, Page

from gateway.api.routes import install
from gateway.app import Gateway
from gateway.config.load import parse_config
from gateway.dashboard.assets import TYPES
from tests.support.browser import chromium
from tests.support.dashboard import person
from tests.support.gateway import ADMIN, ALICE, Running
from tests.support.traffic import error_of, outcome
from tests.support.upstream import Upstream, serve

pytestmark = pytest.mark.slow

STATIC = Path(str(files("gateway.dashboard") / "static"))
FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.suffix in TYPES)
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def raw(gw: Running, target: str, method: str = "GET", **headers: str) -> Answer:
    """A request whose target is sent as it is, `..` and all, with just these headers."""
    with closing(http.client.HTTPConnection(gw.url.removeprefix("http://"), timeout=10)) as connection:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


# Every route there is


ONLY_POST = ("completions", "embeddings", "/search")


def routes() -> list[tuple[str, str]]:
    """(method, path) of all that the gateway answers, with something in the place of parameters."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    install(app, Gateway(parse_config("models: {'*': local}", {})))
    found = set()
    for route in app.router.routes:
        path = re.sub(r"\{endpoint\}", "rr", re.sub(r"\{(path|model):path\}", "x", getattr(route, "path", "")))
        methods = {"POST"} if path.endswith(ONLY_POST) else getattr(route, "methods", None) or set()
        found |= {(method, path) for method in methods - {"HEAD"}}
    return sorted(found)


OPEN = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/dashboard"),
    ("GET", "/dashboard/x"),
    ("GET", "/dashboard/session"),
    ("POST", "/dashboard/session"),
    ("DELETE", "/dashboard/session"),
    ("POST", "/webhooks/{retriever}"),  # by its signature: tests/e2e/test_webhooks.py
}
CLOSED = [route for route in routes() if route not in OPEN]


def test_the_list_of_routes_is_one() -> None:
    assert set(routes()) >= OPEN
    assert {("GET", "/admin/live"), ("POST", "/admin/purge"), ("GET", "/metrics"), ("GET", "/v1/models")} <= set(CLOSED)


@pytest.mark.parametrize(("method", "path"), CLOSED, ids=[f"{method} {path}" for method, path in CLOSED])
def test_without_a_key_or_a_session_every_route_is_closed(gw: Running, method: str, path: str) -> None:
    own = {"sec-fetch-site": "same-origin", "origin": gw.url}
    body: Any = {"json": {}} if method == "POST" else {}
    for headers in ({}, own, {**own, "cookie": "refrain_session=guess"}, {**own, "cookie": f"refrain_session={ADMIN}"}):
        error_of(gw.client.request(method, path, headers=headers, **body), 401)
    if not path.startswith(("/v1", "/rr/v1")):
        answer = gw.admin(method, path, key=ALICE, **body)
        assert error_of(answer, 403)["code"] == "forbidden"


@pytest.mark.parametrize(
    "target",
    [
        "/admin/stats/",
        "//admin/stats",
        "/admin//stats",
        "/ADMIN/stats",
        "/admin/stats%00",
        "/admin%2Fstats",
        "/dashboard/../admin/stats",
        "/dashboard/..%2fadmin/stats",
        "/dashboard/%2e%2e/admin/stats",
        "/dashboard//admin/stats",
        "/dashboard/admin/stats",
        "/x/../admin/stats",
        "/;/admin/stats",
    ],
)
def test_no_spelling_of_a_path_leads_round_the_door(gw: Running, target: str) -> None:
    gw.chat("A secret?", model="secret-model")
    answer = raw(gw, target)
    assert answer.status in (401, 404)
    assert b"secret-model" not in answer.body


# The files


def test_the_page_is_open_and_there_are_no_data_in_it(gw: Running) -> None:
    gw.chat("A secret?", model="secret-model")
    with person(gw) as ann:
        pages = [gw.client.get(path) for path in ("/dashboard", "/dashboard/", "/dashboard/index.html")]
        pages += [ann.ask("GET", "/dashboard"), gw.admin("GET", "/dashboard"), gw.admin("GET", "/dashboard", key=ALICE)]
    assert {page.status_code for page in pages} == {200}
    assert len({page.content for page in pages}) == 1
    assert not any("set-cookie" in page.headers for page in pages)
    assert pages[0].headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("name", FILES)
def test_every_file_comes_as_what_it_is(gw: Running, name: str) -> None:
    answer = gw.client.get(f"/dashboard/{name}")
    assert answer.status_code == 200
    assert answer.content == (STATIC / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[Path(name).suffix]
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-cache"
    assert "set-cookie" not in answer.headers
    assert not [header for header in answer.headers if header.startswith("access-control-")]
    head = gw.client.head(f"/dashboard/{name}")
    volatile = ("date", "x-request-id")
    assert (head.status_code, head.content) == (200, b"")
    assert {k: v for k, v in head.headers.items() if k not in volatile} == {
        k: v for k, v in answer.headers.items() if k not in volatile
    }


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("style", "base", "iframe", "object", "embed") or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href") and not (value or "").startswith("#")
        ]


def test_the_page_needs_nothing_but_its_own_files(gw: Running) -> None:
    """No inline script or style, which the policy would refuse, and nothing from anywhere else."""
    seen = _Seen()
    seen.feed(gw.client.get("/dashboard").text)
    assert seen.inline == []
    assert seen.links
    for link in seen.links:
        assert re.fullmatch(r"/dashboard/[\w./-]+", link), link
        assert gw.client.get(link).status_code == 200, link


@pytest.mark.parametrize(
    "target",
    [
        "/dashboard/nothing.js",
        "/dashboard/index.html/",
        "/dashboard/INDEX.HTML",
        "/dashboard/__init__.py",
        "/dashboard/static/index.html",
        "/dashboard/../dashboard/page.py",
        "/dashboard/../page.py",
        "/dashboard/..%2fpage.py",
        "/dashboard/%2e%2e/page.py",
        "/dashboard/%2e%2e%2fpage.py",
        "/dashboard/..%5cpage.py",
        "/dashboard/....//page.py",
        "/dashboard/../../../../../../etc/passwd",
        "/dashboard//etc/passwd",
        "/dashboard/%2fetc/passwd",
        "/dashboard/index.html%00",
        "/dashboard/index.html%00.js",
        "/dashboard/.",
        "/dashboard/..",
        "/dashboard/%ff",
        "/dashboard/vendor",
        "/dashboard/vendor/",
        "/dashboards",
        "/dashboard" + "/a" * 2000,
    ],
    ids=lambda target: target[:40],
)
def test_there_is_nothing_but_the_pages_files(gw: Running, target: str) -> None:
    answer = raw(gw, target)
    assert answer.status == 404
    assert b'"code":"unknown_url"' in answer.body
    assert b"import" not in answer.body
    assert b"root:" not in answer.body


def test_only_reading_is_possible(gw: Running) -> None:
    for method in ("PUT", "PATCH", "OPTIONS", "TRACE"):
        for path in ("/dashboard", "/dashboard/index.html", "/dashboard/session"):
            assert raw(gw, path, method).status in (400, 405)
    for path in ("/dashboard", "/dashboard/index.html"):
        assert gw.admin("POST", path, json={}).status_code == 405
        assert gw.admin("DELETE", path).status_code == 405


def test_what_is_known_is_not_sent_again(gw: Running) -> None:
    answer = raw(gw, "/dashboard")
    body, etag = answer.body, answer.headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = raw(gw, "/dashboard", If_None_Match=known)
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == etag
        assert again.headers["content-security-policy"] == CSP
    for other in ('"other"', etag.strip('"'), ""):
        assert raw(gw, "/dashboard", If_None_Match=other).body == body


def test_packed_for_those_who_take_it(gw: Running) -> None:
    plain = raw(gw, "/dashboard")
    body = plain.body
    for accepted in ("gzip", "br, GZIP;q=0.5", "gzip;q=1"):
        packed = raw(gw, "/dashboard", Accept_Encoding=accepted)
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
        assert packed.headers["etag"] != plain.headers["etag"]
        assert len(packed.body) < len(body)
        assert gzip.decompress(packed.body) == body
        assert raw(gw, "/dashboard", Accept_Encoding=accepted, If_None_Match=packed.headers["etag"]).status == 304
    for accepted in ("", "br", "identity", "gzip;q=0", "gzip;q=0.0", "xgzip"):
        unpacked = raw(gw, "/dashboard", Accept_Encoding=accepted)
        assert "content-encoding" not in unpacked.headers
        assert unpacked.body == body


# In a real browser

HELD_UP = """
async (gateway) => {
  const out = {};
  const ask = async (name, path, how) => {
    try {
      const answer = await fetch(gateway + path, {credentials: "include", ...how});
      out[name] = [answer.type, answer.status, await answer.text()];
    } catch (error) { out[name] = error.name; }
  };
  await ask("read", "/admin/stats", {});
  await ask("read without cors", "/admin/stats", {mode: "no-cors"});
  await ask("purge", "/admin/purge", {method: "POST", body: '{"older_than": "0s"}'});
  await ask("purge as a form does", "/admin/purge", {method: "POST", mode: "no-cors", body: '{"older_than": "0s"}'});
  await ask("sign out", "/dashboard/session", {method: "DELETE"});
  await ask("sign in", "/dashboard/session", {method: "POST", mode: "no-cors", body: '{"key": "KEY"}'});
  out.watch = await new Promise((done) => {
    const stream = new EventSource(gateway + "/admin/live", {withCredentials: true});
    stream.addEventListener("overview", () => done("overview"));
    stream.onerror = () => { stream.close(); done("error"); };
  });
  out.script = await new Promise((done) => {
    const script = document.createElement("script");
    script.src = gateway + "/admin/decisions";
    script.onload = () => done("loaded"); script.onerror = () => done("error");
    document.head.append(script);
  });
  return out;
}
"""


# What it sends is JSON: {"tags": ["keep", "="]}
FORM = """
<form method=post enctype=text/plain action="{}/admin/purge"><input name='{{"tags": ["keep", "' value='"]}}'></form>
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


async def _stranger(scope: Any, receive: Any, send: Any) -> None:
    """Another server on this machine: its pages are another origin's, but the same site's."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
    await send({"type": "http.response.body", "body": b"<!doctype html><title>Nice page</title>"})


def _sign_in(page: Page, gw: Running) -> None:
    page.goto(f"{gw.url}/dashboard")
    status = page.evaluate(
        "async (key) => (await fetch('/dashboard/session', {method: 'POST', body: JSON.stringify({key})})).status",
        ADMIN,
    )
    assert status == 204


def _status(page: Page, path: str) -> int:
    return int(page.evaluate("async (path) => (await fetch(path)).status", path))


def test_a_browser_keeps_the_cookie_from_scripts(page: Page, gw: Running) -> None:
    _sign_in(page, gw)
    assert _status(page, "/admin/stats") == 200
    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("refrain_session", True, "Strict")
    assert _status(page, "/v1/models") == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_another_page_in_the_same_browser_gets_nothing(page: Page, gw: Running, up: Upstream, host: str) -> None:
    """From another port (the same site, so the cookie comes along) and from another name of this machine."""
    gw.chat("Kept?", path="/rr/v1", headers={"x-refrain-tags": "keep"})
    _sign_in(page, gw)
    lines = gw.admin("GET", "/admin/audit").json()["lines"]
    with serve(_stranger) as port:
        page.goto(f"http://{host}:{port}/")
        out = page.evaluate(HELD_UP.replace("KEY", ADMIN), gw.url)
        assert out["read"] == out["purge"] == out["sign out"] == "TypeError"
        for opaque in ("read without cors", "purge as a form does", "sign in"):
            assert out[opaque] in (["opaque", 0, ""], "TypeError"), opaque
        assert (out["watch"], out["script"]) == ("error", "error")
        page.set_content(FORM.format(gw.url))
        page.evaluate("document.forms[0].submit()")
        page.wait_for_url(f"{gw.url}/admin/purge")
        assert "cross_origin" in page.content() or "missing_api_key" in page.content()
    assert outcome(gw.chat("Kept?", path="/rr/v1")) == "exact"
    assert gw.admin("GET", "/admin/audit").json()["lines"] == lines
    page.goto(f"{gw.url}/dashboard")
    assert _status(page, "/admin/stats") == 200  # and nobody was signed out


def test_another_page_cannot_show_it_in_a_frame(page: Page, gw: Running) -> None:
    _sign_in(page, gw)
    with serve(_stranger) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.set_content(f'<iframe src="{gw.url}/dashboard"></iframe>')
        page.wait_for_timeout(500)
        assert [frame.url for frame in page.frames[1:]] == ["chrome-error://chromewebdata/"]


def test_markup_that_gets_in_does_nothing(page: Page, gw: Running) -> None:
    """Should a text ever become markup, the page's policy is there."""
    _sign_in(page, gw)
    done = page.evaluate(
        """async () => {
          const add = (markup) => document.body.insertAdjacentHTML("beforeend", markup);
          add("<img src=x onerror='window.hacked = 1'>");
          add("<a id=link href='javascript:window.hacked = 2'>x</a>");
          const script = document.createElement("script");
          script.textContent = "window.hacked = 3";
          document.body.append(script);
          document.getElementById("link").click();
          try { await fetch("http://127.0.0.1:9/"); } catch (error) { window.sent = error.name; }
          await new Promise((later) => setTimeout(later, 300));
          return [window.hacked ?? null, window.sent];
        }"""
    )
    assert done == [None, "TypeError"]
