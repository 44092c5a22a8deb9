"""A gateway whose tiers take their time: `pause` of each is in seconds, and in the test's hand."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from cache.entry import Entry
from cache.stores.base import Store
from gateway.app import Gateway, create_app
from gateway.config.load import parse_config
from tests.support.embedders import Placed
from tests.support.gateway import Clock, Running
from tests.support.upstream import serve


class SlowEmbedder(Placed):
    pause = 0.0

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        await asyncio.sleep(self.pause)
        return await super().embed(texts, deadline=deadline)


class SlowStore:
    """Another store, but for the time that reading an entry takes; `asked` counts these."""

    def __init__(self, store: Store, pause: float) -> None:
        self.pause = pause
        self.asked = 0
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: bytes) -> Entry | None:
        self.asked += 1
        await asyncio.sleep(self.pause)
        return await self._store.get(key)


class Slowed:
    """A running gateway, its embedder and its store."""

    def __init__(self, embedder: SlowEmbedder) -> None:
        self.gw: Running
        self.store: SlowStore
        self.embedder = embedder


@contextmanager
def slowed(text: str, path: Path, embedder: SlowEmbedder, *, store: float = 0.0) -> Iterator[Slowed]:
    """Serve this configuration, whose store is the file at `path`; reading an entry of that takes `store` seconds."""
    made = Slowed(embedder)

    async def slow_down(gateway: Gateway) -> None:
        behind = gateway.cache._store
        assert behind is not None
        made.store = gateway.cache._store = SlowStore(behind, store)  # type: ignore[assignment]

    config = parse_config(text.replace("memory://", f"sqlite:///{path}"), {})
    clock = Clock()
    app = create_app(config, clock=clock, embedders=lambda _: embedder, announce=slow_down)
    with serve(app, lifespan="on") as port:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            made.gw = Running(url, clock, client)
            yield made
