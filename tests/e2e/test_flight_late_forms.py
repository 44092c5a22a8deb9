"""Joining late in another form than the one that a flight keeps: what had come is translated, and nothing of it is
lost or doubled, above all the usage."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Running
from tests.support.live import FORMS, SSE, Caller, answer_of, call, gate, listening, settled
from tests.support.traffic import chunks, essence, events, fixed, outcome, until, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, chat_chunks, sse

pytestmark = pytest.mark.slow

Json = dict[str, Any]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
MANY = 1500  # words, of which each is a chunk of some 200 bytes: several pieces of 64 KiB


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


def held(answer: Json, after: int, go: threading.Event) -> Reply:
    """A stream of the answer that stops after so many of its events, which come all at once."""
    parts = [sse([c], done=False) for c in chat_chunks(answer, include_usage=True)] + [b"data: [DONE]\n\n"]
    return Reply([b"".join(parts[:after]), b"".join(parts[after:])], content_type=SSE, gates={1: go})


def well_formed(response: httpx.Response, form: str, answer: Json) -> None:
    """The whole answer, with usage once and last, or nowhere."""
    got = answer_of(response)
    assert essence(got) == essence(answer)
    if form == "json":
        assert got["usage"] == USAGE
    elif form == "sse":
        assert "usage" not in "".join(events(response.text))
    else:
        *before, last = chunks(response.text)
        assert (last["choices"], last["usage"]) == ([], USAGE)
        assert [c["usage"] for c in before] == [None] * len(before)


def came(caller: Caller, events: int) -> None:
    """Wait until so many events have come, and no more."""
    until(lambda: caller.content.count(b"\n\n") >= events or caller.ended)
    assert caller.content.count(b"\n\n") == events


LATE: dict[str, tuple[int, int]] = {  # the number of words, and of the events that have come of role, words and end
    "only the role": (3, 1),
    "in the middle": (3, 3),
    "usage has come": (3, 3 + 3),
    "a long history": (MANY, MANY // 2),
    "a long history, usage has come": (MANY, MANY + 3),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize(
    ("leader", "joiner"),
    [("sse", "sse+usage"), ("sse+usage", "sse"), ("json", "sse"), ("json", "sse+usage"), ("sse", "json")],
    ids=lambda form: form,
)
def test_a_late_joiner_of_another_form(
    gw: Running, up: Upstream, prompt: str, leader: str, joiner: str, late: str
) -> None:
    """Two of them come, one after the other; both have at once what has come, and the same in the end."""
    words, after = LATE[late]
    answer = chat_answer(" ".join(f"w{number}" for number in range(words)))
    shown = after - 1 if joiner == "sse" and after == words + 3 else after  # the usage is an event of its own
    with gate() as go:
        up.script = fixed(held(answer, after, go))
        with upstream_calls(up, 1):
            callers = [call(gw, prompt, **FORMS[leader])]
            listening(gw, 1)
            if leader == "json":  # a stream of its form shows how far it is
                callers.append(call(gw, prompt, **FORMS["sse+usage"]))
                came(callers[1], after)
            else:
                came(callers[0], after - 1 if leader == "sse" and after == words + 3 else after)
            begun = len(callers)
            for number in (1, 2):
                callers.append(call(gw, prompt, **FORMS[joiner]))
                listening(gw, begun + number)
                if joiner != "json":
                    came(callers[-1], shown)
            go.set()
            results = [c.result() for c in callers]
    assert [outcome(r) for r in results] == ["miss"] + ["joined"] * (len(results) - 1)
    well_formed(results[0], leader, answer)
    for result in results[-2:]:
        well_formed(result, joiner, answer)
    assert results[-1].content == results[-2].content


@pytest.mark.parametrize("form", ["sse", "sse+usage"])
def test_usage_before_any_word(gw: Running, up: Upstream, prompt: str, form: str) -> None:
    """An upstream may send its usage first. A plain client is not shown it; who joins and wants it is."""
    *words, usage = chat_chunks(chat_answer("one two"), include_usage=True)
    parts = [sse([c], done=False) for c in (words[0], usage, *words[1:])]
    for first in (2, 1):  # the usage, after the role or as the very first event
        parts = parts if first == 2 else [parts[1], parts[0], *parts[2:]]
        with gate() as go, gate() as end:
            pieces = [b"".join(parts[:first]), *parts[first:], b"data: [DONE]\n\n"]
            up.script = fixed(Reply(pieces, content_type=SSE, gates={1: go, len(pieces) - 1: end}))
            asked = f"{prompt} {first}"
            leader = call(gw, asked)
            until(lambda: up.open == 1)
            if first == 2:
                came(leader, 1)
            joiner = call(gw, asked, **FORMS[form])
            listening(gw, 2)
            go.set()
            end.set()
            results = [leader.result(), joiner.result()]
        found = [c["usage"] for c in chunks(results[1].text) if c.get("usage")]
        assert found == ([USAGE] if form == "sse+usage" else [])
        assert "usage" not in "".join(events(results[0].text))
