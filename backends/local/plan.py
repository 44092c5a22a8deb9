"""Which tokens of which sequence are computed in the next step: a pure function.

A step takes one token of every running stream, and beside these a piece of the prompts that wait, so that a long prompt
holds up nobody for long. The pieces are small while streams run (each would feel a large one as a pause) and large
when none does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BUSY_CHUNK = 64
"""Tokens of prompts in a step beside running streams. With 8 streams of a small model on a CPU such a step takes about
three times as long as one without. Small pieces cost a tenth of the prompt's speed."""
IDLE_CHUNK = 256
"""The same when nobody streams: also the most that is computed for a request that was cancelled."""
OLDEST_SHARE = 4
"""One part in so many of a chunk is for the prompt that came first, so that shorter ones cannot keep it waiting for
ever; the rest goes to those with the least left, whose answers can begin soonest."""


@dataclass(frozen=True, slots=True)
class Part:
    """The next `tokens` of the sequence at `index`."""

    index: int
    tokens: int


def plan(left: Sequence[int], urgent: Sequence[int] | None = None) -> list[Part]:
    """`left`: tokens of each sequence that are not computed yet, those that came first first; 0: leave it out. A
    stream has exactly one, its latest token. `urgent`: in place of `left`, how much is left of the shortest one that
    waits for what this one computes."""
    parts = {index: 1 for index, tokens in enumerate(left) if tokens == 1}
    prompts = [index for index, tokens in enumerate(left) if tokens > 1]
    room = BUSY_CHUNK if parts else IDLE_CHUNK
    if prompts:
        oldest = prompts[0]
        parts[oldest] = min(left[oldest], room // OLDEST_SHARE)
        room -= parts[oldest]
    for index in sorted(prompts, key=(urgent or left).__getitem__):
        have = parts.get(index, 0)
        more = min(left[index] - have, room)
        if more > 0:
            parts[index] = have + more
            room -= more
    return [Part(index, parts[index]) for index in sorted(parts)]
