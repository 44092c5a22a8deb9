"""A disk that is full: what cannot be kept is refused as a whole, and what was accepted goes on when there is room."""

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from tests.support.batches import chat_lines, counts, jsonl, lane, lane_config, text_in
from tests.support.process import Served, serve
from tests.support.traffic import until
from tests.support.upstream import Reply, Seen, Upstream, numbered

pytestmark = pytest.mark.slow


SOME, NONE = 24 * 1024, 1
"""Bytes that a file may have: the log still has room, or not even that."""

REFUSED = {"storage_full", "storage_unavailable"}
"""To SQLite a file that may not grow has failed, and is not on a full disk."""


@contextmanager
def full(served: Served, most: int = SOME) -> Iterator[None]:
    """No file of this gateway can grow beyond so many bytes. (The store's files are larger from the start.)"""
    pid, kind = served.process.pid, resource.RLIMIT_FSIZE
    soft, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, (soft, hard))


@pytest.fixture
def served(up: Upstream, tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "refrain.yaml").write_text(lane_config(up, tmp_path))
    with serve(tmp_path) as served:
        served.wait_ready()
        yield served


def test_uploads_and_batches_are_refused(served: Served) -> None:
    content = jsonl(chat_lines("Room?", 20_000))
    with lane(served.url) as alice:
        before = alice.upload(b"before")
        file = alice.upload(jsonl(chat_lines("Room?", 3)))
        with full(served):
            with pytest.raises(openai.InternalServerError) as raised:
                alice.upload(content)
            assert raised.value.code in REFUSED
            with pytest.raises(openai.InternalServerError) as raised:
                alice.client.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
            assert raised.value.code in REFUSED
            assert [found.id for found in alice.client.files.list()] == [file.id, before.id]
            assert alice.content(before.id) == b"before"
        assert alice.client.batches.list().data == []
        assert counts(alice.run(chat_lines("Room?", 3))) == (3, 3, 0)


@pytest.mark.parametrize("most", [SOME, NONE], ids=["for the store", "for the log too"])
def test_a_batch_goes_on_when_there_is_room(served: Served, up: Upstream, most: int) -> None:
    """Nothing that was answered is asked again: its result is kept in memory until then."""
    gate = threading.Event()

    def script(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.gates = {0: gate}
        return reply

    up.script = script
    calls = up.calls
    with lane(served.url) as alice:
        id = alice.start(chat_lines("Later?", 100)).id
        until(lambda: up.open == 32)
        with full(served, most):
            gate.set()
            until(lambda: up.open == 0)
            time.sleep(1)  # for what is done about answers that cannot be written
            assert counts(alice.get(id)) == (100, 0, 0)
            assert up.calls - calls == 32  # nobody is asked for more that there is no room for
        batch = alice.ended(id, 60)
        assert (batch.status, counts(batch)) == ("completed", (100, 100, 0))
        assert len({text_in(answer) for answer in alice.answers(batch).values()}) == 100
    assert up.calls - calls == 100
