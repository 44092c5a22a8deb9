"""A backend that does as it is told."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from backends.base import Call, State
from tests.support.live import SSE

END = object()
"""The reply is over."""


class UpstreamCall:
    """One call: `put` what its reply brings. An exception put first is that of sending, later that of reading; a
    status and a content type are the head; an event is waited for."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.closed = False
        self.hurried = False  # what is there comes at once, as from a full buffer: nobody else has a turn in between
        self._steps: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, *steps: Any) -> None:
        for step in steps:
            self._steps.put_nowait(step)

    def taken(self) -> bool:
        """All that was put has been read."""
        return self._steps.empty()

    async def open(self) -> "UpstreamCall":
        try:
            head = await self._next()
        except BaseException:
            self.closed = True
            raise
        self.status, kind = head
        self.headers = {"content-type": kind, "x-request-id": "up-1"}
        return self

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while (step := await self._next()) is not END:
            if not self.hurried:
                await asyncio.sleep(0)
            yield step

    async def aclose(self) -> None:
        self.closed = True

    async def _next(self) -> Any:
        while isinstance(step := await self._steps.get(), asyncio.Event):
            await step.wait()
        if isinstance(step, Exception):
            raise step
        return step


OPEN = (200, SSE)


class ScriptedBackend:
    """`script` gives what each call brings of itself, by its number from 1 on; more can be put later."""

    name = "fake"
    revision = "1"
    private: tuple[str, ...] = ("sk-upstream-secret",)
    detail = ""

    def __init__(self) -> None:
        self.calls: list[UpstreamCall] = []
        self.script: Callable[[int], Sequence[Any]] = lambda number: [OPEN]
        self._news = asyncio.Event()

    async def called(self, times: int) -> None:
        """Wait until so many calls were made."""
        while len(self.calls) < times:
            self._news.clear()
            await self._news.wait()

    async def start(self) -> None:
        pass

    async def send(self, call: Call) -> UpstreamCall:
        made = UpstreamCall(call)
        self.calls.append(made)
        made.put(*self.script(len(self.calls)))
        self._news.set()
        return await made.open()

    def state(self) -> State:
        return "ready"

    async def aclose(self) -> None:
        pass
