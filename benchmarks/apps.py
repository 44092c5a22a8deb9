"""The servers that the gateway is measured against, as bare as Python can have them."""

import hashlib
import json
import os
from typing import Any

import httpx
from httpx_aiohttp import AiohttpTransport

WORDS = ("river", "castle", "violin", "glacier", "senator", "orchard", "harbour", "bakery", "volcano", "cathedral")
ANSWER_TOKENS = 300


def answer(tag: str) -> bytes:
    """A chat answer of about 300 tokens that begins with `tag`."""
    seed = int(hashlib.sha256(tag.encode()).hexdigest()[:8], 16)
    words = [tag, *(WORDS[(seed + i * 7) % len(WORDS)] for i in range(ANSWER_TOKENS - 1))]
    usage = {"prompt_tokens": 300, "completion_tokens": ANSWER_TOKENS, "total_tokens": 600}
    message = {"role": "assistant", "content": " ".join(words)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "bench"}
    return json.dumps({**body, "choices": [choice], "usage": usage}).encode()


FIXED = answer("TAG")
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(FIXED)).encode())]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Reads the request, sends fixed bytes: what uvicorn can do at most."""
    if scope["type"] != "http":
        return
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": FIXED})


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answers every prompt with an answer of its own."""
    if scope["type"] != "http":
        return
    raw, more = b"", True
    while more:
        message = await receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    body = answer(hashlib.sha256(raw).hexdigest()[:12])
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def proxy(scope: Any, receive: Any, send: Any) -> None:
    """Hands every request to the upstream at $BENCH_UPSTREAM over the same client as the gateway, and does nothing
    else: what going through any such process costs on this machine."""
    if scope["type"] != "http":
        return
    raw, more = b"", True
    while more:
        message = await receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    global _transport
    if _transport is None:
        _transport = AiohttpTransport()
    request = httpx.Request(
        "POST", os.environ["BENCH_UPSTREAM"], content=raw, headers={"content-type": "application/json"}
    )
    response = await _transport.handle_async_request(request)
    body = await response.aread()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_transport: AiohttpTransport | None = None
