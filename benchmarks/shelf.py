"""A search service that counts its searches."""

import json
from typing import Any

from benchmarks.apps import WORDS, read, send_whole

RESULTS = 4


class Count:
    calls = 0


async def service(scope: Any, receive: Any, send: Any) -> None:
    """Finds something of its own for every question. GET: how often it was asked."""
    if scope["type"] != "http":
        return
    if scope["method"] == "GET":
        await send_whole(send, json.dumps({"calls": Count.calls}).encode())
        return
    Count.calls += 1
    query = json.loads(await read(receive))["query"]
    found = [{"id": f"{word}.md", "text": f"{word}: {query}", "score": 1 / n} for n, word in enumerate(WORDS, 1)]
    await send_whole(send, json.dumps({"results": found[:RESULTS]}).encode())
