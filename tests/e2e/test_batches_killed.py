"""`kill -9` at any moment: every line that was accepted has one result in the end, and only what was in flight is asked
again."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from gateway.batch.records import BatchRecord
from gateway.batch.store import BatchStore
from tests.support.batches import Json, Lane, chat_line, chat_lines, counts, jsonl, lane, lane_config, replies, text_in
from tests.support.process import Served, serve
from tests.support.traffic import until
from tests.support.upstream import Reply, Seen, Upstream, numbered

pytestmark = pytest.mark.slow
IN_FLIGHT = 32


@pytest.fixture
def folder(up: Upstream, tmp_path: Path) -> Path:
    (tmp_path / "refrain.yaml").write_text(lane_config(up, tmp_path))
    return tmp_path


@contextmanager
def gateway(folder: Path) -> Iterator[tuple[Served, Lane]]:
    with serve(folder) as served:
        served.wait_ready()
        with lane(served.url) as alice:
            yield served, alice


def kept(folder: Path) -> list[BatchRecord]:
    """The batches that a dead gateway has left without an end."""

    async def look() -> list[BatchRecord]:
        store = await BatchStore.open(folder / "cache.batches.db")
        try:
            return await store.unfinished()
        finally:
            await store.aclose()

    return asyncio.run(look())


def slowly(seen: Seen, number: int) -> Reply:
    reply = numbered(seen, number)
    reply.first_pause = 0.1
    return reply


def reached(up: Upstream, calls: int) -> bool:
    return up.calls >= calls


@pytest.mark.parametrize(("seed", "distinct"), [(1, 300), (2, 300), (3, 150)])
def test_while_it_runs(folder: Path, up: Upstream, seed: int, distinct: int) -> None:
    """Where lines are the same, what the first one was answered holds for the others, killed or not."""
    up.script = slowly
    before, id = up.calls, ""
    lines = [chat_line(f"c{n}", f"Killed? {n % distinct}") for n in range(300)]
    for moment in sorted(Random(seed).sample(range(5, distinct - 20), 3)):
        with gateway(folder) as (served, alice):
            id = id or alice.start(lines).id
            until(partial(reached, up, before + moment), 60)
            served.stop(signal.SIGKILL)
        until(lambda: up.open == 0)
    with gateway(folder) as (served, alice):
        batch = alice.ended(id, 60)
        answers = alice.answers(batch)
        assert (batch.status, counts(batch), batch.error_file_id) == ("completed", (300, 300, 0), None)
    assert answers.keys() == {f"c{n}" for n in range(300)}
    assert len({text_in(answer) for answer in answers.values()}) >= distinct
    assert batch.usage is not None
    assert batch.usage.total_tokens == 300 * 18
    assert distinct <= up.calls - before <= distinct + 3 * IN_FLIGHT


@pytest.mark.parametrize("last", ["good", "bad"])
def test_while_it_is_validated(folder: Path, up: Upstream, last: str) -> None:
    """It is validated anew as a whole."""
    lines: list[Json] = [chat_line(f"c{n}", "The same?", padding="x" * 1_000) for n in range(5_000)]
    content = jsonl(lines) + (b"{" if last == "bad" else b"")
    before = up.calls
    with gateway(folder) as (served, alice):
        id = alice.start(content).id
        served.stop(signal.SIGKILL)
    assert [batch.state for batch in kept(folder)] == ["validating"]
    assert up.calls == before
    with gateway(folder) as (served, alice):
        batch = alice.ended(id, 60)
    if last == "good":
        assert (batch.status, counts(batch)) == ("completed", (5_000, 5_000, 0))
        assert up.calls - before == 1
    else:
        assert (batch.status, up.calls - before) == ("failed", 0)
        assert batch.errors is not None
        assert [fault.line for fault in batch.errors.data or []] == [5_001]


def test_while_it_is_cancelled(folder: Path, up: Upstream) -> None:
    up.script = replies(lambda content: None if int(content.rsplit(" ", 1)[1]) <= 50 else Reply([], first_pause=600))
    with gateway(folder) as (served, alice):
        id = alice.start(chat_lines("Cancelled?", 3_000)).id
        alice.done(id, 50)
        assert alice.client.batches.cancel(id).status == "cancelling"
        served.stop(signal.SIGKILL)
    assert [batch.state for batch in kept(folder)] == ["cancelling"]
    until(lambda: up.open == 0)
    before = up.calls
    with gateway(folder) as (served, alice):
        batch = alice.ended(id, 60)
        assert (batch.status, counts(batch)) == ("cancelled", (3_000, 50, 2_950))
        ids = alice.answers(batch).keys(), alice.failures(batch).keys()
    assert not ids[0] & ids[1]
    assert ids[0] | ids[1] == {f"c{n}" for n in range(1, 3_001)}
    assert up.calls == before


def test_while_it_is_validated_and_cancelled(folder: Path, up: Upstream) -> None:
    """Its lines are nobody's requests, so none has a result."""
    before = up.calls
    content = jsonl(chat_line(f"c{n}", "Both?", padding="x" * 1_000) for n in range(20_000))
    with gateway(folder) as (served, alice):
        id = alice.start(content).id
        assert alice.client.batches.cancel(id).status == "cancelling"
        served.stop(signal.SIGKILL)
    with gateway(folder) as (served, alice):
        batch = alice.ended(id, 60)
        assert (batch.status, counts(batch)) == ("cancelled", (0, 0, 0))
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert up.calls == before


def test_what_was_answered_is_on_the_disk(folder: Path, up: Upstream) -> None:
    """A file, its deletion, a batch: each is as it was said to be, whenever the end comes."""
    with gateway(folder) as (served, alice):
        deleted = alice.upload(b"{}").id
        alice.client.files.delete(deleted)
        file = alice.upload(b"x" * 700_000).id
        served.stop(signal.SIGKILL)
    with gateway(folder) as (served, alice):
        assert [found.id for found in alice.client.files.list()] == [file]
        assert alice.content(file) == b"x" * 700_000
        id = alice.start([chat_line("one", "Kept?")], metadata={"kept": "yes"}).id
        served.stop(signal.SIGKILL)
    with gateway(folder) as (served, alice):
        batch = alice.ended(id)
        assert (batch.status, counts(batch), batch.metadata) == ("completed", (1, 1, 0), {"kept": "yes"})
