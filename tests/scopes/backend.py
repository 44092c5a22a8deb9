"""The backend: every answer names the call that made it, and the log knows whom that call was made for."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from msgspec.json import encode

from backends.base import Call, ReplyBroken, State
from tests.scopes.log import Asked, Log, Made

ASKED: ContextVar[Asked] = ContextVar("asked")
"""The request in whose course something happens. Tasks inherit it, so a call made on the side has it too."""
SSE = "text/event-stream"
ANSWER, CHUNK = "chat.completion", "chat.completion.chunk"
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


class ScriptedBackend:
    """`fates` and `hold` are those of the burst under way; what is held waits for `gate`."""

    name = "fake"
    revision = "1"
    private: tuple[str, ...] = ()
    detail = ""

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self.fates: tuple[str, ...] = ("good",)
        self.hold = "no"
        self.gate = asyncio.Event()
        self.held = 0
        self._calls = 0

    def script(self, fates: tuple[str, ...], hold: str) -> None:
        self.fates, self.hold, self._calls = fates, hold, 0

    def release(self) -> None:
        self.script(("good",), "no")
        self.gate.set()
        self.gate = asyncio.Event()

    async def send(self, call: Call) -> "Answer":
        asked, log = ASKED.get(), self._log
        asked.calls += 1
        # A second call in a request's course is made for one of those who wait with it: its own has failed.
        others = [a for a in log.asked if not a.ended and a.place == asked.place] if asked.calls > 1 else []
        fate = self.fates[min(self._calls, len(self.fates) - 1)]
        self._calls += 1
        made = Made(len(log.made) + 1, asked, tuple(others), log.tick(), self._clock(), fate)
        log.made[made.serial] = made
        answer = Answer(self, log, made, self.says(made, call), streams=b'"stream":true' in call.body)
        if self.hold == "before":
            await answer.wait(self.gate)
        return answer

    def says(self, made: Made, call: Call) -> str:
        """The large model never says the same thing twice, the small one always says the same about the same."""
        ask = made.asked.ask
        return f"This is serial-{made.serial}- speaking." if ask.model == "large" else f"See {ask.wording.asks}."

    async def start(self) -> None:
        pass

    def state(self) -> State:
        return "ready"

    async def aclose(self) -> None:
        pass


class Answer:
    def __init__(self, backend: ScriptedBackend, log: Log, made: Made, text: str, *, streams: bool) -> None:
        self._backend = backend
        self._log = log
        self._made = made
        self._text = text
        self._gate = backend.gate if backend.hold == "middle" else None
        self.status = {"error": 500, "refused": 400}.get(made.fate, 200)
        kind = SSE if streams and self.status == 200 else "application/json"
        self.headers: Mapping[str, str] = {"content-type": kind}

    async def wait(self, gate: asyncio.Event) -> None:
        self._backend.held += 1
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self._end()
            raise
        finally:
            self._backend.held -= 1

    async def read(self) -> bytes:
        if self._gate is not None:
            await self.wait(self._gate)
        if self.status != 200:
            return b'{"error": {"message": "No.", "type": "server_error", "param": null, "code": null}}'
        if self._made.fate == "broken":
            raise ReplyBroken("The reply ended early.")
        self._made.whole = self._log.tick()
        message = {"role": "assistant", "content": self._text}
        return encode(self._object(ANSWER, {"message": message, "finish_reason": self._reason()}) | {"usage": USAGE})

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._chunk({"role": "assistant", "content": self._text}, None)
        if self._gate is not None:
            await self.wait(self._gate)
        if self._made.fate == "broken":
            raise ReplyBroken("The stream ended early.")
        self._made.whole = self._log.tick()
        usage = self._object(CHUNK) | {"usage": USAGE}
        yield self._chunk({}, self._reason()) + b"data: " + encode(usage) + b"\n\ndata: [DONE]\n\n"

    async def aclose(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._made.ended is None:
            self._made.ended = self._log.tick()

    def _object(self, kind: str, *choices: dict[str, Any]) -> dict[str, Any]:
        named = [{"index": 0, **choice} for choice in choices]
        id = f"chatcmpl-serial-{self._made.serial}-"
        return {"id": id, "object": kind, "created": 1, "model": "m", "choices": named}

    def _chunk(self, delta: dict[str, str], reason: str | None) -> bytes:
        return b"data: " + encode(self._object(CHUNK, {"delta": delta, "finish_reason": reason})) + b"\n\n"

    def _reason(self) -> str:
        return "length" if self._made.fate == "cut" else "stop"
