"""Answers that could not be stored are remembered for a while: such requests run in parallel, and nobody waits for what
cannot be shared."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import Running
from tests.support.live import FORMS, SSE, call, first_byte_held, gate, gated, listening, settled, streaming, together
from tests.support.traffic import decision, fixed, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Script, Upstream, chat_answer, chat_chunks, reply_for, sse

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


def numbered(go: threading.Event) -> Script:
    """Every call has an answer of its own, held before its first byte."""
    return lambda seen, number: gated(reply_for(seen, chat_answer(f"one two {number}")), go)


def ending(finish: str, **message: Any) -> Json:
    answer = chat_answer("one two three")
    choice = {**answer["choices"][0], "finish_reason": finish}
    return {**answer, "choices": [{**choice, "message": {**choice["message"], **message}}]}


NO_DONE = Reply([sse(chat_chunks(chat_answer("one two"), include_usage=True), done=False)], content_type=SSE)
UNCACHEABLE: dict[str, tuple[Script, Json]] = {
    "length": (lambda seen, number: reply_for(seen, ending("length")), {}),
    "content_filter": (lambda seen, number: reply_for(seen, ending("content_filter")), {}),
    "empty": (lambda seen, number: reply_for(seen, ending("stop", content="")), {}),
    "a choice is missing": (lambda seen, number: reply_for(seen, chat_answer("a")), {"n": 2}),
    "no end marker": (fixed(NO_DONE), {}),
    "too large": (lambda seen, number: reply_for(seen, chat_answer("x" * 1_200_000)), {}),
    "length, request_response": (
        lambda seen, number: reply_for(seen, ending("length")),
        {"path": "/rr/v1", "stream": False},
    ),
}


def collapse(gw: Running, up: Upstream, prompt: str, **more: Any) -> bool:
    """Whether two requests at the same time are one call now."""
    with gate() as go:
        up.script = first_byte_held(go)
        begun, more = up.calls, {"stream": False, **more}
        callers = [call(gw, prompt, **more)]
        listening(gw, 1)
        callers.append(call(gw, prompt, **more))
        listening(gw, 2)
        go.set()
        results = [c.result() for c in callers]
    assert [r.status_code for r in results] == [200, 200]
    return up.calls - begun == 1


def forget(gw: Running) -> None:
    """What was stored goes, so that the next request is a miss."""
    gw.clock.offset += 1
    assert gw.admin("POST", "/admin/purge", json={"older_than": "0s"}).json()["purged"] > 0


@pytest.mark.parametrize("kind", UNCACHEABLE)
def test_an_uncacheable_end_is_remembered(gw: Running, up: Upstream, prompt: str, kind: str) -> None:
    """Those who were in its flight have the answer; later ones run in parallel."""
    script, more = UNCACHEABLE[kind]
    gw.clock.frozen = 1_750_000_000.0
    up.script = script
    answer = gw.chat(prompt, **more)
    assert decision(gw, answer)["not_stored"]
    gw.clock.frozen += 119.999
    assert not collapse(gw, up, prompt, **more)


@pytest.mark.parametrize("kind", UNCACHEABLE)
def test_for_120_seconds(gw: Running, up: Upstream, prompt: str, kind: str) -> None:
    script, more = UNCACHEABLE[kind]
    gw.clock.frozen = 1_750_000_000.0
    up.script = script
    gw.chat(prompt, **more)
    gw.clock.frozen += 120
    assert collapse(gw, up, prompt, **more)


def test_who_was_in_the_air_has_the_uncacheable_answer(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as go:
        up.script = fixed(streaming(ending("length"), {2: go}))
        with upstream_calls(up, 1):
            callers = together(gw, prompt, ["sse", "json", "sse"])
            go.set()
            results = [c.result() for c in callers]
    assert [outcome(r) for r in results] == ["miss", "joined", "joined"]
    assert {text_of(r) for r in results} == {"one two three"}


def test_a_stored_answer_ends_that_early(gw: Running, up: Upstream, prompt: str) -> None:
    gw.clock.frozen = 1_750_000_000.0
    up.script = lambda seen, number: reply_for(seen, ending("length"))
    gw.chat(prompt)
    up.script = lambda seen, number: reply_for(seen, chat_answer("whole"))
    assert decision(gw, gw.chat(prompt))["stored"] is True
    forget(gw)
    assert collapse(gw, up, prompt)


def test_it_is_that_of_one_key_only(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = lambda seen, number: reply_for(seen, ending("length"))
    gw.chat(prompt, max_tokens=5)
    assert collapse(gw, up, prompt, max_tokens=6)


@pytest.mark.parametrize("status", [400, 429, 500])
def test_an_error_is_no_such_end(gw: Running, up: Upstream, prompt: str, status: int) -> None:
    """An error says nothing about whether the answer could have been stored."""
    up.script = fixed(Reply([b'{"error": {"message": "no"}}'], status=status))
    assert gw.chat(prompt).status_code == status
    assert collapse(gw, up, prompt)


def test_an_answer_that_outgrows_its_bound_takes_no_one_on(gw: Running, up: Upstream, prompt: str) -> None:
    """Streamed through to its clients; whoever comes when it is too large to be kept starts anew."""
    with gate() as go:
        answer = chat_answer("x" * 1_200_000 + " end")
        base = up.calls
        up.script = lambda seen, number: (
            streaming(answer, {2: go}) if number == base + 1 else reply_for(seen, chat_answer("small"))
        )
        with upstream_calls(up, 2):
            leader = call(gw, prompt)
            until(lambda: len(leader.content) > 1_200_000)
            assert text_of(gw.chat(prompt)) == "small"
            go.set()
            assert text_of(leader.result()) == "x" * 1_200_000 + " end"


@pytest.mark.parametrize("form", FORMS)
def test_alone_after_a_bad_end_in_every_form(gw: Running, up: Upstream, prompt: str, form: str) -> None:
    up.script = lambda seen, number: reply_for(seen, ending("length"))
    gw.chat(prompt, **FORMS[form])
    assert not collapse(gw, up, prompt, **FORMS[form])
