"""The index as its callers see it: what is found, what is refused, what has to go."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.semantic.index import Index
from cache.semantic.index_arena import Vector
from cache.semantic.index_contexts import CONTEXT_OVERHEAD, row_price

D = 8
ROOMY = 1 << 20


def unit(*head: float) -> Vector:
    """A unit vector that begins in this direction."""
    vector = np.zeros(D, np.float32)
    vector[: len(head)] = head
    return vector / np.float32(np.linalg.norm(vector))


def test_nearest_first_with_cosines() -> None:
    index = Index(D, max_bytes=ROOMY)
    index.add(b"c", b"far", unit(0, 1))
    index.add(b"c", b"near", unit(3, 1))
    index.add(b"c", b"same", unit(1))
    index.add(b"c", b"opposite", unit(-1))
    found = index.search(b"c", unit(1), 3)
    assert [key for key, _ in found] == [b"same", b"near", b"far"]
    assert [cosine for _, cosine in found] == pytest.approx([1, 3 / 10**0.5, 0], abs=1e-6)
    assert index.search(b"c", unit(1), 100)[3:] == [(b"opposite", -1.0)]


def test_a_context_sees_its_own_only() -> None:
    index = Index(D, max_bytes=ROOMY)
    index.add(b"one", b"a", unit(1))
    index.add(b"two", b"b", unit(0, 1))
    assert index.search(b"two", unit(1), 5) == [(b"b", 0.0)]
    assert index.search(b"three", unit(1), 5) == []
    assert index.search(b"one", unit(1), 0) == []
    assert (index.size(b"one"), index.size(b"three"), len(index)) == (1, 0, 2)


def test_a_key_has_one_vector_in_one_context() -> None:
    index = Index(D, max_bytes=ROOMY)
    index.add(b"one", b"a", unit(1))
    index.add(b"two", b"a", unit(0, 1))
    assert index.search(b"one", unit(1), 5) == []
    assert index.search(b"two", unit(0, 1), 5) == [(b"a", 1.0)]
    index.add(b"two", b"a", unit(1))
    assert index.search(b"two", unit(1), 5) == [(b"a", 1.0)]
    assert (len(index), list(index.keys())) == (1, [b"a"])


def test_equal_vectors_are_all_found() -> None:
    index = Index(D, max_bytes=ROOMY)
    for number in range(50):
        index.add(b"c", b"%d" % number, unit(1, 1))
    found = index.search(b"c", unit(1, 1), 40)
    assert len({key for key, _ in found}) == 40
    assert [cosine for _, cosine in found] == pytest.approx([1.0] * 40, abs=1e-6)
    assert max(cosine for _, cosine in found) <= 1


def test_a_freed_row_serves_another_context() -> None:
    index = Index(D, max_bytes=ROOMY)
    index.add(b"one", b"a", unit(1))
    index.add(b"one", b"b", unit(0, 1))
    assert index.remove(b"a")
    assert not index.remove(b"a")
    index.add(b"two", b"c", unit(1))
    assert index.search(b"one", unit(1), 5) == [(b"b", 0.0)]
    assert index.search(b"two", unit(1), 5) == [(b"c", 1.0)]
    assert index.vector(b"a") is None


def test_drop() -> None:
    index = Index(D, max_bytes=ROOMY)
    for number in range(10):
        index.add(b"one", b"%d" % number, unit(1, number))
    index.add(b"two", b"kept", unit(1))
    assert index.drop(b"one") == 10
    assert index.drop(b"one") == 0
    assert list(index.keys()) == [b"kept"]
    assert index.search(b"one", unit(1), 5) == []
    index.add(b"one", b"3", unit(1))
    assert index.search(b"one", unit(1), 5) == [(b"3", 1.0)]


def test_the_vector_given_out_is_a_copy() -> None:
    index = Index(D, max_bytes=ROOMY)
    given = unit(1)
    index.add(b"c", b"a", given)
    given[:] = 0
    copy = index.vector(b"a")
    assert copy is not None
    assert copy.dtype == np.float32
    copy[:] = 0
    assert index.search(b"c", unit(1), 1) == [(b"a", 1.0)]


def test_keys_are_those_of_the_moment() -> None:
    index = Index(D, max_bytes=ROOMY)
    index.add(b"c", b"a", unit(1))
    keys = index.keys()
    index.add(b"c", b"b", unit(1))
    assert list(keys) == [b"a"]


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(D),
        np.full(D, np.nan),
        np.array([np.inf] + [0] * (D - 1)),
        np.array([1e300] + [0] * (D - 1)),
        np.array([0.9] + [0] * (D - 1)),
        np.array([1.0] + [0] * D),
        np.array([[1.0] + [0] * (D - 1)]),
        np.array([]),
    ],
)
def test_anything_but_a_unit_vector_is_refused(vector: Vector) -> None:
    index = Index(D, max_bytes=ROOMY)
    index.add(b"c", b"a", unit(1))
    with pytest.raises(ValueError, match="a vector of"):
        index.add(b"c", b"a", vector)
    with pytest.raises(ValueError, match="a vector of"):
        index.search(b"c", vector, 1)
    assert index.search(b"c", unit(1), 5) == [(b"a", 1.0)]


def test_float64_is_taken_as_float32() -> None:
    index = Index(D, max_bytes=ROOMY)
    index.add(b"c", b"a", unit(1, 2).astype(np.float64))
    assert index.search(b"c", unit(1, 2).astype(np.float64), 1)[0][1] == pytest.approx(1)


def test_no_room_for_a_single_vector() -> None:
    with pytest.raises(ValueError, match="no room"):
        Index(D, max_bytes=row_price(D))


def test_bytes_go_back_to_nothing() -> None:
    index = Index(D, max_bytes=ROOMY)
    for number in range(30):
        index.add(b"%d" % (number % 3), b"%d" % number, unit(1, number))
    assert index.bytes == 30 * row_price(D) + 3 * CONTEXT_OVERHEAD
    index.drop(b"0")
    for number in range(30):
        assert index.remove(b"%d" % number) is (number % 3 != 0)
    assert (index.bytes, len(index)) == (0, 0)


OPERATION = st.tuples(st.sampled_from("aars"), st.integers(0, 1), st.integers(0, 11))


@given(st.lists(OPERATION, max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_least_recently_added_or_found_go(operations: list[tuple[str, int, int]]) -> None:
    room = 6 * row_price(D) + 2 * CONTEXT_OVERHEAD
    index = Index(D, max_bytes=room)
    known: OrderedDict[bytes, bytes] = OrderedDict()  # key -> context, the least recently used first
    for kind, place, number in operations:
        context, key = b"context %d" % place, b"key %d" % number
        if kind == "a":
            known.pop(key, None)
            known[key] = context
            expected = []
            while len(known) * row_price(D) + len(set(known.values())) * CONTEXT_OVERHEAD > room:
                expected.append(known.popitem(last=False)[0])
            assert index.add(context, key, unit(1, number)) == expected
        elif kind == "r":
            assert index.remove(key) is (known.pop(key, None) is not None)
        else:
            for found, _ in index.search(context, unit(1, number), 2):
                assert known[found] == context
                known.move_to_end(found)
        assert set(index.keys()) == set(known)
        assert index.bytes <= room
