"""Requests for embeddings, and what their answers hold."""

import base64
import struct
from typing import Any

import httpx

from tests.support.gateway import ALICE, Running
from tests.support.upstream import Seen, inputs_of, vector_of

MODEL = "test-model"


def embed(gw: Running, asked: Any, *, key: str = ALICE, path: str = "/v1", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
    return gw.client.post(f"{path}/embeddings", json={"model": MODEL, "input": asked, **more}, headers=headers)


def single(numbers: list[float]) -> list[float]:
    """The same in single precision."""
    return list(struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers)))


def own(*items: Any, size: int = 8) -> list[list[float]]:
    """The vectors that belong to these inputs."""
    return [single(vector_of(item, size)) for item in items]


def vectors(response: httpx.Response) -> list[list[float]]:
    """Those of a good answer, which have to be in their order."""
    assert response.status_code == 200, f"{response.status_code} {response.text[:300]}"
    data = response.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    assert {item["object"] for item in data} == {"embedding"}
    return [single(_numbers(item["embedding"])) for item in data]


def _numbers(embedding: Any) -> list[float]:
    if isinstance(embedding, str):
        raw = base64.b64decode(embedding)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return list(embedding)


def sent(seen: list[Seen]) -> list[Any]:
    """All inputs that these calls were for."""
    return [item for call in seen for item in inputs_of(call.body["input"])]
