"""Stale answers have bounds: a purge ends them at once, and refreshes are few at a time."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.flights import MAX_REFRESHES
from tests.support.gateway import Running, config_text, running
from tests.support.live import FORMS, call, first_byte_held, gate, gated, listening, settled, together
from tests.support.traffic import decision, error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Upstream

Json = dict[str, Any]
NOON = 1_750_000_000.0
EXTRA = """
  soft: {mode: stream, cache: {exact: {ttl: 100s, stale_while_revalidate: 50s}}}
  patient: {mode: stream, cache: {exact: {ttl: 100s, stale_if_error: 1h}}}
  patient_whole: {mode: request_response, cache: {exact: {ttl: 100s, stale_if_error: 1h}}}
"""
PATIENT = pytest.mark.parametrize("path", ["/patient/v1", "/patient_whole/v1"], ids=["stream", "request_response"])
BROKEN = Reply([b'{"error": {"message": "no"}}'], status=500)


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """Each test begins at noon; after it no flight is left, and the sums are in balance."""
    gw.clock.frozen = NOON
    yield
    settled(gw)


# A purge while the backend hangs


@PATIENT
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "criteria", [{"older_than": "0s"}, {"tags": ["a"]}, {"tenant": "acme", "model": "test-model"}, "key"], ids=str
)
def test_what_was_purged_meanwhile_covers_nobody(
    gw: Running, up: Upstream, prompt: str, path: str, form: str, criteria: Any
) -> None:
    """The old answer was found before the purge, and would be needed after it."""
    old = gw.chat(prompt, path=path, headers={"x-refrain-tags": "a"})
    if criteria == "key":
        criteria = {"key": decision(gw, old)["key"]}
    gw.clock.frozen = NOON + 101
    with gate() as go:
        up.script = lambda seen, number: gated(BROKEN, go)
        with upstream_calls(up, 1):
            caller = call(gw, prompt, path=path, **FORMS[form])
            until(lambda: up.open == 1)
            assert gw.admin("POST", "/admin/purge", json=criteria).json()["purged"] >= 1
            go.set()
            error_of(caller.result(), 500)


@PATIENT
def test_nor_those_who_joined(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    gw.chat(prompt, path=path)
    gw.clock.frozen = NOON + 101
    with gate() as go:
        up.script = lambda seen, number: gated(BROKEN, go)
        callers = together(gw, prompt, ["sse", "json", "json"], path=path)
        assert gw.admin("POST", "/admin/purge", json={"older_than": "0s"}).json()["purged"] >= 1
        go.set()
        for caller in callers:
            error_of(caller.result(), 500)


@PATIENT
@pytest.mark.parametrize("criteria", [{"tags": ["b"]}, {"endpoint": "soft"}, {"older_than": "2m"}], ids=str)
def test_a_purge_of_something_else_takes_no_cover_away(
    gw: Running, up: Upstream, prompt: str, path: str, criteria: Json
) -> None:
    old = text_of(gw.chat(prompt, path=path))
    gw.clock.frozen = NOON + 101
    with gate() as go:
        up.script = lambda seen, number: gated(BROKEN, go)
        caller = call(gw, prompt, path=path)
        until(lambda: up.open == 1)
        assert gw.admin("POST", "/admin/purge", json=criteria).status_code == 200
        go.set()
        answer = caller.result()
    assert (outcome(answer), text_of(answer)) == ("stale", old)


# Refreshes


def test_only_so_many_refreshes_at_one_time(gw: Running, up: Upstream, prompt: str) -> None:
    """A whole batch of entries passes its life at once: all are served, and some are fetched anew; the others when
    they are asked for again."""
    prompts = [f"{prompt} {number}" for number in range(MAX_REFRESHES + 8)]
    old = [text_of(gw.chat(p, path="/soft/v1")) for p in prompts]
    gw.clock.frozen = NOON + 120
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, MAX_REFRESHES):
            for _ in range(2):
                answers = [gw.chat(p, path="/soft/v1") for p in prompts]
                assert [outcome(a) for a in answers] == ["stale"] * len(prompts)
                assert [text_of(a) for a in answers] == old
            until(lambda: up.open == MAX_REFRESHES)
            go.set()
            settled(gw)
    with upstream_calls(up, 8):
        found = [outcome(gw.chat(p, path="/soft/v1")) for p in prompts]
        settled(gw)
    assert found == ["exact"] * MAX_REFRESHES + ["stale"] * 8
    with upstream_calls(up, 0):
        assert {outcome(gw.chat(p, path="/soft/v1")) for p in prompts} == {"exact"}


def test_misses_are_not_counted_among_them(gw: Running, up: Upstream, prompt: str) -> None:
    """Somebody waits for those: they are made however many refreshes there are."""
    prompts = [f"{prompt} {number}" for number in range(MAX_REFRESHES)]
    for p in prompts:
        gw.chat(p, path="/soft/v1")
    gw.clock.frozen = NOON + 120
    with gate() as go:
        up.script = first_byte_held(go)
        for p in prompts:
            assert outcome(gw.chat(p, path="/soft/v1")) == "stale"
        until(lambda: up.open == MAX_REFRESHES)
        caller = call(gw, f"{prompt} A new one.", path="/soft/v1")
        listening(gw, 1)
        until(lambda: up.open == MAX_REFRESHES + 1)
        go.set()
        assert outcome(caller.result()) == "miss"
