"""Batches, lines and files for the tests of their store."""

from typing import Any

from gateway.batch.records import BatchRecord, FileRecord, Line, Owner, Result, Usage
from gateway.batch.store import BatchStore

OWNER = Owner("acme", "ann", permissions=("hr",), role="tenant_admin", key="ab" * 32)
ANN, BOB, OTHER = ("acme", "ann"), ("acme", "bob"), ("other", "ann")
DAY = 86400.0


def record(id: str, **changes: Any) -> FileRecord:
    fields: dict[str, Any] = {
        "id": id,
        "tenant": "acme",
        "user": "ann",
        "purpose": "batch",
        "filename": "in.jsonl",
        "size": 0,
        "created": 1.5,
    }
    return FileRecord(**(fields | changes))


async def upload(store: BatchStore, id: str, *pieces: bytes, **changes: Any) -> FileRecord:
    await store.begin(id)
    for piece in pieces:
        await store.piece(id, piece)
    kept = record(id, size=sum(map(len, pieces)), **changes)
    await store.keep(kept)
    return kept


async def content(store: BatchStore, id: str | None) -> bytes:
    assert id is not None
    return b"".join([piece async for piece in store.content(id)])


def batch(id: str = "batch_1", **changes: Any) -> BatchRecord:
    fields: dict[str, Any] = {
        "id": id,
        "owner": OWNER,
        "endpoint": "nightly",
        "url": "/v1/chat/completions",
        "input_file": "file-in",
        "created": 10.0,
        "deadline": 10.0 + DAY,
        "metadata": {"team": "hr"},
    }
    return BatchRecord(**(fields | changes))


def line(number: int, body: bytes = b'{"model":"m"}') -> Line:
    return Line(number, f"request-{number}", body)


def good(number: int) -> Result:
    return Result(number, True, b'{"good":%d}' % number, Usage(4, 3, 2, 1))


def bad(number: int) -> Result:
    return Result(number, False, b'{"bad":%d}' % number)


def out_of_time(line: Line) -> Result:
    return Result(line.number, False, b'{"expired":"%s"}' % line.custom_id.encode())


async def accepted(store: BatchStore, count: int, id: str = "batch_1", **changes: Any) -> BatchRecord:
    """One whose lines are 1 to `count`."""
    await store.create(batch(id, **changes))
    await store.add_lines(id, [line(n) for n in range(1, count + 1)])
    return await store.accept(id, total=count, model="m", at=20.0)


async def numbers(store: BatchStore, id: str = "batch_1") -> list[int]:
    """Of the lines that wait."""
    return [line.number for line in await store.waiting(id, after=0, limit=10_000)]
