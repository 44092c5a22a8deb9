"""The stores under test, and entries to put into them. Another store is one more line in STORES."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cache.entry import Cost, Entry, Usage
from cache.framing import digest
from cache.question import Question
from cache.stores.base import Store
from cache.stores.memory import MemoryStore
from cache.stores.sqlite import SQLiteStore

START = 1_800_000_000.0
MAX_BODY = 1024 * 1024


class Clock:
    """The wall clock, set by the test."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


@dataclass(frozen=True)
class Kind:
    """`open(directory, max_bytes, now)` opens a store; a durable one finds again what the directory holds. One that
    does not keep questions gives none."""

    open: Callable[[Path, int, Clock], Awaitable[Store]]
    durable: bool
    keeps_questions: bool


async def memory(directory: Path, max_bytes: int, now: Clock) -> Store:
    return MemoryStore(max_bytes, now=now, mono=now)


async def sqlite(directory: Path, max_bytes: int, now: Clock) -> Store:
    path = directory / "cache.db"
    return await SQLiteStore.open(path, max_bytes=max_bytes, max_body=MAX_BODY, now=now, write_interval=0.02)


STORES = {
    "memory": Kind(memory, durable=False, keeps_questions=False),
    "sqlite": Kind(sqlite, durable=True, keeps_questions=True),
}


def key_of(name: str) -> bytes:
    return digest("test.key", [name.encode()])


def make_entry(name: str = "a", **changes: Any) -> Entry:
    """An entry under `key_of(name)` that lives for an hour from START on."""
    entry = Entry(
        key=key_of(name),
        scope=digest("test.scope", [b"acme"]),
        tenant="acme",
        user="alice",
        endpoint="default",
        api="chat",
        model="small",
        backend="local",
        body=f'{{"answer": "{name}"}}'.encode(),
        created=START,
        expires=START + 3600,
        keep_until=START + 3600,
        usage=Usage(12, 34),
        cost=Cost(5.5, 0.002),
        upstream_id="up-1",
    )
    return replace(entry, **changes)


def make_question(name: str = "a", **changes: Any) -> Question:
    """What was asked when the entry under `key_of(name)` was made."""
    question = Question(
        key=key_of(name),
        context=digest("test.context", [b"acme"]),
        text=f"What is {name}?",
        embedder="small",
        vector=bytes(384 * 4),
    )
    return replace(question, **changes)
