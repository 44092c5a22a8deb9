"""What an answer of vectors was served from, in the decision."""

from collections.abc import Sequence

from cache.entry import Cost, Entry
from gateway.decisions import Decision
from gateway.embeddings.gather import Gathered


def book(d: Decision, entries: Sequence[Entry], places: Sequence[int], got: Gathered) -> int:
    """Note what is served and what of it was saved; gives the tokens of the answer. `entries` are those of its
    elements, `places` the number of an element for each input. What this request has paid for is each element that it
    forwarded, once: the cache, others' calls and repetition have saved the rest."""
    tokens = sum(entries[place].usage.total for place in places)
    d.status, d.age = 200, got.age
    d.input = d.served = tokens
    # All that it has called for is in the answer.
    d.saved, d.usd_used = tokens - d.consumed, d.usd or 0.0
    if saved := _saved(entries, places, got):
        d.ms_saved = sum(cost.ms for cost in saved)
        priced = [cost.usd for cost in saved if cost.usd is not None]
        d.usd_saved = sum(priced) if priced else None
    calls = {entries[number].upstream_id for number in got.forwarded or range(len(entries))}
    d.upstream_id = calls.pop() if len(calls) == 1 else ""
    return tokens


def _saved(entries: Sequence[Entry], places: Sequence[int], got: Gathered) -> list[Cost]:
    paid = set(got.forwarded)
    saved = []
    for place in places:
        if place in paid:
            paid.discard(place)
        else:
            saved.append(entries[place].cost)
    return saved
