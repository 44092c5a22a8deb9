"""Requests under way: started one by one, watched while they are answered, left at will. What they wait for is a
scripted upstream whose streams stop where a test says."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.support.gateway import ALICE, Running
from tests.support.traffic import accumulated, error_of, events, until, upstream_calls
from tests.support.upstream import Reply, Script, Seen, Upstream, chat_answer, chat_chunks, reply_for, sse

Json = dict[str, Any]
SSE = "text/event-stream"
TOKENS = 18  # of every scripted answer: 11 in, 7 out
FORMS: dict[str, Json] = {
    "json": {"stream": False},
    "sse": {"stream": True},
    "sse+usage": {"stream": True, "stream_options": {"include_usage": True}},
}


def spoken(content: bytes) -> str:
    """The text of a stream, however it goes on or ends, all choices together."""
    whole = content.decode(errors="replace").rpartition("\n\n")[0] + "\n\n"
    found = [json.loads(e) for e in events(whole) if e != "[DONE]"]
    return "".join(c["delta"].get("content") or "" for e in found for c in e.get("choices", ()))


class Caller:
    """One request on a connection of its own, read in a thread. With `waits` nothing of the body is read before it is
    set; `buffer` is the size of the socket's receive buffer."""

    def __init__(
        self,
        url: str,
        path: str,
        body: Json,
        headers: Mapping[str, str],
        *,
        waits: threading.Event | None = None,
        buffer: int | None = None,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[tuple[float, bytes]] = []
        self.broken: Exception | None = None
        self._request = (path, json.dumps(body), {"content-type": "application/json", **headers})
        self._waits = waits
        self._ended = threading.Event()
        self._left = False
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
        self._socket = socket.socket()
        if buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.settimeout(30)
        self._socket.connect((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.sock = self._socket
        self.begun = time.monotonic()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        response = None
        try:
            path, body, headers = self._request
            self._connection.request("POST", path, body, headers)
            response = self._connection.getresponse()
            self.headers = {name.lower(): value for name, value in response.getheaders()}
            self.status = response.status
            while self._waits is not None and not self._waits.is_set():
                if self._left:
                    return
                time.sleep(0.005)
            while piece := response.read1(65536):
                self.pieces.append((time.monotonic(), piece))
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.broken = error
        finally:
            if response is not None:
                response.close()  # it holds the socket
            self._connection.close()
            self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def outcome(self) -> str:
        """The one-word outcome, once the head is here."""
        until(lambda: self.status or self.ended)
        return self.headers.get("x-refrain-cache", "")

    @property
    def content(self) -> bytes:
        """What has come of the body."""
        return b"".join(piece for _, piece in list(self.pieces))

    @property
    def words(self) -> str:
        """The text of a stream as far as it has come."""
        return spoken(self.content)

    def hears(self, text: str) -> "Caller":
        """Wait until its stream has said just this."""
        until(lambda: self.words == text or self.ended)
        assert self.words == text
        return self

    def leave(self) -> float:
        """Close the connection, which must be open; gives the time of it."""
        assert not self.ended, "the connection had ended already"
        now = time.monotonic()
        if self._waits is None or self._waits.is_set():
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread's reading, which then closes
        else:
            self._left = True  # the thread is not reading: it closes by itself
        return now

    def result(self, seconds: float = 20) -> httpx.Response:
        """The whole answer, which must have come to its end."""
        assert self._ended.wait(seconds), f"no end after {seconds} s; {len(self.content)} bytes came"
        assert self.broken is None, f"{self.broken!r} after {self.content[-300:]!r}"
        return httpx.Response(self.status, headers=self.headers, content=self.content)


def call(
    gw: Running,
    prompt: str,
    *,
    key: str = ALICE,
    path: str = "/v1",
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> Caller:
    """Start a chat request; a stream unless `stream=False`."""
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}], "stream": True}
    options = {name: more.pop(name) for name in ("waits", "buffer") if name in more}
    head = {"authorization": f"Bearer {key}", **(headers or {})}
    return Caller(gw.url, f"{path}/chat/completions", {**body, **more}, head, **options)


@contextmanager
def gate() -> Iterator[threading.Event]:
    """Something to wait for, which has happened at the latest when the test is over."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


def streaming(answer: Json, gates: Mapping[int, threading.Event] | None = None, **more: Any) -> Reply:
    """A stream of the answer, one piece for each chunk: 0 is the role, then word by word; the last three are the
    finish_reason, the usage and the end. A piece with a gate waits for it."""
    chunks = chat_chunks(answer, include_usage=True)
    pieces = [sse([c], done=False) for c in chunks] + [b"data: [DONE]\n\n"]
    return Reply(pieces, content_type=SSE, gates=dict(gates or {}), **more)


def holding(event: threading.Event, answer: Json | None = None, *, words: int = 2) -> Script:
    """A script: an answer in the form that the upstream is asked for, held after its first words or, plain, in its
    middle. Without `answer` each call has its own: "one two three" and its number."""

    def script(seen: Seen, number: int) -> Reply:
        mine = answer or chat_answer(f"one two three {number}")
        if seen.body.get("stream"):
            return streaming(mine, {words + 1: event})
        raw = json.dumps(mine).encode()
        return Reply([raw[:40], raw[40:]], gates={1: event})

    return script


def gated(reply: Reply, event: threading.Event) -> Reply:
    """The reply, held before its first byte."""
    reply.gates = {0: event}
    return reply


def first_byte_held(event: threading.Event) -> Script:
    """A script: every call has an answer of its own, "one two" and its number, held before its first byte."""
    return lambda seen, number: gated(reply_for(seen, chat_answer(f"one two {number}")), event)


def together(gw: Running, prompt: str, forms: Sequence[str], **more: Any) -> list[Caller]:
    """A flight: the first one leads, the others join it one after the other."""
    callers = []
    for number, form in enumerate(forms, 1):
        callers.append(call(gw, prompt, **{**FORMS[form], **more}))
        listening(gw, number)
    return callers


def answer_of(response: httpx.Response) -> Json:
    """The whole answer of a good response, in whichever form it came."""
    assert response.status_code == 200, response.text
    streamed = response.headers["content-type"].startswith(SSE)
    return accumulated(response.text) if streamed else dict(response.json())


def not_kept(gw: Running, up: Upstream, prompt: str, **more: Any) -> None:
    """Nothing of this request's answer is in the cache."""
    with upstream_calls(up, 0):
        error_of(gw.chat(prompt, **{**more, "headers": {"cache-control": "only-if-cached"}}), 504)


def gauge(gw: Running, name: str) -> float:
    """A gauge of /metrics, over all its labels."""
    response = gw.admin("GET", "/metrics")
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    assert lines, f"no {name} in /metrics"
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def listening(gw: Running, clients: int) -> None:
    """Wait until so many clients are in flights."""
    until(lambda: gauge(gw, "refrain_flight_listeners") == clients)


def settled(gw: Running) -> Json:
    """Wait until no flight is left; gives the sums of tokens, which must then be in balance."""
    until(lambda: gauge(gw, "refrain_flights") == 0 and gauge(gw, "refrain_flight_listeners") == 0)
    found = gw.admin("GET", "/admin/stats").json()
    for unit in ("tokens", "usd"):
        sums = found[unit]
        assert abs(sums["served"] + sums["unserved"] - sums["consumed"] - sums["saved"]) < 1e-9, sums
        assert all(value >= 0 for value in sums.values()), sums
    return dict(found["tokens"])


def error_event(response: httpx.Response) -> Json:
    """The error at the end of a stream that began well: nothing follows it, no `[DONE]` either."""
    assert response.status_code == 200
    *before, last = events(response.text)
    assert "[DONE]" not in before
    error = json.loads(last)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return dict(error)
