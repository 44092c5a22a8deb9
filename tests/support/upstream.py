"""A scripted OpenAI-style upstream on a real socket.

It counts what reaches it and remembers bodies and headers. What it answers is a `Script`: by default a chat answer
that names the call's number, so that a second upstream call can never look like the first.
"""

import asyncio
import base64
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import uvicorn

Json = dict[str, Any]


def chat_answer(text: str, *, model: str = "test-model", **changes: Any) -> Json:
    answer: Json = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
    return {**answer, **changes}


def text_answer(text: str, *, model: str = "test-model") -> Json:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }


def chat_chunks(answer: Json, *, include_usage: bool) -> list[Json]:
    """The chunks of an answer as OpenAI sends them, one word at a time."""
    head = {k: answer[k] for k in ("id", "created", "model", "system_fingerprint")} | {
        "object": "chat.completion.chunk"
    }
    if include_usage:
        head["usage"] = None

    def chunk(index: int, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**head, "choices": [choice]}

    out = []
    for choice in answer["choices"]:
        message, index = choice["message"], choice["index"]
        out.append(chunk(index, {"role": "assistant", "content": "", "refusal": None}))
        words = message["content"].split(" ") if message["content"] else []
        for i, word in enumerate(words, 1):
            out.append(chunk(index, {"content": word + " " if i < len(words) else word}))
        for i, call in enumerate(message.get("tool_calls") or ()):
            out.append(chunk(index, {"tool_calls": [{"index": i, **call}]}))
        out.append(chunk(index, {}, choice["finish_reason"]))
    if include_usage:
        out.append({**head, "choices": [], "usage": answer["usage"]})
    return out


def sse(chunks: list[Json], *, done: bool = True) -> bytes:
    body = b"".join(b"data: " + json.dumps(c, ensure_ascii=False).encode() + b"\n\n" for c in chunks)
    return body + (b"data: [DONE]\n\n" if done else b"")


@dataclass
class Reply:
    """What to answer: a status, headers, and pieces of a body with a pause before each; then `hang` seconds of
    silence; `cut` drops the connection instead of ending the body properly. Nothing is sent before `gate` is set, and
    no piece that has one of the `gates`, by its number, before that one is."""

    pieces: list[bytes]
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0
    first_pause: float = 0.0
    hang: float = 0.0
    gate: threading.Event | None = None
    gates: dict[int, threading.Event] = field(default_factory=dict)
    cut: bool = False


Script = Callable[["Seen", int], Reply]


@dataclass
class Seen:
    path: str
    query: str
    headers: dict[str, str]
    body: Json
    raw: bytes


def answer_with(answer: Json) -> Script:
    """Always this answer, streamed or not as asked."""

    def script(seen: Seen, number: int) -> Reply:
        return reply_for(seen, answer)

    return script


def reply_for(seen: Seen, answer: Json) -> Reply:
    if not seen.body.get("stream"):
        return Reply([json.dumps(answer).encode()])
    include_usage = bool((seen.body.get("stream_options") or {}).get("include_usage"))
    return Reply([sse(chat_chunks(answer, include_usage=include_usage))], content_type="text/event-stream")


def numbered(seen: Seen, number: int) -> Reply:
    """The default: every call gets another answer."""
    model = seen.body.get("model", "test-model")
    if seen.path.endswith("/chat/completions"):
        return reply_for(seen, chat_answer(f"This is answer number {number}.", model=model))
    if seen.path.endswith("/embeddings"):
        return embedded(seen, number)
    answer = text_answer(f"text number {number}", model=model)
    if seen.body.get("stream"):
        chunk = {k: v for k, v in answer.items() if k != "usage"}
        usage = {**chunk, "choices": [], "usage": answer["usage"]}
        return Reply([sse([chunk, usage])], content_type="text/event-stream")
    return Reply([json.dumps(answer).encode()])


def vector_of(item: str | list[int], size: int = 8) -> list[float]:
    """Of a text or of tokens always the same, in doubles: what a client gets of it is the nearest float32."""
    random = Random(repr(item))
    return [random.gauss() for _ in range(size)]


def inputs_of(asked: Any) -> list[Any]:
    """The inputs of a request for embeddings, one by one."""
    return [asked] if isinstance(asked, str) or isinstance(asked[0], int) else asked


def embeddings_answer(seen: "Seen") -> Json:
    """As many tokens as a text has letters, and as many numbers as were asked for."""
    inputs, size = inputs_of(seen.body["input"]), seen.body.get("dimensions") or 8
    as_base64 = seen.body.get("encoding_format") == "base64"
    data = []
    for index, item in enumerate(inputs):
        vector: Any = vector_of(item, size)
        if as_base64:
            vector = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    tokens = sum(map(len, inputs))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": seen.body["model"], "usage": usage}


def embedded(seen: "Seen", number: int) -> Reply:
    return Reply([json.dumps(embeddings_answer(seen)).encode()])


class Upstream:
    """`calls` counts requests for answers or embeddings; `seen` holds them; `cancelled` those whose client left, at the
    monotonic times `left_at`."""

    def __init__(self) -> None:
        self.script: Script = numbered
        self.seen: list[Seen] = []
        self.cancelled = 0
        self.left_at: list[float] = []
        self.open = 0
        self.models = ["test-model", "other-model"]
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def calls(self) -> int:
        return len(self.seen)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        raw, more = b"", True
        while more:
            message = await receive()
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"].endswith("/models"):
            data = [{"id": m, "object": "model", "created": 1, "owned_by": "test"} for m in self.models]
            await self._send(send, Reply([json.dumps({"object": "list", "data": data}).encode()]))
            return
        headers = {k.decode(): v.decode("latin-1") for k, v in scope["headers"]}
        seen = Seen(scope["path"], scope["query_string"].decode(), headers, json.loads(raw or b"{}"), raw)
        self.seen.append(seen)
        reply = self.script(seen, len(self.seen))
        self.open += 1
        work = asyncio.create_task(self._send(send, reply))
        watch = asyncio.create_task(self._gone(receive))
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        self.open -= 1
        if not work.done():
            self.left_at.append(time.monotonic())
            self.cancelled += 1
        work.cancel()
        watch.cancel()
        results = await asyncio.gather(work, watch, return_exceptions=True)
        if isinstance(results[0], Cut):
            raise results[0]

    async def _send(self, send: Any, reply: Reply) -> None:
        await asyncio.sleep(reply.first_pause)
        if reply.gate is not None:
            await asyncio.to_thread(reply.gate.wait, 10)
        headers = {"content-type": reply.content_type, **reply.headers}
        head = [(k.encode(), v.encode()) for k, v in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        for number, piece in enumerate(reply.pieces):
            await asyncio.sleep(reply.pause)
            while number in reply.gates and not reply.gates[number].is_set():  # noqa: ASYNC110  another thread sets it
                await asyncio.sleep(0.001)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(reply.hang)
        if reply.cut:
            raise Cut
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _gone(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class Cut(Exception):
    """Ends a response in the middle: uvicorn drops the connection."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def serve(app: Any, *, lifespan: str = "off", port: int = 0) -> Iterator[int]:
    """Run an ASGI application under a real uvicorn in a thread; gives its port, a free one where none is named."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="critical", lifespan=lifespan, access_log=False, ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the test server did not start")
        time.sleep(0.005)
    try:
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(timeout=15)


@contextmanager
def upstream(*, port: int = 0) -> Iterator[Upstream]:
    app = Upstream()
    with serve(app, port=port) as app.port:
        yield app
