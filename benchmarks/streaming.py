"""An upstream that answers token by token, at the pace that the prompt names, and counts its calls.

Its answers begin with the number of the call, so that a second call can never look like the first.
"""

import asyncio
import json
import re
from typing import Any, NamedTuple

from benchmarks.apps import SSE, WORDS, answer, read, send_whole


class Pace(NamedTuple):
    """`first` milliseconds to the first token, `pause` from each to the next."""

    tokens: int
    pause: int = 0
    first: int = 0

    def __str__(self) -> str:
        return f"tokens={self.tokens} pause={self.pause} first={self.first}"


PACE = re.compile(rb"tokens=(\d+) pause=(\d+) first=(\d+)")
HEAD = {"object": "chat.completion.chunk", "created": 1_700_000_000, "model": "bench"}
DONE = "data: [DONE]\n\n"

_calls = 0


async def app(scope: Any, receive: Any, send: Any) -> None:
    global _calls
    if scope["type"] != "http":
        return
    if scope["method"] == "GET":
        await send_whole(send, json.dumps({"calls": _calls}).encode())
        return
    raw = await read(receive)
    _calls += 1
    number = _calls
    if (named := PACE.search(raw)) is None:
        raise ValueError("the prompt names no pace")
    pace = Pace(*map(int, named.groups()))
    body = json.loads(raw)
    if body.get("stream"):
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        await _stream(send, number, pace, usage=usage)
    else:
        await asyncio.sleep((pace.first + (pace.tokens - 1) * pace.pause) / 1000)
        await send_whole(send, answer(f"call-{number}", pace.tokens))


async def _stream(send: Any, number: int, pace: Pace, *, usage: bool) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    head = {"id": f"chatcmpl-{number}", **HEAD}
    if usage:
        head["usage"] = None  # in every chunk, as OpenAI does it

    def chunk(delta: dict[str, str], finish: str | None = None) -> str:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

    for i in range(pace.tokens):
        # By the clock and not by the last token, so that a late one does not delay all that follow.
        wait = begun + (pace.first + i * pace.pause) / 1000 - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        if i == 0:
            await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
            text = chunk({"role": "assistant", "content": ""}) + chunk({"content": f"call-{number}"})
        else:
            text = chunk({"content": f" {WORDS[(number + i * 7) % len(WORDS)]}"})
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
    end = chunk({}, "stop")
    if usage:
        counted = {"prompt_tokens": 300, "completion_tokens": pace.tokens, "total_tokens": 300 + pace.tokens}
        end += _event({**head, "choices": [], "usage": counted})
    await send({"type": "http.response.body", "body": (end + DONE).encode()})


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"
