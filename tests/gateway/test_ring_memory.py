"""A ring of 100,000 decisions takes at most 200 MB, whatever they are; and what is looked up in it."""

import gc
import itertools
import tracemalloc
from collections.abc import Callable
from time import perf_counter

import pytest

from gateway.decisions import Decision, Tier, new_number, new_request_id, plain_tier
from gateway.hits import Facts, Hit, Record
from gateway.principal import Principal
from gateway.ring import NEAR, Ring
from gateway.why.why import Why
from tests.gateway.test_hits import ENTRY

RING = 100_000
SAMPLE = 4_000
BAR = 200e6

ALICE = Principal("acme", "alice", frozenset({"hr"}))
_fresh = itertools.count(1_000)


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def decision(number: int, outcome: str) -> Decision:
    """With everything that a request of this outcome leaves in it, and nothing that it would not."""
    d = Decision(new_request_id(), 1.8e9 + number / 7, "default", "chat")
    d.principal = ALICE
    d.model = f"model-{number}" if outcome == "miss" else "test-model"
    d.backend, d.stream, d.status, d.finished = "openai", True, 200, True
    d.ms = number / 3
    return d


def short_hit(number: int) -> Hit:
    """As gateway.front makes it."""
    return Hit(FACTS, new_number(), 1.8e9 + number / 7, number / 3, number, number + 1)


def put(ring: Ring, record: Record) -> None:
    if isinstance(record, Hit):
        ring.add_hit(record.facts, record.number, record.at, record.ms, record.age, record.ttl)
    else:
        ring.add(record)


def miss(number: int) -> Decision:
    """Asked of every tier, answered by the backend, explained."""
    d = decision(number, "miss")
    d.outcome, d.key, d.upstream_id = "miss", digest(number), f"chatcmpl-{number:030}"
    d.stored, nearest = True, digest(number + 1)
    d.tiers = (
        plain_tier("exact", "miss"),  # as Visit.tier says it
        Tier("semantic", "miss", "number", None, number / 1e6, nearest),
        Tier("prefix", "hit", tokens=number + 512),
    )
    for name in ("auth", "parse", "exact", "semantic", "upstream_queue", "upstream_prefill", "first_byte", "upstream"):
        d.phases[name] = number / 11
    d.input, d.output, d.cached = number + 300, number + 400, number + 512
    d.served = d.consumed = d.billable = number + 1_000
    d.first_ms, d.predicted_ms = number / 13, number / 17
    d.usd, d.usd_billable, d.usd_overhead, d.usd_used = number / 1e6, number / 2e6, number / 3e6, number / 4e6
    d.why = Why("question", ("question",), nearest, reason="number", amount=d.tiers[1].similarity)
    return d


FACTS = Facts(ENTRY, ALICE, "default", "chat", "test-model", stream=True)


def size_of(make: Callable[[int], Record]) -> float:
    """Bytes that the ring takes, from a part of it."""
    for number in range(100):
        make(number)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ring = Ring(RING)
        for _ in range(SAMPLE):
            put(ring, make(next(_fresh)))
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) * RING / SAMPLE
    finally:
        tracemalloc.stop()


def mixed(number: int) -> Record:
    """Half of them hits."""
    return short_hit(number) if number % 2 else miss(number)


@pytest.mark.parametrize("make", [short_hit, mixed, miss], ids=["hits", "half", "misses"])
def test_a_full_ring_is_within_its_bar(make: Callable[[int], Record]) -> None:
    assert size_of(make) <= BAR


def test_a_hit_takes_no_more_after_misses() -> None:
    """Objects with dicts would: more names than can be shared."""
    assert not hasattr(miss(1), "__dict__")
    assert size_of(short_hit) <= 10e6


def test_what_is_read_is_what_was_written() -> None:
    """Over several rounds, and over a change of its length in both directions."""
    ring, made = Ring(7), list[Record]()
    for number in range(40):
        made.append(short_hit(number) if number % 3 else miss(number))
        put(ring, made[-1])
        ring.resize({17: 5, 25: 9}.get(number, ring.length))
        kept = made[-len(ring) :]
        assert len(ring) <= ring.length
        assert [record.as_dict() for record in ring] == [record.as_dict() for record in reversed(kept)]
        for record in kept:
            found = ring.find(record.id)
            assert found is not None
            assert found.as_dict() == record.as_dict()
    assert len(ring) == ring.length == 9


def test_a_change_of_its_length_stalls_nothing() -> None:
    """Every reload of the configuration sets it."""
    ring = Ring(RING)
    hit = short_hit(1)
    for _ in range(RING + 1_000):
        put(ring, hit)
    for length in (RING, RING // 2, RING):
        begun = perf_counter()
        ring.resize(length)
        assert perf_counter() - begun < 0.05
    assert len(ring) == RING // 2


def test_what_comes_meanwhile_is_not_seen_nor_what_goes() -> None:
    ring = Ring(4)
    made = [short_hit(number) for number in range(4)]
    for hit in made:
        put(ring, hit)
    copy = ring.copy()
    seen = iter(ring)
    assert next(seen).id == made[3].id
    for number in range(3):
        put(ring, short_hit(number))
    assert [hit.id for hit in seen] == []
    assert [hit.id for hit in copy] == [hit.id for hit in reversed(made)]


def test_a_decision_is_found_wherever_it_is() -> None:
    """Requests end in another order than they came in; some very late."""
    ids = [new_request_id() for _ in range(3_000)]
    late, early = ids[5], ids[2_990]
    order = [id for id in ids if id not in (late, early)]
    for at in range(0, len(order) - 20, 20):
        order[at : at + 20] = reversed(order[at : at + 20])
    order = [early, *order, late]
    ring = Ring(2_000)
    for id in order:
        ring.add(Decision(id, 0.0, "", ""))
    kept = order[-2_000:]
    for id in [*kept[:: NEAR // 2], kept[-1], late, kept[0]]:
        found = ring.find(id)
        assert found is not None
        assert found.id == id
    assert ring.find(early) is None
    assert ring.find(order[1]) is None
    for wrong in ("", "req_", "req__", "req_ffffffffffff_2500", f"{ids[2_500]}0", "²", "_" + "9" * 5_000):
        assert ring.find(wrong) is None
