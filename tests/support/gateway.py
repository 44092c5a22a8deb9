"""A gateway under a real uvicorn, in this process, with its clock in the test's hand."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.app import create_app
from gateway.config.load import parse_config
from gateway.embedders import MakeEmbedder
from tests.support.embedders import Unready
from tests.support.upstream import serve

ADMIN = "rf-test-admin-key"
ALICE = "rf-test-alice-key"
BOB = "rf-test-bob-key"
EVE = "rf-test-eve-key"


@dataclass
class Clock:
    """Wall clock that a test can set ahead."""

    offset: float = 0.0
    frozen: float | None = None

    def __call__(self) -> float:
        return (time.time() if self.frozen is None else self.frozen) + self.offset


@dataclass
class Running:
    url: str
    clock: Clock
    client: httpx.Client = field(repr=False)

    def chat(self, content: str = "Hello?", *, key: str = ALICE, path: str = "/v1", **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
        body = {"model": "test-model", "messages": [{"role": "user", "content": content}], **more}
        return self.client.post(f"{path}/chat/completions", json=body, headers=headers)

    def raw(self, body: bytes, *, key: str = ALICE, path: str = "/v1", **headers: str) -> httpx.Response:
        head = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
        return self.client.post(f"{path}/chat/completions", content=body, headers=head)

    def admin(self, method: str, path: str, *, key: str = ADMIN, **kwargs: Any) -> httpx.Response:
        return self.client.request(method, path, headers={"authorization": f"Bearer {key}"}, **kwargs)


KEYS = f"""
auth:
  keys:
    - {{key: {ADMIN}, tenant: ops, user: root, role: admin}}
    - {{key: {ALICE}, tenant: acme, user: alice, permissions: [hr]}}
    - {{key: {BOB}, tenant: acme, user: bob, permissions: [eng]}}
    - {{key: {EVE}, tenant: globex, user: eve, role: tenant_admin}}
"""

ENDPOINTS = """
endpoints:
  default: {mode: stream, share: tenant}
  rr: {mode: request_response, share: tenant}
  personal: {mode: request_response, share: user}
  permitted: {mode: request_response, share: permissions}
  everyone: {mode: request_response, share: public}
  careful: {mode: request_response, sampled: bypass}
  short: {mode: request_response, cache: {exact: {ttl: 60s}}}
  uncached: {mode: request_response, cache: {exact: off}}
"""


def config_text(upstream_url: str, *, store: str = "memory://", extra: str = "") -> str:
    return f"""
backends:
  fake: {{kind: remote, base_url: "{upstream_url}", api_key: sk-upstream-secret}}
models: {{"*": fake}}
store: {{url: "{store}"}}
{KEYS}{ENDPOINTS}{extra}
"""


@contextmanager
def running(
    text: str,
    *,
    env: Mapping[str, str] | None = None,
    path: Path | None = None,
    clock: Clock | None = None,
    embedders: MakeEmbedder = Unready,
) -> Iterator[Running]:
    """Serve the configuration in `text`. With `path` it is written there, and changes of that file are applied. Without
    `embedders` the semantic tier is never asked: its embedder does not become ready."""
    clock = clock or Clock()
    if path is not None:
        path.write_text(text)
    folder = Path() if path is None else path.parent
    app = create_app(parse_config(text, env or {}, folder=folder), path=path, clock=clock, embedders=embedders)
    with serve(app, lifespan="on") as port:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            yield Running(url, clock, client)
