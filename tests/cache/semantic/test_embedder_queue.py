"""What waits for the model, and how it is said to its process."""

import numpy as np
import pytest

from cache.semantic.embedder import EmbedderError
from cache.semantic.embedder_queue import Full, TextQueue
from cache.semantic.embedder_wire import HEAD, Broken, Embed, frame, request, size


async def test_what_waits_is_one_batch_with_each_text_once() -> None:
    queue = TextQueue(bound=100)
    rows = [queue.add([f"{i % 40}"])[0] for i in range(50)]
    assert len(queue) == 40
    first = await queue.take(32)
    assert first == [str(i) for i in range(32)]
    rows += queue.add(["5"])  # it runs already
    answer(queue, first)
    second = await queue.take(32)
    assert second == [str(i) for i in range(32, 40)]
    answer(queue, second)
    assert [int((await row)[0]) for row in rows] == [*(i % 40 for i in range(50)), 5]


def answer(queue: TextQueue, texts: list[str]) -> None:
    queue.done([np.array([float(text)]) for text in texts])


async def test_texts_without_callers_are_not_run_and_take_no_place() -> None:
    queue = TextQueue(bound=2)
    a, b = queue.add(["a", "b"])
    with pytest.raises(Full):
        queue.add(["c"])
    a.cancel()
    [c] = queue.add(["c"])
    assert await queue.take(32) == ["b", "c"]
    queue.fail(lambda: EmbedderError("unavailable"))
    for row in (b, c):
        with pytest.raises(EmbedderError):
            await row
    assert len(queue) == 0


def test_frames() -> None:
    data = frame(Embed(["é", ""]))
    assert size(data[:HEAD]) == len(data) - HEAD
    assert request(data[HEAD:]).texts == ["é", ""]
    with pytest.raises(Broken):
        size(b"\xff\xff\xff\xff")
    for broken in (b"", b"\x80", data[HEAD:-1], frame(Embed([]))[HEAD:] + b"x"):
        with pytest.raises(Broken):
            request(broken)
