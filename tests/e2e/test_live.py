"""`GET /admin/live`: what changes, as it changes, to those who may see it and no longer than that."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.config.keys import digest_key
from gateway.dashboard import live
from tests.support.dashboard import COOKIE, person, watching
from tests.support.gateway import ADMIN, ALICE, EVE, Running, config_text, running
from tests.support.process import serve
from tests.support.traffic import error_of, until
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow

SPARE = "rf-test-spare-key"
MORE = f"""
    - {{key: {SPARE}, tenant: ops, user: spare, role: admin}}
"""


def text(up: Upstream, **more: Any) -> str:
    return config_text(up.url, **more).replace("\nendpoints:", f"{MORE}\nendpoints:", 1)


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    with running(text(up)) as gateway:
        yield gateway


def requests(overview: dict[str, Any]) -> int:
    return sum(overview["totals"]["requests"].values())


def test_the_overview_comes_at_once_and_again_when_it_changes(gw: Running) -> None:
    gw.chat("before")
    begun = time.monotonic()
    with watching(gw) as page:
        until(lambda: page.events("overview"))
        assert time.monotonic() - begun < 0.9
        assert page.status == 200
        assert "content-type: text/event-stream" in page.head
        assert "cache-control: private, no-store" in page.head
        assert "x-accel-buffering: no" in page.head
        assert requests(page.events("overview")[0]) == 1
        assert page.events("overview")[0].keys() == gw.admin("GET", "/admin/overview").json().keys()
        gw.chat("after")
        until(lambda: requests(page.events("overview")[-1]) == 2, 3)


def test_nothing_is_sent_while_nothing_changes(gw: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a line that says nothing, so that proxies leave the connection open."""
    monkeypatch.setattr(live, "HEARTBEAT", 2.0)
    with watching(gw) as page:
        until(lambda: "\n:\n\n" in page.text)
        assert len(page.events("overview")) <= 2  # the first look may have found a backend still unknown
        before = len(page.text)
        time.sleep(1.5)
        assert len(page.text) - before <= 3


def test_new_decisions_come_once_each(gw: Running) -> None:
    gw.chat("before")
    with watching(gw) as page:
        until(lambda: page.events("overview"))
        ids = []
        for n in range(6):
            ids.append(gw.chat(f"{n % 2}").headers["x-request-id"])
            time.sleep(0.3)
        until(lambda: len(page.decisions()) >= len(ids), 4)
        assert [d["id"] for d in page.decisions()] == ids
        whole = gw.admin("GET", "/admin/decisions", params={"id": ids[-1]}).json()
        assert page.decisions()[-1] == whole


def test_who_does_not_want_decisions_gets_none(gw: Running) -> None:
    with watching(gw, query="?decisions=no") as page:
        until(lambda: page.events("overview"))
        gw.chat("one")
        until(lambda: requests(page.events("overview")[-1]) == 1, 3)
        assert page.events("decisions") == []
    assert error_of(gw.admin("GET", "/admin/live?decisions=maybe"), 400)["param"] == "decisions"


def test_of_very_many_the_latest_come(gw: Running) -> None:
    with watching(gw) as page:
        until(lambda: page.events("overview"))
        for _ in range(3):
            with ThreadPoolExecutor(8) as pool:
                last = list(pool.map(lambda _: gw.chat("same").headers["x-request-id"], range(300)))
        until(lambda: set(last) & {d["id"] for d in page.decisions()})
        assert all(len(event["decisions"]) <= live.MAX_DECISIONS for event in page.events("decisions"))
        found = [d["id"] for d in page.decisions()]
        assert len(found) == len(set(found))


def test_each_sees_what_it_has_asked_for(gw: Running) -> None:
    queries = {"": 3, "?endpoint=rr": 1, "?tenant=globex": 1, "?tenant=acme": 2, "?tenant=acme&endpoint=rr": 0}
    with ExitStack() as stack:
        pages = {query: stack.enter_context(watching(gw, query=query)) for query in queries}
        for page in pages.values():
            until(lambda page=page: page.events("overview"))
        gw.chat("a")
        gw.chat("b", key=EVE, path="/rr/v1")
        gw.chat("a")
        until(lambda: len(pages[""].decisions()) == 3)
        time.sleep(1.5)
        assert {query: len(page.decisions()) for query, page in pages.items()} == queries
        assert {query: requests(page.events("overview")[-1]) for query, page in pages.items()} == queries


def test_a_tenant_admin_sees_its_tenant(gw: Running) -> None:
    with watching(gw, key=EVE) as page, watching(gw) as whole:
        until(lambda: page.events("overview") and whole.events("overview"))
        gw.chat("For acme?", model="acmes-model")
        gw.chat("For globex?", key=EVE)
        until(lambda: page.decisions() and len(whole.decisions()) == 2)
        time.sleep(1.2)
        assert [d["tenant"] for d in page.decisions()] == ["globex"]
        assert page.events("overview")[-1]["stores"] == {}
        assert "acme" not in page.text
        assert "acmes-model" in whole.text


