"""What may happen during a flight: clients leave, a purge, another configuration."""

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import EVE, Running, config_text, running
from tests.support.live import (
    FORMS,
    TOKENS,
    answer_of,
    call,
    first_byte_held,
    gate,
    holding,
    listening,
    not_kept,
    settled,
    together,
)
from tests.support.traffic import decision, outcome, text_of, until, upstream_calls
from tests.support.upstream import Upstream

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
EXTRA = """
  going_on: {mode: stream, finish: true}
  going_on_whole: {mode: request_response, finish: true}
"""
FINISHING = pytest.mark.parametrize("path", ["/going_on/v1", "/going_on_whole/v1"], ids=["stream", "request_response"])


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _settled(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    if "gw" in request.fixturenames:
        settled(request.getfixturevalue("gw"))


# Leaving


def was_cancelled(up: Upstream, calls: int) -> bool:
    return up.cancelled == calls


@MODES
@pytest.mark.parametrize("form", FORMS)
def test_the_upstream_is_cancelled_within_100_ms(gw: Running, up: Upstream, prompt: str, path: str, form: str) -> None:
    """From the moment at which the last client closes its connection, by the upstream's own clock."""
    took = []
    with gate() as go:
        up.script = holding(go)
        for number in range(5):
            cancelled = up.cancelled
            callers = together(gw, f"{prompt} {number}", [form, "json"], path=path)
            callers[0].leave()
            listening(gw, 1)
            assert up.cancelled == cancelled
            left = callers[1].leave()
            until(partial(was_cancelled, up, cancelled + 1))
            took.append(up.left_at[-1] - left)
    assert statistics.median(took) < 0.1, took


@MODES
@pytest.mark.parametrize("who", [0, 1, 2])
def test_whoever_leaves_the_others_have_it_all(gw: Running, up: Upstream, prompt: str, path: str, who: int) -> None:
    with gate() as go:
        up.script = holding(go)
        with upstream_calls(up, 1):
            callers = together(gw, prompt, ["sse", "json", "sse"], path=path)
            callers.pop(who).leave()
            listening(gw, 2)
            go.set()
            results = [c.result() for c in callers]
    assert {answer_of(r)["choices"][0]["message"]["content"] for r in results} == {f"one two three {up.calls}"}
    assert outcome(gw.chat(prompt, path=path)) == "exact"


def test_after_the_leader_left_others_still_join(gw: Running, up: Upstream, prompt: str) -> None:
    """The flight is not its leader's: who comes later gets all from the beginning."""
    with gate() as go:
        up.script = holding(go)
        with upstream_calls(up, 1):
            leader, second = together(gw, prompt, ["sse", "sse"])
            leader.leave()
            listening(gw, 1)
            third = call(gw, prompt).hears("one two ")
            second.leave()
            listening(gw, 1)
            go.set()
            assert text_of(third.result()) == f"one two three {up.calls}"
    assert third.outcome == "joined"


def test_the_record_of_a_leader_that_left(gw: Running, up: Upstream, prompt: str) -> None:
    """Its call is its own to account for: consumed, and served to nobody; those who joined saved theirs."""
    with gate() as go:
        up.script = holding(go)
        leader, joiner = together(gw, prompt, ["sse", "sse"])
        leader.hears("one two ").leave()
        listening(gw, 1)
        go.set()
        after = decision(gw, joiner.result())
    settled(gw)
    found = gw.admin("GET", "/admin/decisions", params={"id": leader.headers["x-request-id"]}).json()
    assert (found["outcome"], found["error"]) == ("miss", "client_disconnected")
    assert found["tokens"].items() >= {"served": 0, "consumed": TOKENS, "unserved": TOKENS, "saved": 0}.items()
    assert after["tokens"].items() >= {"served": TOKENS, "consumed": 0, "unserved": 0, "saved": TOKENS}.items()


def test_whoever_comes_when_all_have_left_starts_anew(gw: Running, up: Upstream, prompt: str) -> None:
    """A call that is being cancelled is nothing to join, however quickly the next one comes."""
    for number in range(20):
        with gate() as go:
            up.script = holding(go)
            caller = call(gw, f"{prompt} {number}").hears("one two ")
            caller.leave()
            again = call(gw, f"{prompt} {number}").hears("one two ")
            go.set()
            assert text_of(again.result()).startswith("one two three ")


@FINISHING
@pytest.mark.parametrize("form", FORMS)
def test_finish_goes_on_for_nobody(gw: Running, up: Upstream, prompt: str, path: str, form: str) -> None:
    """The answer that nobody waited for is stored; who comes later has it; its tokens were served to nobody."""
    before, cancelled = settled(gw), up.cancelled
    with gate() as go:
        up.script = holding(go)
        with upstream_calls(up, 1):
            caller = call(gw, prompt, path=path, **FORMS[form])
            listening(gw, 1)
            until(lambda: up.open == 1)
            caller.leave()
            listening(gw, 0)
            go.set()
            alone = settled(gw)
            hit = gw.chat(prompt, path=path)
    assert up.cancelled == cancelled
    assert outcome(hit) == "exact"
    assert {k: alone[k] - before[k] for k in ("consumed", "unserved", "served", "saved")} == {
        "consumed": TOKENS,
        "unserved": TOKENS,
        "served": 0,
        "saved": 0,
    }


@FINISHING
def test_finish_can_be_joined_meanwhile(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    with gate() as go:
        up.script = holding(go)
        with upstream_calls(up, 1):
            caller = call(gw, prompt, path=path, stream=False)
            listening(gw, 1)
            caller.leave()
            listening(gw, 0)
            joiner = call(gw, prompt, path=path)
            listening(gw, 1)
            go.set()
            assert outcome(joiner.result()) == "joined"


# A purge


@MODES
@pytest.mark.parametrize(
    "criteria",
    [
        {"older_than": "0s"},
        {"tenant": "acme"},
        {"user": "alice"},
        {"model": "test-model"},
        {"tags": ["a"]},
        {"tenant": "acme", "tags": ["b"], "model": "test-model"},
        {"key": "its own"},
    ],
    ids=str,
)
def test_a_purge_meets_what_is_in_the_air(gw: Running, up: Upstream, prompt: str, path: str, criteria: Json) -> None:
    """Its answer goes to those who wait for it, and is not stored; whoever comes after the purge does not join it."""
    more: Json = {"path": path, "headers": {"x-refrain-tags": "a,b"}}
    if "key" in criteria:
        criteria = {"key": decision(gw, gw.chat(prompt, path=path, headers={"cache-control": "no-store"}))["key"]}
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 2):
            callers = together(gw, prompt, ["sse", "json"], **more)
            assert gw.admin("POST", "/admin/purge", json=criteria).status_code == 200
            late = call(gw, prompt, **more)
            listening(gw, 3)
            until(lambda: up.open == 2)
            go.set()
            first, second, third = (c.result() for c in (*callers, late))
    assert [outcome(r) for r in (first, second, third)] == ["miss", "joined", "miss"]
    assert text_of(first) == text_of(second) != text_of(third)
    assert decision(gw, first)["stored"] is False
    assert decision(gw, third)["stored"] is True
    assert text_of(gw.chat(prompt, **more)) == text_of(third)


@pytest.mark.parametrize(
    ("key", "criteria"),
    [
        ("admin", {"tenant": "globex"}),
        ("admin", {"tags": ["c"]}),
        ("admin", {"endpoint": "rr"}),
        ("admin", {"model": "other-model"}),
        ("admin", {"older_than": "1h"}),
        ("admin", {"key": "00" * 32}),
        ("admin", {"older_than": "0s", "dry_run": True}),
        ("eve", {"older_than": "0s"}),
    ],
    ids=str,
)
def test_a_purge_of_something_else_does_not(gw: Running, up: Upstream, prompt: str, key: str, criteria: Json) -> None:
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 1):
            callers = together(gw, prompt, ["sse", "json"], headers={"x-refrain-tags": "a,b"})
            options = {"key": EVE} if key == "eve" else {}
            assert gw.admin("POST", "/admin/purge", json=criteria, **options).status_code == 200
            callers.append(call(gw, prompt, headers={"x-refrain-tags": "a,b"}))
            listening(gw, 3)
            go.set()
            results = [c.result() for c in callers]
            assert [outcome(r) for r in results] == ["miss", "joined", "joined"]
            assert outcome(gw.chat(prompt)) == "exact"


