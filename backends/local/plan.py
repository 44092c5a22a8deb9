"""Which tokens of which sequence are computed in the next step: a pure function.

A step takes one token of every running stream, and beside these a piece of the prompts that wait, so that a long prompt
holds up nobody for long. The pieces are small while streams run (each would feel a large one as a pause) and large
when none does.

Batch sequences have a few tokens of a step that computes for interactive ones, and a whole one where there are none.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

BUSY_CHUNK = 64
"""Tokens of prompts in a step beside running streams. With 8 streams of a small model on a CPU such a step takes about
three times as long as one without. Small pieces cost a tenth of the prompt's speed."""
IDLE_CHUNK = 256
"""The same when nobody streams: also the most that is computed for a request that was cancelled. Not for batch prompts:
an interactive request that arrives waits for the end of the step."""
OLDEST_SHARE = 4
"""One part in so many of a chunk is for the prompt that came first, so that shorter ones cannot keep it waiting for
ever; the rest goes to those with the least left, whose answers can begin soonest."""
BATCH_BESIDE = 2
"""Tokens of batch sequences, latest ones and pieces of prompts together, in a step beside interactive ones. Estimated
from the speed of one and of eight streams (docs/engine.md, fp32: passes of 103 and of 235 ms): each lengthens the pass
of a single stream by a fifth. Two make 1.4 of it, which leaves room below twice for the step that runs when a request
arrives."""


@dataclass(frozen=True, slots=True)
class Part:
    """The next `tokens` of the sequence at `index`."""

    index: int
    tokens: int


def plan(left: Sequence[int], urgent: Sequence[int] | None = None, batch: Collection[int] = ()) -> list[Part]:
    """`left`: tokens of each sequence that are not computed yet, those that came first first; 0: leave it out. A
    stream has exactly one, its latest token. `urgent`: in place of `left`, how much is left of the shortest one that
    waits for what this one computes. `batch`: which of them are batch sequences."""
    urgent = urgent or left
    streams, prompts = _kinds(left, [index for index in range(len(left)) if index not in batch])
    parts = dict.fromkeys(streams, 1) | _pieces(prompts, left, urgent, BUSY_CHUNK if streams else IDLE_CHUNK)
    room = BUSY_CHUNK
    streams, prompts = _kinds(left, sorted(batch))
    if parts:
        streams = streams[:BATCH_BESIDE]
        room = BATCH_BESIDE - len(streams)
    parts |= dict.fromkeys(streams, 1) | _pieces(prompts, left, urgent, room)
    return [Part(index, parts[index]) for index in sorted(parts)]


def _kinds(left: Sequence[int], which: list[int]) -> tuple[list[int], list[int]]:
    """The streams and the prompts among `which`."""
    return [index for index in which if left[index] == 1], [index for index in which if left[index] > 1]


def _pieces(prompts: list[int], left: Sequence[int], urgent: Sequence[int], room: int) -> dict[int, int]:
    """How `room` tokens are shared among prompts."""
    parts: dict[int, int] = {}
    if prompts:
        oldest = prompts[0]
        parts[oldest] = min(left[oldest], math.ceil(room / OLDEST_SHARE))
        room -= parts[oldest]
    for index in sorted(prompts, key=urgent.__getitem__):
        have = parts.get(index, 0)
        more = min(left[index] - have, room)
        parts[index] = have + more
        room -= more
    return {index: tokens for index, tokens in parts.items() if tokens}
