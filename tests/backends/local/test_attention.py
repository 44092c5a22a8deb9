"""Packed attention against plain masked attention over each sequence alone, in float64."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.local.attention import Batch, Segment
from backends.local.kv import Budget, KvShape, SequenceKv

CPU = torch.device("cpu")
LAYERS = 2


def plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """(heads, tokens, dim) each, of a whole sequence."""
    group = query.shape[0] // key.shape[0]
    query, key, value = (
        query.double(),
        key.double().repeat_interleave(group, 0),
        value.double().repeat_interleave(group, 0),
    )
    scores = query @ key.transpose(1, 2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(query.shape[1])
    seen = place[None, :] <= place[:, None]
    if window is not None:
        seen &= place[None, :] > place[:, None] - window
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value


class Whole:
    """Queries, keys and values of a whole sequence, by layer, and the buffer that takes them in pieces."""

    def __init__(self, length: int, heads: int, shape: KvShape, budget: Budget, source: torch.Generator) -> None:
        def normal(rows: int, dim: int) -> torch.Tensor:
            return torch.randn(LAYERS, rows, length, dim, generator=source)

        self.queries = normal(heads, shape.key_dim)
        self.keys, self.values = normal(shape.heads, shape.key_dim), normal(shape.heads, shape.value_dim)
        self.kv = SequenceKv(shape, budget)
        self.outputs = torch.zeros(LAYERS, heads, length, shape.value_dim)


def attend(wholes: list[Whole], sizes: list[int], **options: float | None) -> None:
    """One forward pass over the next tokens of each."""
    segments = []
    for whole, size in zip(wholes, sizes, strict=True):
        whole.kv.grow(whole.kv.length + size)
        segments.append(Segment([0] * size, whole.kv))
    batch = Batch(segments)
    parts = [slice(whole.kv.length, whole.kv.length + size) for whole, size in zip(wholes, sizes, strict=True)]
    for layer in range(LAYERS):
        packed = [
            torch.cat([getattr(whole, name)[layer][:, part] for whole, part in zip(wholes, parts, strict=True)], dim=1)
            for name in ("queries", "keys", "values")
        ]
        output = batch.attend(layer, *(tensor.unsqueeze(0) for tensor in packed), **options)  # type: ignore[arg-type]
        assert output.shape == (1, sum(sizes), packed[0].shape[0], packed[2].shape[2])
        pieces = output[0].transpose(0, 1).split(sizes, dim=1)
        for whole, part, piece in zip(wholes, parts, pieces, strict=True):
            whole.outputs[layer][:, part] = piece
    for whole, size in zip(wholes, sizes, strict=True):
        whole.kv.length += size


@settings(max_examples=50, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**30),
    key_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 4]),
    scaling=st.sampled_from([None, 0.3]),
    window=st.sampled_from([None, 1, 2, 5, 17, 64]),
    softcap=st.sampled_from([None, None, 3.0]),
)
def test_pieces_of_many_sequences(
    seed: int, key_heads: int, group: int, scaling: float | None, window: int | None, softcap: float | None
) -> None:
    chance, source = random.Random(seed), torch.Generator().manual_seed(seed)
    shape = KvShape(LAYERS, key_heads, key_dim=8, value_dim=6, dtype=torch.float32, device=CPU)
    wholes = [
        Whole(chance.choice([1, 2, 7, 40, 130]), group * key_heads, shape, Budget(10**6), source)
        for _ in range(chance.randint(1, 5))
    ]
    while unfinished := [whole for whole in wholes if whole.kv.length < whole.queries.shape[2]]:
        part = chance.sample(unfinished, chance.randint(1, len(unfinished)))
        sizes = [min(chance.choice([1, 1, 3, 16, 64]), whole.queries.shape[2] - whole.kv.length) for whole in part]
        attend(part, sizes, scaling=scaling, window=window, softcap=softcap)
    for whole in wholes:
        for layer in range(LAYERS):
            expected = plain(whole.queries[layer], whole.keys[layer], whole.values[layer], scaling, window, softcap)
            torch.testing.assert_close(whole.outputs[layer].double(), expected, atol=1e-5, rtol=1e-4)
        length = whole.kv.length
        torch.testing.assert_close(whole.kv.keys[:, :, :length], whole.keys, atol=0, rtol=0)
        torch.testing.assert_close(whole.kv.values[:, :, :length], whole.values, atol=0, rtol=0)


def test_layers_may_have_windows_of_their_own() -> None:
    """As Gemma's do, every other one."""
    shape = KvShape(LAYERS, 1, key_dim=8, value_dim=8, dtype=torch.float32, device=CPU)
    whole = Whole(50, 2, shape, Budget(1000), torch.Generator().manual_seed(0))
    windows = [None, 7]
    for size in (20, 29, 1):
        whole.kv.grow(50)
        batch, part = Batch([Segment([0] * size, whole.kv)]), slice(whole.kv.length, whole.kv.length + size)
        for layer, window in enumerate(windows):
            tensors = (tensor[layer][None, :, part] for tensor in (whole.queries, whole.keys, whole.values))
            output = batch.attend(layer, *tensors, scaling=None, window=window, softcap=None)
            whole.outputs[layer][:, part] = output[0].transpose(0, 1)
        whole.kv.length += size
    for layer, window in enumerate(windows):
        expected = plain(whole.queries[layer], whole.keys[layer], whole.values[layer], None, window, None)
        torch.testing.assert_close(whole.outputs[layer].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_what_stands_in_the_rest_of_a_buffer_is_not_seen(softcap: float | None) -> None:
    shape = KvShape(LAYERS, 1, key_dim=8, value_dim=8, dtype=torch.float32, device=CPU)
    whole = Whole(20, 1, shape, Budget(1000), torch.Generator().manual_seed(0))
    whole.kv.grow(100)
    whole.kv.keys.fill_(torch.nan)
    whole.kv.values.fill_(torch.nan)
    for size in (5, 1, 14):
        attend([whole], [size], scaling=None, window=None, softcap=softcap)
    assert not whole.outputs.isnan().any()