@pytest.mark.parametrize(("key", "query", "status"), [
    (ALICE, "", 403),
    ("rf-wrong", "", 401),
    (EVE, "?tenant=acme", 403),
    (ADMIN, "?range=1w", 400),
])  # fmt: skip
def test_who_may_not_see_it_gets_an_error_and_no_stream(gw: Running, key: str, query: str, status: int) -> None:
    gw.chat("A secret?")
    error_of(gw.admin("GET", f"/admin/live{query}", key=key), status)
    error_of(gw.client.get("/admin/live"), 401)


def test_a_head_holds_nothing_open(gw: Running) -> None:
    answer = gw.admin("HEAD", "/admin/live")
    assert (answer.status_code, answer.content) == (200, b"")


# How it ends


def ended(gw: Running, page: Any) -> None:
    """It has ended by itself, and what comes now is not shown any more."""
    assert page.ended.wait(5)
    shown = page.text
    gw.chat("not for these eyes")
    time.sleep(1.2)
    assert page.text == shown


def test_it_ends_with_the_key(gw: Running) -> None:
    with watching(gw, key=SPARE) as page, watching(gw) as other:
        until(lambda: page.events("overview") and other.events("overview"))
        gw.admin("POST", "/admin/keys/revoke", json={"id": digest_key(SPARE).hex()[:12]})
        ended(gw, page)
        until(other.decisions)


def test_it_ends_with_the_session(gw: Running) -> None:
    with person(gw) as ann, person(gw) as elsewhere:
        by_cookie = [{"cookie": f"{COOKIE}={p.cookie}", "sec-fetch-site": "same-origin"} for p in (ann, elsewhere)]
        with watching(gw, headers=by_cookie[0]) as page, watching(gw, headers=by_cookie[1]) as other:
            until(lambda: page.events("overview") and other.events("overview"))
            assert ann.ask("DELETE", "/dashboard/session").status_code == 204
            ended(gw, page)
            until(other.decisions)
            gw.clock.offset += 12 * 3600 + 1
            assert other.ended.wait(5)


def test_it_ends_with_the_role(up: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "refrain.yaml"
    with running(text(up), path=path) as gw, watching(gw, key=SPARE) as page:
        until(lambda: page.events("overview"))
        path.write_text(text(up).replace("user: spare, role: admin", "user: spare, role: tenant_admin"))
        ended(gw, page)


def test_nobody_works_for_pages_that_are_closed(gw: Running) -> None:
    """A stream gives its place back however it ends, so there is always one again."""
    for _ in range(4):
        with ExitStack() as stack:
            pages = [stack.enter_context(watching(gw)) for _ in range(live.MAX_STREAMS // 2)]
            for page in pages:
                assert page.status == 200

    def all_there() -> bool:
        with ExitStack() as stack:
            pages = [stack.enter_context(watching(gw)) for _ in range(live.MAX_STREAMS)]
            return all(page.status == 200 for page in pages)

    until(all_there)


def test_too_many_are_refused_and_no_tenant_can_take_them_all(gw: Running) -> None:
    with ExitStack() as stack:
        for _ in range(live.MAX_STREAMS - live.FOR_ADMINS):
            assert stack.enter_context(watching(gw, key=EVE)).status == 200
        refused = gw.admin("GET", "/admin/live", key=EVE)
        assert error_of(refused, 503)["code"] == "too_many_streams"
        assert refused.headers["retry-after"] == "10"
        for _ in range(live.FOR_ADMINS):
            assert stack.enter_context(watching(gw)).status == 200
        error_of(gw.admin("GET", "/admin/live"), 503)
        assert gw.admin("GET", "/admin/overview").status_code == 200


def test_a_page_that_does_not_read_is_no_burden(gw: Running) -> None:
    """The others see everything in time."""
    with watching(gw, reads=False, buffer=4096) as asleep, watching(gw) as page, ThreadPoolExecutor(4) as pool:
        until(lambda: page.events("overview"))
        for burst in range(1, 5):
            list(pool.map(lambda _: gw.chat("same", model="m" * 200), range(150)))
            until(lambda burst=burst: sum(len(event["decisions"]) for event in page.events("decisions")) == 150 * burst)
        asleep.read()
        until(lambda: requests(asleep.events("overview")[-1]) == 600 if asleep.events("overview") else False)


def test_a_gateway_that_stops_waits_for_no_dashboard(up: Upstream, tmp_path: Path) -> None:
    """Not even for one that is asleep; what is being answered still has its time."""
    quick = "endpoints: {default: {cache: {semantic: off}}}\n"
    (tmp_path / "refrain.yaml").write_text(text(up).partition("endpoints:")[0] + quick)
    with serve(tmp_path) as served, ExitStack() as stack:
        served.wait_ready()
        pages = [stack.enter_context(watching(served)) for _ in range(3)]
        stack.enter_context(watching(served, reads=False, buffer=4096))
        for page in pages:
            until(lambda page=page: page.events("overview"))
        begun = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=30) in (0, -signal.SIGTERM)
        assert time.monotonic() - begun < 4
        assert all(page.ended.wait(5) for page in pages)
        log = served.log.read_text()
        assert not [word for word in ("Traceback", "never retrieved", "was destroyed", "Exception") if word in log], log
