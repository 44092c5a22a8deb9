"""Large contexts, with the sizes lowered so that a few dozen vectors pass through every structure."""

import time
from collections.abc import Iterator

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.semantic.index import Index
from cache.semantic.index_arena import Vector
from cache.semantic.index_contexts import row_price
from cache.semantic.index_large import Large, rows_of
from cache.semantic.index_layers import Kind, Layer

D = 16
ROOMY = 1 << 22
POOL = np.random.default_rng(5).standard_normal((120, D)).astype(np.float32)
POOL /= np.linalg.norm(POOL, axis=1, keepdims=True)
POOL[110:] = POOL[:10]  # some are equal


@pytest.fixture(autouse=True, scope="module")
def _small_sizes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cache.semantic.index_large.TAIL", 4)
        patch.setattr("cache.semantic.index_contexts.TAIL", 4)
        patch.setattr("cache.semantic.index_large.BASE_STEP", 32)
        patch.setattr("cache.semantic.index_large.GRAPH_FROM", 64)
        patch.setattr("cache.semantic.index_layers.BATCH", 4)
        yield


def settle(index: Index) -> None:
    until = time.monotonic() + 30
    while not index.settled():
        assert time.monotonic() < until
        time.sleep(0.001)


def large(index: Index, context: bytes) -> Large:
    with index._lock:
        entry = index._contexts.get(context)
    assert isinstance(entry, Large)
    return entry


def sizes(index: Index, context: bytes) -> tuple[int, int, int]:
    """Rows held in the tail, the flat layer and the base."""
    entry = large(index, context)
    flat, base = (0 if layer is None else len(layer.rows) for layer in (entry.flat, entry.base))
    return len(rows_of(entry.tail)), flat, base


def base(index: Index) -> Layer:
    layer = large(index, b"c").base
    assert layer is not None
    return layer


def check(index: Index, known: dict[bytes, tuple[bytes, int]], context: bytes, query: Vector, k: int) -> None:
    """What a search finds is what looking at every vector finds."""
    every = {key: float(POOL[number] @ query) for key, (place, number) in known.items() if place == context}
    found = index.search(context, query, k)
    assert len({key for key, _ in found}) == len(found)
    assert [cosine for _, cosine in found] == pytest.approx(sorted(every.values(), reverse=True)[:k], abs=1e-5)
    assert [cosine for _, cosine in found] == pytest.approx([every[key] for key, _ in found], abs=1e-5)


CONTEXTS = st.sampled_from([b"one", b"one", b"one", b"two", b"three"])
NUMBERS = st.integers(0, 119)
KEYS = st.integers(0, 99)
OPERATION = st.one_of(
    st.tuples(st.just("add"), CONTEXTS, st.lists(st.tuples(KEYS, NUMBERS), min_size=1, max_size=40)),
    st.tuples(st.just("remove"), CONTEXTS, st.lists(st.tuples(KEYS, KEYS), min_size=1, max_size=40)),
    st.tuples(st.just("search"), CONTEXTS, st.lists(st.tuples(NUMBERS, st.integers(1, 100)), min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["settle", "settle", "drop"]), CONTEXTS, st.just([])),
)


@given(st.lists(OPERATION, min_size=5, max_size=40))
@settings(max_examples=60, deadline=None)
def test_as_if_every_vector_were_looked_at(operations: list[tuple[str, bytes, list[tuple[int, int]]]]) -> None:
    index = Index(D, max_bytes=ROOMY)
    known: dict[bytes, tuple[bytes, int]] = {}  # key -> context, vector
    try:
        for kind, context, arguments in operations:
            for first, second in arguments:
                key = b"%d" % first
                if kind == "add":
                    assert index.add(context, key, POOL[second]) == []
                    known[key] = context, second
                elif kind == "remove":
                    assert index.remove(key) is (known.pop(key, None) is not None)
                else:
                    check(index, known, context, POOL[first], second)
            if kind == "settle":
                settle(index)
            elif kind == "drop":
                theirs = [key for key, (place, _) in known.items() if place == context]
                assert index.drop(context) == len(theirs)
                known = {key: value for key, value in known.items() if key not in theirs}
            check(index, known, context, POOL[0], 4)
            assert set(index.keys()) == set(known)
            assert index.bytes >= len(known) * row_price(D)
            assert index.size(context) == sum(place == context for place, _ in known.values())
        for key in list(known):
            index.remove(key)
        assert index.bytes == 0
    finally:
        index.close()


