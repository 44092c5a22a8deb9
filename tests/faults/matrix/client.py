"""One client of the gateway: it asks, and tells what it got."""

import asyncio
import json

import aiohttp
import httpx

from tests.faults.matrix.cases import BEGINNING, Form, Got
from tests.support.gateway import ALICE
from tests.support.traffic import Json, accumulated, error_of, events

PATIENCE = 15.0


class Client:
    """Asks at once. `received` are the bytes of the body so far."""

    def __init__(self, http: aiohttp.ClientSession, endpoint: str, prompt: str, form: Form) -> None:
        self.received = b""
        self._task = asyncio.create_task(self._ask(http, endpoint, prompt, form))

    async def got(self) -> Got:
        async with asyncio.timeout(PATIENCE):
            return await self._task

    async def until_begun(self) -> None:
        """Wait until it has seen the beginning of an answer."""
        async with asyncio.timeout(PATIENCE):
            while BEGINNING.encode() not in self.received:  # noqa: ASYNC110  nothing else tells
                await asyncio.sleep(0.002)

    async def leave(self) -> None:
        """Close the connection, whatever is still to come."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _ask(self, http: aiohttp.ClientSession, endpoint: str, prompt: str, form: Form) -> Got:
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "test-model", "messages": messages, "stream": form == "stream"}
        headers = {"authorization": f"Bearer {ALICE}"}
        url = f"/{endpoint}/v1/chat/completions"
        async with http.post(url, json=body, headers=headers) as response:
            try:
                async for piece in response.content.iter_any():
                    self.received += piece
            except aiohttp.ClientPayloadError:
                return Got(response.headers["x-refrain-cache"], response.status, "cut off")
        return understood(httpx.Response(response.status, headers=response.headers, content=self.received), form)


def understood(response: httpx.Response, form: Form) -> Got:
    outcome = response.headers["x-refrain-cache"]
    if response.status_code != 200:
        error = error_of(response, response.status_code)
        retry_after = response.headers.get("retry-after")
        return Got(outcome, response.status_code, "error", error["code"], retry_after=retry_after)
    if form == "json":
        assert response.headers["content-type"] == "application/json"
        return Got(outcome, 200, "whole", text=response.json()["choices"][0]["message"]["content"])
    assert response.headers["content-type"].startswith("text/event-stream")
    found = events(response.text)
    if found[-1] == "[DONE]":
        return Got(outcome, 200, "whole", text=accumulated(response.text)["choices"][0]["message"]["content"])
    *chunks, last = map(json.loads, found)
    assert last.keys() == {"error"}
    assert last["error"].keys() == {"message", "type", "param", "code"}
    return Got(outcome, 200, "broken off", last["error"]["code"], "".join(map(piece_of, chunks)))


def piece_of(chunk: Json) -> str:
    return str(chunk["choices"][0]["delta"].get("content", ""))
