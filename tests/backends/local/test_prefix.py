"""The prefix cache against a dict of paths, each with what its last block must hold."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from backends.local.kv import Budget, KvShape, SequenceKv
from backends.local.prefix import BLOCK, PrefixCache

SHAPE = KvShape(layers=2, heads=1, key_dim=1, value_dim=2, dtype=torch.float64, device=torch.device("cpu"))
TOKENS = 640
SALTS = st.sampled_from(["", "a", "b"])
# Sequences that share beginnings: blocks of one repeated token, and a rest that is no whole block.
TEXTS = st.builds(
    lambda blocks, rest: [token for token in blocks for _ in range(BLOCK)] + [9] * rest,
    st.lists(st.integers(1, 3), max_size=5),
    st.integers(0, BLOCK - 1),
)

Path = tuple[str, tuple[int, ...]]


def content(salt: str, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as a model would make them: each token's depend on the salt's text and all tokens before it."""
    sums = [float(hash((len(salt) + sum(map(ord, salt)), *tokens[: end + 1])) % 2**40) for end in range(len(tokens))]
    row = torch.tensor(sums, dtype=torch.float64)
    return row.expand(2, 1, -1)[..., None], torch.stack([row + 1, row + 2], dim=-1).expand(2, 1, -1, 2)


def filled(budget: Budget, salt: str, tokens: Sequence[int]) -> SequenceKv:
    kv = SequenceKv(SHAPE, budget)
    kv.grow(len(tokens))
    kv.length = len(tokens)
    kv.keys[:, :, : kv.length], kv.values[:, :, : kv.length] = content(salt, tokens)
    return kv


