"""The faults, as scripts of the upstream. Each waits for its gate, so that all clients are there when it happens; only
a silence is timed by the gateway itself, from the moment it begins."""

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.faults.matrix.cases import Mode, answer_text
from tests.support.upstream import Json, Reply, Script, Seen, chat_answer, chat_chunks, reply_for, sse

Backend = Literal["patient", "hasty", "door", "shut"]
"""Whom the gateway calls. `hasty` has short timeouts, `door` resets connections, nobody listens behind `shut`."""
SSE = "text/event-stream"
ERROR: Json = {"error": {"message": "Out of memory.", "type": "server_error", "param": None, "code": "out_of_memory"}}
Bad = Callable[[Seen, int, threading.Event], Reply]


@dataclass(frozen=True)
class Fault:
    """`times`: so many calls of a case meet it, the next one is answered well. `begun`: the beginning of the answer
    arrives before it. No `bad` reply: the call does not reach the scripted upstream at all."""

    bad: Bad | None
    times: int = 1
    backend: Backend = "patient"
    begun: bool = False


def script(fault: Fault, gate: threading.Event, before: int) -> Script:
    """What the upstream answers in one case; `before` is how many calls it had had until then."""

    def reply(seen: Seen, number: int) -> Reply:
        call = number - before
        if fault.bad is not None and call <= fault.times:
            return fault.bad(seen, call, gate)
        return reply_for(seen, chat_answer(answer_text(call)))

    return reply


def refused(status: int, code: str, **headers: str) -> Bad:
    body = json.dumps({"error": {"message": "No.", "type": "some_error", "param": None, "code": code}}).encode()
    return lambda seen, call, gate: Reply([body], status=status, headers=headers, gate=gate)


def silent(seen: Seen, call: int, gate: threading.Event) -> Reply:
    return Reply([], first_pause=20)


def stream(*pieces: bytes, cut: bool = False) -> Bad:
    """A stream that does not get as far as a beginning."""
    return lambda seen, call, gate: Reply([*pieces, b""], content_type=SSE, gates={0: gate}, cut=cut)


def begun(*pieces: bytes, hang: float = 0, cut: bool = False) -> Bad:
    """A stream that begins well; then these pieces and an end."""

    def bad(seen: Seen, call: int, gate: threading.Event) -> Reply:
        good = sse(chat_chunks(chat_answer(answer_text(call)), include_usage=True)[:2], done=False)
        held = {} if hang else {1: gate}
        return Reply([good, *pieces, b""], content_type=SSE, gates=held, hang=hang, cut=cut)

    return bad


def halved(*, hang: float = 0, cut: bool = False) -> Bad:
    """A JSON answer of which the second half does not come."""

    def bad(seen: Seen, call: int, gate: threading.Event) -> Reply:
        body = json.dumps(chat_answer(answer_text(call))).encode()
        held = {} if hang else {1: gate}
        return Reply([body[: len(body) // 2], b""], gates=held, hang=hang, cut=cut)

    return bad


def instead(body: bytes) -> Bad:
    """Something else in place of a JSON answer."""
    return lambda seen, call, gate: Reply([body], gates={0: gate})


def unfinished(seen: Seen, call: int, gate: threading.Event) -> Reply:
    answer = chat_answer(answer_text(call))
    answer["choices"][0]["finish_reason"] = None
    return Reply([json.dumps(answer).encode()], gates={0: gate})


def split(seen: Seen, call: int, gate: threading.Event) -> Reply:
    """A good answer, cut inside of every character that is longer than a byte."""
    answer = chat_answer(answer_text(call))
    if seen.body.get("stream"):
        body, kind = sse(chat_chunks(answer, include_usage=True)), SSE
    else:
        body, kind = json.dumps(answer, ensure_ascii=False).encode(), "application/json"
    cuts = [0, *(i for i, byte in enumerate(body) if byte & 0xC0 == 0x80), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(cuts)]
    return Reply(pieces, content_type=kind, gates={1: gate}, pause=0.002)


def event(value: Json) -> bytes:
    return sse([value], done=False)


EARLY: dict[str, Fault] = {
    # A closed port refuses the second call like the first one, and nobody there counts them. What a call that dies
    # before its first byte does to a second one that goes well is what a reset shows.
    "connection refused, and again": Fault(None, times=2, backend="shut"),
    "connection reset": Fault(None, backend="door"),
    "connection reset, and again": Fault(None, times=2, backend="door"),
    "400": Fault(refused(400, "context_length_exceeded")),
    "429": Fault(refused(429, "rate_limit_exceeded", **{"retry-after": "7"})),
    "503": Fault(refused(503, "overloaded")),
    "503, and again": Fault(refused(503, "overloaded"), times=2),
    "silence before the first byte": Fault(silent, backend="hasty"),
    "silence before the first byte, and again": Fault(silent, times=2, backend="hasty"),
}

FAULTS: dict[Mode, dict[str, Fault]] = {
    "stream": {
        **EARLY,
        "cut after the head": Fault(stream(cut=True)),
        "an error event comes first": Fault(stream(event(ERROR))),
        "silence in mid-stream": Fault(begun(hang=20), backend="hasty", begun=True),
        "cut in mid-stream": Fault(begun(cut=True), begun=True),
        # Some servers send [DONE] after an error as well; it must not make the answer look complete.
        "an error event in mid-stream": Fault(begun(event(ERROR) + b"data: [DONE]\n\n"), begun=True),
        "`[DONE]` before the finish_reason": Fault(begun(b"data: [DONE]\n\n"), begun=True),
        "an event that is no JSON": Fault(begun(b"data: {this is no JSON\n\n"), begun=True),
        "characters split by the network": Fault(split, begun=True),
    },
    "request_response": {
        **EARLY,
        "silence in mid-answer": Fault(halved(hang=20), backend="hasty"),
        "cut in mid-answer": Fault(halved(cut=True)),
        "an error object in place of the answer": Fault(instead(json.dumps(ERROR).encode())),
        "an answer without a finish_reason": Fault(unfinished),
        "an answer that is no JSON": Fault(instead(b"{this is no JSON")),
        "characters split by the network": Fault(split),
    },
}
