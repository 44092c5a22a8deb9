"""Input files for tests, and what a reader says of them."""

import json
from typing import Any

from gateway.batch.input import Reader
from gateway.batch.records import Fault, Line, Url

CHAT: Url = "/v1/chat/completions"


def request(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    """A sound one, but for the changes; None leaves a field out."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hé"}]}
    whole = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **changes}
    return {name: value for name, value in whole.items() if value is not None}


def line(custom_id: str = "a", **changes: Any) -> bytes:
    return json.dumps(request(custom_id, **changes), ensure_ascii=False).encode()


def read(*pieces: bytes, url: Url = CHAT, max_line: int = 1_000, **limits: int) -> tuple[list[Line], Reader]:
    reader = Reader(url, max_line=max_line, **limits)
    lines = [found for piece in pieces for found in reader.feed(piece)]
    return lines + reader.close(), reader


def faults(*lines: bytes, **options: Any) -> list[Fault]:
    return read(b"\n".join(lines), **options)[1].faults


def brief(found: list[Fault]) -> list[tuple[str, str | None, int | None]]:
    return [(fault.code, fault.param, fault.line) for fault in found]
