"""Attention over a batch in which every sequence has its own length and place.

One forward pass takes the new tokens of all sequences in one row, `(1, tokens)`, each with its position in its own
sequence, so that the weights are read once for all of them. Everything in a transformer but attention treats tokens
one by one; attention is told by the Batch where one sequence ends and the next begins, stores the new keys and values
in the sequence's buffer, and reads that.

transformers looks this function up by its name (AttentionInterface) and passes it the keyword arguments of the forward
pass. It makes no mask for a name that has no mask function registered, which is what we want: there is none.

Facts that this file rests on:
- Queries of the heads that share keys are laid side by side as if they were queries of one head, so no key is copied
  for them. torch's own way (`enable_gqa`) is a slow path on CPUs in bf16.
- A query that may see all keys needs no mask, so neither has the decode of one token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from backends.local.kv import SequenceKv

NAME = "refrain"


@dataclass(frozen=True, slots=True)
class Segment:
    """`tokens` are the next ones of the sequence that `kv` belongs to; it has room for them."""

    tokens: Sequence[int]
    kv: SequenceKv


class Batch:
    """The segments of one forward pass, with what every layer needs of them."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.sizes = [len(segment.tokens) for segment in segments]
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}
        self._rows: list[tuple[int, int]] = []
        new_keys, new_values, keys, values = [], [], [], []
        for segment in segments:
            kv, start = segment.kv, segment.kv.length
            end = start + len(segment.tokens)
            self._rows.append((start, end))
            new_keys.append(kv.keys[:, :, start:end].unbind())
            new_values.append(kv.values[:, :, start:end].unbind())
            keys.append(kv.keys[:, None, :, :end].unbind())
            values.append(kv.values[:, None, :, :end].unbind())
        # By layer, then by sequence.
        self._new_keys, self._new_values = _turned(new_keys), _turned(new_values)
        self._keys, self._values = _turned(keys), _turned(values)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """`query` (1, heads, tokens, dim), `key` and `value` (1, key heads, tokens, dim); the result is (1, tokens,
        heads, dim)."""
        torch._foreach_copy_(self._new_keys[layer], torch.split_with_sizes(key[0], self.sizes, 1))
        torch._foreach_copy_(self._new_values[layer], torch.split_with_sizes(value[0], self.sizes, 1))
        heads, key_heads = query.shape[1], key.shape[1]
        outputs = []
        for number, part in enumerate(torch.split_with_sizes(query, self.sizes, 2)):
            start, end = self._rows[number]
            keys, values = self._keys[layer][number], self._values[layer][number]
            size = end - start
            first = 0 if window is None else max(0, start + 1 - window)
            if first:
                keys, values = keys[:, :, first:], values[:, :, first:]
            grouped = part.reshape(1, key_heads, heads // key_heads * size, -1)
            mask = self._mask(number, first, window, heads // key_heads, query)
            if softcap is None:
                out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
            else:
                out = _softcapped(grouped, keys, values, mask, scaling, softcap)
            outputs.append(out.reshape(heads, size, -1).transpose(0, 1))
        return torch.cat(outputs).unsqueeze(0)

    def _mask(self, number: int, first: int, window: int | None, group: int, like: torch.Tensor) -> torch.Tensor | None:
        """What is added to the scores, (queries of a group, keys from `first`); None where all keys may be seen."""
        start, end = self._rows[number]
        if end - start == 1:
            return None
        found = self._masks.get((number, window))
        if found is None:
            queries = torch.arange(start, end, device=like.device)[:, None]
            keys = torch.arange(first, end, device=like.device)[None, :]
            hidden = keys > queries
            if window is not None:
                hidden |= keys <= queries - window
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
            found = self._masks[number, window] = mask.repeat(group, 1)
        return found


def _turned(by_sequence: list[tuple[torch.Tensor, ...]]) -> list[list[torch.Tensor]]:
    return [list(layer) for layer in zip(*by_sequence, strict=True)]


def _softcapped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float,
) -> torch.Tensor:
    """As scaled_dot_product_attention, with scores bent below `softcap` (Gemma 2: softcap * tanh(score / softcap))."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.tanh(query @ keys.transpose(-2, -1) * (scale / softcap)) * softcap
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ values


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    batch: Batch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    # A tensor is something to compute with (a mask, attention sinks): what we do not know we must not leave out.
    unknown = [name for name, other in others.items() if isinstance(other, torch.Tensor) and name != "position_ids"]
    if attention_mask is not None or unknown:
        raise ValueError(f"its attention needs {', '.join(unknown) or 'a mask of its own'}")
    output = batch.attend(module.layer_idx, query, key, value, scaling=scaling, window=sliding_window, softcap=softcap)
    return output, None


AttentionInterface.register(NAME, _attention)
