"""The prefix cache: keys and values of prompts that were computed, in blocks, found again by the tokens themselves.

A tree. Below the root there is a node for each salt, below that a path spells tokens, one block of them per node, and a
node's keys and values are valid only after that very path. Blocks are looked up by their tokens, so a match is a
comparison of tokens and never of a digest alone; and nothing leads from one salt to another.

A node is referred to by its children; one that has none may go, the least recently used first. To use a node is to use
all that lead to it. One thread uses all of this.
"""

import heapq
import itertools
from collections.abc import Sequence

import torch

from backends.local.kv import Budget, SequenceKv

BLOCK = 16
"""Tokens of a block. What is shared beyond the last whole block is computed again."""

Key = str | tuple[int, ...]
"""What leads to a node from its parent: a salt, or the tokens of a block."""


class _Node:
    __slots__ = ("block", "children", "key", "parent", "used")

    def __init__(self, parent: "_Node | None", key: Key, block: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        """Keys and values, (layers, heads, BLOCK, dim) each; None for the root and the salts."""
        self.children: dict[Key, _Node] = {}
        self.used = 0


class PrefixCache:
    """Shares `budget` with the running sequences, which come first: it takes only what they leave."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._root = _Node(None, "", None)
        self._now = 0  # counts the uses
        self._entries = itertools.count()  # of two with the same use the older one first
        # Nodes without children by their last use, and entries that are out of date: those are skipped.
        self._idle: list[tuple[int, int, _Node]] = []
        self.blocks = 0

    @property
    def available(self) -> int:
        """Tokens of the budget that are free, or would be without this cache."""
        return self._budget.free + self.blocks * BLOCK

    def known(self, salt: str, tokens: Sequence[int]) -> int:
        """How many tokens `fill` would find. They count as used."""
        return len(self._match(salt, tokens[: len(tokens) - 1])) * BLOCK

    def fill(self, salt: str, tokens: Sequence[int], kv: SequenceKv) -> int:
        """Copy what is known of a beginning of `tokens` into `kv`, which has room for it; how many tokens that were.
        At least one token is left to be computed, since its scores are wanted."""
        path = self._match(salt, tokens[: len(tokens) - 1])
        for number, node in enumerate(path):
            assert node.block is not None
            part = slice(number * BLOCK, (number + 1) * BLOCK)
            kv.keys[:, :, part], kv.values[:, :, part] = node.block
        kv.length = len(path) * BLOCK
        return kv.length

    def keep(self, salt: str, tokens: Sequence[int], kv: SequenceKv) -> None:
        """Remember the whole blocks of `tokens`, whose keys and values `kv` has. Less used ones make room; where that
        is not enough, the rest is not remembered."""
        path = self._match(salt, tokens)
        node = path[-1] if path else self._root.children.get(salt)
        for start in range(len(path) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
            if not self._drop_until(BLOCK):
                return
            part = slice(start, start + BLOCK)
            try:
                block = kv.keys[:, :, part].clone(), kv.values[:, :, part].clone()
            except (MemoryError, RuntimeError):  # the system has no memory: nothing is lost by not remembering
                return
            if node is None:
                node = self._add(self._root, salt, None)
            node = self._add(node, tuple(tokens[part]), block)

    def make_room(self, tokens: int) -> bool:
        """Drop blocks until the budget has so many tokens free; whether it has. Where that cannot be, all stay."""
        self._now += 1
        return self._drop_until(tokens)

    def clear(self) -> None:
        """Drop everything."""
        self.make_room(self.available)

    def _match(self, salt: str, tokens: Sequence[int]) -> list[_Node]:
        """The path of whole blocks at the beginning of `tokens`, which is used now."""
        self._now += 1
        path: list[_Node] = []
        node = self._root.children.get(salt)
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            if node is None:
                break
            self._use(node)
            node = node.children.get(tuple(tokens[start : start + BLOCK]))
            if node is not None:
                path.append(node)
        if path:
            self._use(path[-1])
        return path

    def _use(self, node: _Node) -> None:
        if node.used == self._now:
            return
        node.used = self._now
        if not node.children:
            if len(self._idle) > 2 * self.blocks + 64:
                self._idle = [entry for entry in self._idle if self._is_idle(*entry)]
                heapq.heapify(self._idle)
            self._push(node)

    def _push(self, node: _Node) -> None:
        heapq.heappush(self._idle, (node.used, next(self._entries), node))

    def _is_idle(self, used: int, _: int, node: _Node) -> bool:
        return node.used == used and not node.children and node.parent is not None

    def _add(self, parent: _Node, key: Key, block: tuple[torch.Tensor, torch.Tensor] | None) -> _Node:
        child = parent.children[key] = _Node(parent, key, block)
        self._use(child)
        self._count(child, 1)
        return child

    def _drop_until(self, tokens: int) -> bool:
        """Drop what was not used just now, the least recently used first."""
        if self.available < tokens:
            return False
        while self._budget.free < tokens:
            if not self._idle or self._idle[0][0] == self._now:
                return False
            entry = heapq.heappop(self._idle)
            if self._is_idle(*entry):
                self._drop(entry[2])
        return True

    def _drop(self, node: _Node) -> None:
        parent, node.parent = node.parent, None
        assert parent is not None
        del parent.children[node.key]
        self._count(node, -1)
        if not parent.children and parent is not self._root:
            self._push(parent)

    def _count(self, node: _Node, sign: int) -> None:
        if node.block is not None:
            self.blocks += sign
            self._budget.used += sign * BLOCK