def filled(count: int) -> Index:
    index = Index(D, max_bytes=ROOMY)
    for number in range(count):
        index.add(b"c", b"%d" % number, POOL[number])
        settle(index)
    return index


def test_rows_move_from_the_tail_to_the_flat_layer_to_the_base() -> None:
    assert sizes(filled(6), b"c") == (2, 4, 0)
    scan = filled(39)
    assert sizes(scan, b"c") == (3, 4, 32)
    assert base(scan).kind is Kind.SCAN
    graph = filled(64)
    assert sizes(graph, b"c") == (0, 0, 64)
    assert base(graph).kind is Kind.GRAPH
    for index, count in ((scan, 39), (graph, 64)):
        for number in range(count):
            assert index.search(b"c", POOL[number], 2)[0] == (b"%d" % number, pytest.approx(1))


def test_layers_are_made_anew_when_over_a_quarter_is_dead() -> None:
    index = filled(64)
    for number in range(16):
        index.remove(b"%d" % number)
    settle(index)
    assert sizes(index, b"c") == (0, 0, 64)
    index.remove(b"16")
    settle(index)
    assert sizes(index, b"c") == (0, 0, 47)
    assert base(index).kind is Kind.SCAN  # too few for a graph
    for number in range(17, 61):
        index.remove(b"%d" % number)
        settle(index)
    assert sizes(index, b"c") == (0, 3, 0)  # too few for a base
    assert [key for key, _ in index.search(b"c", POOL[62], 1)] == [b"62"]


def test_a_copy_keeps_what_it_had() -> None:
    index = filled(64)
    before = base(index)
    for number in range(5):
        index.remove(b"%d" % number)
    for number in range(64, 96):
        index.add(b"c", b"%d" % number, POOL[number])
        settle(index)
    after = base(index)
    assert (after.scale, after.trained) == (before.scale, 64)
    assert len(after.rows) == 96
    assert np.count_nonzero(after.rows == 0) == 5  # the dead ones
    for number in range(5, 96):
        assert [key for key, _ in index.search(b"c", POOL[number], 1)] == [b"%d" % number]


def test_a_scan_is_trained_anew_when_it_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache.semantic.index_large.GRAPH_FROM", 1000)
    index = filled(32)
    trained = [base(index).trained]
    for number in range(32, 96):
        index.add(b"c", b"%d" % number, POOL[number])
        settle(index)
        trained.append(base(index).trained)
    assert sorted(set(trained)) == [32, 64]
    assert sizes(index, b"c") == (0, 0, 96)


@pytest.mark.parametrize("count", [15, 36, 64])
def test_a_crowd_of_dead_rows_hides_nobody(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a layer proposes at first is dead."""
    monkeypatch.setattr("cache.semantic.index_layers.MIN_PROPOSALS", 4)
    monkeypatch.setattr("cache.semantic.index_layers.OVERSAMPLE", 1)
    index = filled(count)
    index.close()  # nothing is tidied up any more
    query = POOL[0]
    order = np.argsort(-(POOL[:count] @ query))
    for number in order[:-3].tolist():
        index.remove(b"%d" % number)
    assert [key for key, _ in index.search(b"c", query, 3)] == [b"%d" % number for number in order[-3:]]


def test_the_tail_is_searched_while_nothing_is_built() -> None:
    index = Index(D, max_bytes=ROOMY)
    index.close()
    for number in range(80):
        index.add(b"c", b"%d" % number, POOL[number])
    assert sizes(index, b"c") == (80, 0, 0)
    assert [key for key, _ in index.search(b"c", POOL[70], 1)] == [b"70"]


def test_a_failure_leaves_the_former_structure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError

    index = filled(7)
    monkeypatch.setattr(faiss, "clone_index", out_of_memory)
    for number in range(7, 20):
        index.add(b"c", b"%d" % number, POOL[number])
    settle(index)
    assert sizes(index, b"c") == (16, 4, 0)
    assert [key for key, _ in index.search(b"c", POOL[19], 1)] == [b"19"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_bytes_bound_large_contexts() -> None:
    index = Index(D, max_bytes=20_000)
    gone = []
    for number in range(80):
        gone += index.add(b"c", b"%d" % number, POOL[number])
        assert index.bytes <= 20_000
    assert gone == [b"%d" % number for number in range(len(gone))]
    assert len(index) == 80 - len(gone) == index.size(b"c")
    settle(index)
    assert [key for key, _ in index.search(b"c", POOL[79], 1)] == [b"79"]
    index.close()
