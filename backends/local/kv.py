"""The memory of keys and values: how much there is, and one buffer for each sequence that is running.

On the CPU a running sequence has its keys and values side by side, so that attention reads them without an index; what
the prefix cache knows is copied in (1,000 tokens: a few milliseconds, 2 % of what computing them costs). Both live in
one budget, counted in tokens.
"""

from dataclasses import dataclass

import torch

GROWTH = 128
"""Tokens by which a buffer grows. Growing copies the buffer: a hundredth of what the steps in between cost."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token takes. All layers are alike; keys and values may differ in their last dimension."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        return self.layers * self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize

    def empty(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, (layers, heads, tokens, dim) each, with no content yet."""
        shape = (self.layers, self.heads, tokens)
        return (
            torch.empty(*shape, self.key_dim, dtype=self.dtype, device=self.device),
            torch.empty(*shape, self.value_dim, dtype=self.dtype, device=self.device),
        )


class Budget:
    """Tokens that may be held at once, by sequences and by the prefix cache together."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.used = 0

    @property
    def free(self) -> int:
        return self.tokens - self.used


class SequenceKv:
    """The keys and values of one sequence. What it holds is taken from the budget until `release`."""

    def __init__(self, shape: KvShape, budget: Budget) -> None:
        self._shape = shape
        self._budget = budget
        self.keys, self.values = shape.empty(0)
        self.length = 0
        """Tokens whose keys and values are there."""

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def wanted(self, length: int) -> int:
        """Tokens of the budget that holding `length` tokens would take beyond those it has."""
        return max(0, -(-length // GROWTH) * GROWTH - self.capacity)

    def grow(self, length: int) -> None:
        """Make room for `length` tokens. The caller has seen to it that the budget has `wanted(length)`."""
        more = self.wanted(length)
        if more == 0:
            return
        keys, values = self._shape.empty(self.capacity + more)
        keys[:, :, : self.length] = self.keys[:, :, : self.length]
        values[:, :, : self.length] = self.values[:, :, : self.length]
        self.keys, self.values = keys, values
        self._budget.used += more

    def release(self) -> None:
        """Give everything back. Harmless when repeated."""
        self._budget.used -= self.capacity
        self.keys, self.values = self._shape.empty(0)
        self.length = 0