class Cache(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(TOKENS)
        self.cache = PrefixCache(self.budget)
        self.held: list[SequenceKv] = []
        self.used: dict[Path, int] = {}  # when each path was used last
        self.clock = itertools.count()

    def touch(self, salt: str, tokens: Sequence[int]) -> int:
        """The blocks that are known; they count as used now, all of them."""
        now, known = next(self.clock), 0
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            path = salt, tuple(tokens[:end])
            if path not in self.used:
                break
            self.used[path] = now
            known += 1
        return known

    def make_room(self, tokens: int, pinned: Path | None = None) -> bool:
        """As the cache should: the least recently used of those nothing hangs on, and none where it would not do."""
        free = TOKENS - sum(kv.capacity for kv in self.held) - len(self.used) * BLOCK
        spared = 0 if pinned is None else len(pinned[1]) // BLOCK
        if free + (len(self.used) - spared) * BLOCK < tokens:
            return False
        while free < tokens:
            leaves = [path for path in self.used if path != pinned and not self.has_children(path)]
            del self.used[min(leaves, key=lambda path: self.used[path])]
            free += BLOCK
        return True

    def has_children(self, path: Path) -> bool:
        salt, tokens = path
        return any(
            other[0] == salt and len(other[1]) == len(tokens) + BLOCK and other[1][: len(tokens)] == tokens
            for other in self.used
        )

    def hold(self, kv: SequenceKv) -> None:
        self.held.append(kv)

    @rule(salt=SALTS, tokens=TEXTS, running=st.booleans())
    def keep(self, salt: str, tokens: list[int], running: bool) -> None:
        fits = self.make_room(SequenceKv(SHAPE, self.budget).wanted(len(tokens)))
        assert self.cache.make_room(SequenceKv(SHAPE, self.budget).wanted(len(tokens))) is fits
        if not fits:
            return
        kv = filled(self.budget, salt, tokens)
        self.hold(kv)
        self.cache.keep(salt, tokens, kv)
        known = self.touch(salt, tokens)
        for end in range((known + 1) * BLOCK, len(tokens) + 1, BLOCK):
            if not self.make_room(BLOCK, pinned=(salt, tuple(tokens[: end - BLOCK]))):
                break
            self.used[salt, tuple(tokens[:end])] = next(self.clock)
            self.touch(salt, tokens[:end])
        kv.keys.zero_()  # what the cache has is its own
        kv.values.zero_()
        if not running:
            self.held.pop().release()

    @rule(salt=SALTS, tokens=TEXTS.filter(bool), running=st.booleans())
    def find(self, salt: str, tokens: list[int], running: bool) -> None:
        kv = SequenceKv(SHAPE, self.budget)
        fits = self.make_room(kv.wanted(len(tokens)))
        assert self.cache.make_room(kv.wanted(len(tokens))) is fits
        if not fits:
            return
        kv.grow(len(tokens))
        self.hold(kv)
        known = self.touch(salt, tokens[:-1]) * BLOCK
        assert self.cache.known(salt, tokens) == known
        assert self.cache.fill(salt, tokens, kv) == kv.length == known < len(tokens)
        keys, values = content(salt, tokens[:known])
        assert torch.equal(kv.keys[:, :, :known], keys)
        assert torch.equal(kv.values[:, :, :known], values)
        if not running:
            self.held.pop().release()

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        self.held.pop(which % len(self.held)).release()

    @rule(tokens=st.integers(0, TOKENS + 1))
    def demand(self, tokens: int) -> None:
        assert self.cache.make_room(tokens) is self.make_room(tokens)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.used.clear()

    @invariant()
    def every_token_is_counted(self) -> None:
        assert self.cache.blocks == len(self.used)
        assert self.budget.used == sum(kv.capacity for kv in self.held) + self.cache.blocks * BLOCK
        assert 0 <= self.budget.used <= self.budget.tokens

    def teardown(self) -> None:
        for salt, tokens in self.used:  # all that the model has is there
            assert self.cache.known(salt, [*tokens, 0]) == len(tokens)
        for kv in self.held:
            kv.release()
        self.cache.clear()
        assert (self.budget.used, self.cache.blocks) == (0, 0)


def test_random_calls() -> None:
    run_state_machine_as_test(
        Cache, settings=settings(max_examples=40, stateful_step_count=30, derandomize=True, deadline=None)
    )


@pytest.mark.slow
def test_many_random_calls() -> None:
    run_state_machine_as_test(
        Cache, settings=settings(max_examples=400, stateful_step_count=50, derandomize=True, deadline=None)
    )


def kept(cache: PrefixCache, budget: Budget, salt: str, tokens: Sequence[int]) -> None:
    kv = filled(budget, salt, tokens)
    cache.keep(salt, tokens, kv)
    kv.release()


def test_what_is_used_alone_outlives_what_once_followed_it() -> None:
    budget = Budget(128 + 3 * BLOCK)
    cache = PrefixCache(budget)
    shared, longer, other = [1] * BLOCK, [1] * BLOCK + [2] * BLOCK, [3] * BLOCK
    kept(cache, budget, "", longer)
    kept(cache, budget, "", other)
    assert cache.known("", [*shared, 9]) == BLOCK  # the latest use of all
    assert cache.make_room(128 + 2 * BLOCK)
    assert [cache.known("", [*tokens, 9]) for tokens in (shared, longer, other)] == [BLOCK, BLOCK, 0]


def test_a_sequence_longer_than_the_room_keeps_its_beginning() -> None:
    budget = Budget(256 + 3 * BLOCK)
    cache = PrefixCache(budget)
    tokens = [token for token in range(10) for _ in range(BLOCK)]
    kept(cache, budget, "", tokens)
    assert cache.known("", [*tokens, 9]) == 3 * BLOCK
    assert cache.blocks == 3


def test_room_that_cannot_be_made_costs_nothing() -> None:
    budget = Budget(1024)
    cache = PrefixCache(budget)
    kept(cache, budget, "", [1] * 64)
    running = filled(budget, "", [2] * 512)
    assert not cache.make_room(1024 - 512 + 1)
    assert cache.known("", [1] * 65) == 64
    running.release()


def test_a_block_does_not_hold_the_buffer_it_came_from() -> None:
    """A slice of a buffer of one layer and one head is contiguous as it is."""
    budget = Budget(4096)
    cache = PrefixCache(budget)
    shape = KvShape(layers=1, heads=1, key_dim=1, value_dim=1, dtype=torch.float32, device=torch.device("cpu"))
    kv = SequenceKv(shape, budget)
    kv.grow(1000)
    kv.keys.zero_()
    kv.values.zero_()
    kv.length = 1000
    cache.keep("", [1] * BLOCK, kv)
    kv.keys.fill_(7)
    kv.values.fill_(7)
    again = SequenceKv(shape, budget)
    again.grow(BLOCK + 1)
    assert cache.fill("", [1] * (BLOCK + 1), again) == BLOCK
    assert float(again.keys[:, :, :BLOCK].abs().sum()) == 0


def test_salts_with_nothing_to_keep_leave_nothing() -> None:
    budget = Budget(4096)
    cache = PrefixCache(budget)
    for number in range(100):
        kept(cache, budget, f"salt {number}", [1] * (BLOCK - 1))
    assert len(cache._root.children) == 0
