"""Threads that add, remove, drop and search at once: nobody is shown another context's vector, or a wrong cosine."""

import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from cache.semantic.index import Index

D = 16
KEYS = 300
SECONDS = 1.5


@pytest.fixture(autouse=True)
def _hurry() -> Iterator[None]:
    """Small sizes, so that layers are made all the time, and threads that take turns often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cache.semantic.index_large.TAIL", 20)
        patch.setattr("cache.semantic.index_contexts.TAIL", 20)
        patch.setattr("cache.semantic.index_large.BASE_STEP", 50)
        patch.setattr("cache.semantic.index_large.GRAPH_FROM", 150)
        yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("room", [1 << 22, 60_000])
def test_adding_removing_dropping_and_searching_at_once(room: int) -> None:
    vectors = np.random.default_rng(3).standard_normal((KEYS, D)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = Index(D, max_bytes=room)
    end = time.monotonic() + SECONDS
    wrong: list[object] = []
    searches = [0] * 2

    def change(seed: int) -> None:
        random = np.random.default_rng(seed)
        while time.monotonic() < end:
            number, place = int(random.integers(KEYS)), int(random.integers(2))
            what = random.random()
            if what < 0.7:
                index.add(b"%d" % place, b"%d/%d" % (place, number), vectors[number])
            elif what < 0.999:
                index.remove(b"%d/%d" % (place, number))
            else:
                index.drop(b"%d" % place)

    def search(seed: int) -> None:
        random = np.random.default_rng(seed)
        while time.monotonic() < end:
            query, place = vectors[int(random.integers(KEYS))], int(random.integers(2))
            found = index.search(b"%d" % place, query, 10)
            searches[place] += bool(found)
            for key, cosine in found:
                theirs, number = map(int, key.split(b"/"))
                if theirs != place or abs(float(vectors[number] @ query) - cosine) > 1e-5:
                    wrong.append((place, key, cosine))

    def guarded(work: object, seed: int) -> None:
        try:
            work(seed)  # type: ignore[operator]
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(work, seed)) for seed in range(3) for work in (change, search)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    index.close()
    assert wrong == []
    assert min(searches) > 50
    index.add(b"0", b"0/0", vectors[0])  # a layer placed at the very end may have made it too much
    assert 0 < index.bytes <= room
    assert len(index) == index.size(b"0") + index.size(b"1")
    for place in (b"0", b"1"):
        assert len(index.search(place, vectors[0], KEYS)) == index.size(place)
    for place in (b"0", b"1"):
        index.drop(place)
    assert (index.bytes, len(index)) == (0, 0)
