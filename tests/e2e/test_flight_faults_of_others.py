"""Errors that are final: asking again would be in vain, so nobody takes over. But a fault that may lie in what one
client sent beside the key is not the fault of those who sent something else."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import Running
from tests.support.live import FORMS, Caller, call, gate, gated, listening, settled, together
from tests.support.traffic import error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Script, Seen, Upstream, chat_answer, reply_for

pytestmark = pytest.mark.slow

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
ASIDE: dict[str, tuple[Any, Any]] = {
    "service_tier": ("flex", "priority"),
    "metadata": ({"a": "1"}, {"a": "2"}),
    "user": ("one", "two"),
    "safety_identifier": ("one", "two"),
    "prompt_cache_key": ("one", "two"),
}


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


@MODES
@pytest.mark.parametrize("status", [301, 302, 307, 308, 401, 402, 403, 405, 408, 451])
def test_what_no_second_call_would_mend_goes_to_all_at_once(
    gw: Running, up: Upstream, prompt: str, path: str, status: int
) -> None:
    """These become a 502 of ours, since they are not the client's to mend; still one call is enough to know."""
    with gate() as go:
        refusal = Reply([b'{"error": {"message": "no"}}'], status=status, headers={"location": f"{up.url}/elsewhere"})
        up.script = lambda seen, number: gated(refusal, go)
        with upstream_calls(up, 1):
            callers = together(gw, prompt, ["sse", "json", "sse+usage", "json"], path=path)
            go.set()
            errors = [error_of(c.result(), 502) for c in callers]
    assert {e["code"] for e in errors} == {"backend_auth_failed" if status in (401, 403) else "backend_error"}
    assert [c.headers["x-refrain-cache"] for c in callers] == ["miss", "joined", "joined", "joined"]


def picky(field: str, refused: Any, first: threading.Event, second: threading.Event, status: int) -> Script:
    """Refuses this value of the field, once `first` is set; all else it answers, once `second` is."""

    def script(seen: Seen, number: int) -> Reply:
        if seen.body.get(field) == refused:
            return gated(Reply([b'{"error": {"message": "not for you", "code": "theirs"}}'], status=status), first)
        return gated(reply_for(seen, chat_answer(f"answer {number}")), second)

    return script


@MODES
@pytest.mark.parametrize("status", [400, 429])
@pytest.mark.parametrize("field", ASIDE)
def test_who_sent_something_else_beside_the_key_is_not_refused(
    gw: Running, up: Upstream, prompt: str, path: str, field: str, status: int
) -> None:
    """One of them leads one more call; the first one's error is for those who sent the same, and at once."""
    bad, other = ASIDE[field]
    sent: list[Json] = [{field: bad}, {}, {field: bad}, {field: other}, {}]
    with gate() as first, gate() as second:
        up.script = picky(field, bad, first, second, status)
        with upstream_calls(up, 2):
            callers = crowd(gw, prompt, sent, path=path)
            first.set()
            for refused in (callers[0], callers[2]):  # while the second call is still held
                assert error_of(refused.result(), status)["code"] == "theirs"
            until(lambda: field not in up.seen[-1].body)
            assert not any(callers[number].ended for number in (1, 3, 4))
            second.set()
            results = [callers[number].result() for number in (1, 3, 4)]
    assert [outcome(r) for r in results] == ["miss", "joined", "joined"]
    assert {text_of(r) for r in results} == {f"answer {up.calls}"}
    assert outcome(gw.chat(prompt, path=path)) == "exact"


@MODES
def test_the_form_is_nobodys_fault(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Whether and how it is streamed, and what steers our cache, the upstream is not told: that makes no difference."""
    with gate() as go:
        up.script = lambda seen, number: gated(Reply([b'{"error": {"message": "no"}}'], status=400), go)
        with upstream_calls(up, 1):
            sent = [*FORMS.values(), {**FORMS["json"], "cache": {}}]
            callers = crowd(gw, prompt, [{**more, "user": "u"} for more in sent], path=path)
            go.set()
            for caller in callers:
                error_of(caller.result(), 400)


def test_the_second_refusal_goes_to_all(gw: Running, up: Upstream, prompt: str) -> None:
    """However many kinds of clients wait: two calls are the most that one flight makes."""
    with gate() as go:
        up.script = lambda seen, number: gated(Reply([b'{"error": {"message": "no"}}'], status=400), go)
        with upstream_calls(up, 2):
            callers = crowd(gw, prompt, [{"user": name} for name in "abcd"])
            go.set()
            for caller in callers:
                error_of(caller.result(), 400)


@MODES
def test_a_fault_of_the_backend_is_still_the_leaders_alone(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """A 5xx may pass: whoever waits, also with the leader's own fields, gets another try."""
    with gate() as go:
        base = up.calls
        bad = Reply([b"{}"], status=503)
        up.script = lambda seen, number: (
            gated(bad, go) if number == base + 1 else reply_for(seen, chat_answer(f"answer {number}"))
        )
        with upstream_calls(up, 2):
            callers = crowd(gw, prompt, [{"user": "u"}] * 3, path=path)
            go.set()
            error_of(callers[0].result(), 503)
            assert [outcome(c.result()) for c in callers[1:]] == ["miss", "joined"]


def crowd(gw: Running, prompt: str, sent: list[Json], **more: Any) -> list[Caller]:
    """A flight of clients that sent these fields, the leader first."""
    callers = []
    for number, fields in enumerate(sent, 1):
        callers.append(call(gw, prompt, **more, **{"stream": bool(number % 2), **fields}))
        listening(gw, number)
    return callers