def test_a_purge_after_everybody_left_meets_a_flight_that_finishes(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as go:
        up.script = holding(go)
        call(gw, prompt, path="/going_on/v1").hears("one two ").leave()
        listening(gw, 0)
        assert gw.admin("POST", "/admin/purge", json={"endpoint": "going_on"}).status_code == 200
        go.set()
        settled(gw)
    not_kept(gw, up, prompt, path="/going_on/v1")


# Another configuration


def test_a_reload_during_a_flight(up: Upstream, tmp_path: Path, prompt: str) -> None:
    """Its clients have their answer by the old configuration; it is not stored, and later arrivals do not join it."""
    path = tmp_path / "refrain.yaml"
    text = config_text(up.url)
    with running(text, path=path) as gw, gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 2):
            callers = together(gw, prompt, ["sse", "json"])
            path.write_text(config_text(up.url, extra="  brand_new: {mode: stream}\n"))
            until(lambda: gw.admin("GET", "/brand_new/v1/models").status_code == 200)
            callers.append(call(gw, prompt))
            listening(gw, 3)
            callers.append(call(gw, prompt, stream=False))
            listening(gw, 4)
            assert up.open == 2
            go.set()
            results = [c.result() for c in callers]
        assert [outcome(r) for r in results] == ["miss", "joined", "miss", "joined"]
        texts = [text_of(r) for r in results]
        assert texts[0] == texts[1] != texts[2] == texts[3]
        assert [decision(gw, r)["stored"] for r in (results[0], results[2])] == [False, True]
        assert text_of(gw.chat(prompt)) == texts[2]
        settled(gw)


def test_a_reload_that_takes_the_endpoint_away(up: Upstream, tmp_path: Path, prompt: str) -> None:
    """One request, one configuration: who is in the air lands."""
    path = tmp_path / "refrain.yaml"
    with running(config_text(up.url, extra="  passing: {mode: stream}\n"), path=path) as gw, gate() as go:
        up.script = holding(go)
        callers = together(gw, prompt, ["sse", "json"], path="/passing/v1")
        path.write_text(config_text(up.url))
        until(lambda: gw.admin("GET", "/passing/v1/models").status_code == 404)
        go.set()
        assert {text_of(c.result()) for c in callers} == {f"one two three {up.calls}"}
        settled(gw)
