"""The servers that the gateway is measured against, as bare as Python can have them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import aiohttp

WORDS = ("river", "castle", "violin", "glacier", "senator", "orchard", "harbour", "bakery", "volcano", "cathedral")
ANSWER_TOKENS = 300

JSON = (b"content-type", b"application/json")
SSE = (b"content-type", b"text/event-stream")


def answer(tag: str, tokens: int = ANSWER_TOKENS) -> bytes:
    """A chat answer of so many tokens that begins with `tag`."""
    seed = int(hashlib.sha256(tag.encode()).hexdigest()[:8], 16)
    words = [tag, *(WORDS[(seed + i * 7) % len(WORDS)] for i in range(tokens - 1))]
    usage = {"prompt_tokens": 300, "completion_tokens": tokens, "total_tokens": 300 + tokens}
    message = {"role": "assistant", "content": " ".join(words)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "bench"}
    return json.dumps({**body, "choices": [choice], "usage": usage}).encode()


GIVEN = os.environ.get("BENCH_BODY")
FIXED = Path(GIVEN).read_bytes() if GIVEN else answer("TAG")
HEADERS = [SSE if FIXED.startswith(b"data: ") else JSON, (b"content-length", str(len(FIXED)).encode())]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Reads the request, sends fixed bytes (those of the file $BENCH_BODY, if it is set): what uvicorn can do at
    most."""
    if scope["type"] != "http":
        return
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": FIXED})


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answers every prompt with an answer of its own, in one piece and at once."""
    if scope["type"] != "http":
        return
    raw = await read(receive)
    await send_whole(send, answer(hashlib.sha256(raw).hexdigest()[:12]))


async def proxy(scope: Any, receive: Any, send: Any) -> None:
    """Hands every request to the upstream at $BENCH_UPSTREAM over the same client as the gateway, and does nothing
    else: what going through any such process costs on this machine."""
    if scope["type"] != "http":
        return
    response = await forward(await read(receive))
    await send_whole(send, await response.read())


async def stream_proxy(scope: Any, receive: Any, send: Any) -> None:
    """The same, handing on each piece of the answer as it comes."""
    if scope["type"] != "http":
        return
    response = await forward(await read(receive))
    await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
    async for piece in response.content.iter_any():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def read(receive: Any) -> bytes:
    raw, more = b"", True
    while more:
        message = await receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    return raw


async def send_whole(send: Any, body: bytes) -> None:
    headers = [JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def forward(raw: bytes) -> aiohttp.ClientResponse:
    global _session
    if _session is None:
        # uvicorn closes idle connections after 5 s; one that it is just closing would fail.
        _session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4))
    return await _session.post(os.environ["BENCH_UPSTREAM"], data=raw, headers={"content-type": "application/json"})


_session: aiohttp.ClientSession | None = None
