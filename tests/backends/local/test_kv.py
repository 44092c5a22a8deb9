"""The buffers of running sequences and the budget that they take from."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.local.kv import GROWTH, Budget, KvShape, SequenceKv

SHAPE = KvShape(layers=3, heads=2, key_dim=4, value_dim=5, dtype=torch.float32, device=torch.device("cpu"))


def test_the_bytes_of_a_token() -> None:
    assert SHAPE.token_bytes == 3 * 2 * (4 + 5) * 4
    keys, values = SHAPE.empty(10)
    assert keys.nbytes + values.nbytes == 10 * SHAPE.token_bytes


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 500), max_size=12))
def test_growing_keeps_the_content_and_the_count(lengths: list[int]) -> None:
    budget = Budget(100_000)
    kv, other = SequenceKv(SHAPE, budget), SequenceKv(SHAPE, budget)
    other.grow(1)
    written = torch.empty(3, 2, 0, 4), torch.empty(3, 2, 0, 5)
    for length in lengths:
        wanted, before = kv.wanted(length), budget.used
        kv.grow(length)
        assert budget.used == before + wanted
        assert budget.free == budget.tokens - budget.used
        assert kv.capacity >= length
        assert kv.capacity % GROWTH == 0
        assert kv.wanted(length) == kv.wanted(kv.capacity) == 0
        assert kv.wanted(kv.capacity + 1) == GROWTH
        if length > kv.length:
            more = torch.randn(3, 2, length - kv.length, 4), torch.randn(3, 2, length - kv.length, 5)
            kv.keys[:, :, kv.length : length], kv.values[:, :, kv.length : length] = more
            written = torch.cat([written[0], more[0]], 2), torch.cat([written[1], more[1]], 2)
            kv.length = length
        assert torch.equal(kv.keys[:, :, : kv.length], written[0])
        assert torch.equal(kv.values[:, :, : kv.length], written[1])
    kv.release()
    kv.release()
    assert (kv.length, kv.capacity, budget.used) == (0, 0, other.capacity)
    other.release()
    assert budget.used == 0


def test_it_can_be_used_again_after_its_release() -> None:
    budget = Budget(1000)
    kv = SequenceKv(SHAPE, budget)
    kv.grow(200)
    kv.release()
    kv.grow(100)
    assert (kv.capacity, budget.used) == (GROWTH, GROWTH)
