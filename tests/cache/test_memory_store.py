"""What only the in-process store does: slots, rendered forms, aliases, and an honest account of all their bytes."""

import asyncio
import gc
import os
import tracemalloc

import pytest

from cache.match import Match
from cache.stores.memory import MAX_ALIASES, SCAN_CHUNK, STEP, MemoryStore, Slot
from tests.contract.stores import START, Clock, key_of, make_entry, make_question

A, B = key_of("a"), key_of("b")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(1_000_000, now=clock)


async def used(store: MemoryStore) -> int:
    return (await store.stats()).bytes


def kept(store: MemoryStore, name: str) -> Slot:
    slot = store.keep(make_entry(name))
    assert slot is not None
    return slot


async def test_an_alias_leads_to_its_payload_and_slot(store: MemoryStore) -> None:
    slot = kept(store, "a")
    payload = object()
    store.alias(b"1", slot, payload, 100)
    assert store.by_alias(b"1") == (payload, slot)
    assert store.by_alias(b"2") is None
    assert store.peek(A) is slot


async def test_aliases_go_with_their_entry(store: MemoryStore) -> None:
    for end in ("discard", "replace", "purge", "expire"):
        empty = await used(store)
        store.alias(b"1", kept(store, "a"), "payload", 100)
        match end:
            case "discard":
                store.discard(A)
            case "replace":
                kept(store, "a")
            case "purge":
                store.discard(B)
                assert store.by_alias(b"1") is not None
                await store.aclose()
            case "expire":
                assert store.by_alias(b"1", START + 3600 - 0.001) is not None
                assert store.by_alias(b"1", START + 3600) is None
        assert store.by_alias(b"1") is None, end
        store.discard(A)
        assert await used(store) == empty


async def test_an_evicted_entry_takes_its_aliases_along(store: MemoryStore) -> None:
    size = kept(store, "a").size
    small = MemoryStore(3 * size + 1000, now=Clock())
    for name in ("a", "b", "c"):
        small.alias(name.encode(), kept(small, name), name, 0)
    assert small.by_alias(b"a") is None
    assert small.by_alias(b"b") is not None
    assert small.by_alias(b"c") is not None


async def test_a_hit_by_alias_is_a_use(store: MemoryStore) -> None:
    size = kept(store, "a").size
    small = MemoryStore(3 * size + 500, now=Clock())
    small.alias(b"1", kept(small, "a"), None, 0)
    for name in ("b", "c", "d", "e"):
        assert small.by_alias(b"1") is not None
        kept(small, name)
    assert small.peek(A) is not None
    assert small.peek(B) is None


async def test_only_so_many_aliases_per_entry_the_oldest_go(store: MemoryStore) -> None:
    slot = kept(store, "a")
    for n in range(MAX_ALIASES):
        store.alias(b"%d" % n, slot, n, 10)
    full = slot.size
    for n in range(MAX_ALIASES, MAX_ALIASES + 5):
        store.alias(b"%d" % n, slot, n, 10)
    assert slot.size == full == await used(store)
    found = [n for n in range(MAX_ALIASES + 5) if store.by_alias(b"%d" % n) is not None]
    assert found == list(range(5, MAX_ALIASES + 5))


async def test_an_alias_moves_to_another_entry(store: MemoryStore) -> None:
    one, other = kept(store, "a"), kept(store, "b")
    bare = one.size
    store.alias(b"1", one, "first", 10)
    store.alias(b"1", other, "second", 10)
    assert store.by_alias(b"1") == ("second", other)
    assert one.size == bare
    store.discard(A)
    assert store.by_alias(b"1") == ("second", other)


async def test_an_alias_set_again_is_charged_once(store: MemoryStore) -> None:
    slot = kept(store, "a")
    store.alias(b"1", slot, "x", 10)
    size = slot.size
    store.alias(b"1", slot, "y", 10)
    assert slot.size == size == await used(store)
    assert store.by_alias(b"1") == ("y", slot)


async def test_rendered_forms_are_charged_and_go_with_the_answer(store: MemoryStore) -> None:
    slot = kept(store, "a")
    bare = slot.size
    store.attach(slot, "sse", b"x" * 1000)
    assert slot.rendered == {"sse": b"x" * 1000}
    first = slot.size
    assert bare + 1000 < first < bare + 1500
    store.attach(slot, "sse", b"x" * 400)
    assert slot.size == first - 600 == await used(store)
    assert kept(store, "a").rendered == {}
    assert await used(store) == bare


async def test_forms_and_aliases_push_others_out_not_their_own_entry() -> None:
    small = MemoryStore(20_000, now=Clock())
    slot = kept(small, "a")
    for name in ("b", "c"):
        kept(small, name)
    small.attach(slot, "sse", b"x" * 18_000)
    assert small.peek(A) is not None
    assert small.peek(B) is None
    assert await used(small) <= 20_000
    assert (await small.stats()).evicted == 2


async def test_what_does_not_fit_beside_its_entry_is_left_out() -> None:
    small = MemoryStore(10_000, now=Clock())
    slot = kept(small, "a")
    size = slot.size
    small.attach(slot, "sse", b"x" * 10_000)
    small.alias(b"1", slot, "payload", 10_000)
    assert slot.rendered == {}
    assert small.by_alias(b"1") is None
    assert slot.size == size == await used(small)


async def test_nothing_of_a_former_answer_reaches_the_one_in_its_place(store: MemoryStore) -> None:
    former = kept(store, "a")
    slot = kept(store, "a")
    bare = slot.size
    store.alias(b"1", slot, "new", 10)
    size = slot.size
    store.attach(former, "sse", b"old")
    store.alias(b"1", former, "old", 10)
    store.alias(b"2", former, "old", 10)
    assert slot.rendered == former.rendered == {}
    assert store.by_alias(b"1") == ("new", slot)
    assert store.by_alias(b"2") is None
    assert slot.size == size == await used(store)
    assert former.size == bare


async def test_nothing_attaches_to_a_slot_that_is_gone(store: MemoryStore) -> None:
    for end in ("purge", "expire", "evict"):
        slot = kept(store, "a")
        match end:
            case "purge":
                assert await store.purge(Match(key=A)) == 1
            case "expire":
                assert store.peek(A, START + 3600) is None
            case "evict":
                large = store.keep(make_entry("b", body=bytes(1_000_000 - slot.size)))
                assert large is not None
                assert store.peek(A) is None
        before = await used(store)
        store.attach(slot, "sse", b"x")
        store.alias(b"1", slot, "payload", 10)
        assert slot.rendered == {}, end
        assert store.by_alias(b"1") is None, end
        assert await used(store) == before, end
        store.discard(B)
        assert await used(store) == 0, end


async def test_an_entry_larger_than_the_bound_is_not_kept(clock: Clock) -> None:
    size = make_entry("a").size
    assert MemoryStore(size, now=clock).keep(make_entry("a")) is None
    assert MemoryStore(0, now=clock).keep(make_entry("a")) is None
    assert MemoryStore(2 * size, now=clock).keep(make_entry("a")) is not None


async def test_a_slot_that_holds_another_entry_is_a_miss(store: MemoryStore) -> None:
    """Statement 9, for memory: only a defect could do this, and it must not be served."""
    kept(store, "a").entry = make_entry("b")
    assert store.peek(A) is None
    assert (await store.stats()).corrupt == 1
    assert await used(store) == 0


async def test_time_may_be_given_or_is_asked_for(store: MemoryStore, clock: Clock) -> None:
    kept(store, "a")
    assert store.peek(A, START + 3600 - 0.001) is not None
    clock.time = START + 3600
    assert store.peek(A) is None


async def test_a_soft_purge_forgets_aliases_and_keeps_forms(store: MemoryStore, clock: Clock) -> None:
    """An alias knows when the life of its entry ends, and that is another instant now."""
    slot = store.keep(make_entry("a", expires=START + 100, keep_until=START + 200))
    assert slot is not None
    store.attach(slot, "sse", b"data")
    without = slot.size
    for digest in (b"1", b"2"):
        store.alias(digest, slot, "payload", 10)
    clock.time += 10
    assert await store.purge(Match(), soft=True, dry_run=True) == 1
    assert store.by_alias(b"1") is not None
    assert await store.purge(Match(), soft=True) == 1
    assert store.by_alias(b"1") is store.by_alias(b"2") is None
    assert store.peek(A) is slot
    assert (slot.entry.expires, slot.entry.keep_until) == (START + 10, START + 110)
    assert slot.rendered == {"sse": b"data"}
    assert slot.size == without == await used(store)


# Questions and keys.


async def test_a_note_takes_no_bytes(store: MemoryStore) -> None:
    slot = kept(store, "a")
    await store.note(make_question("a"))
    assert await used(store) == slot.size
    assert await store.questions(after=b"", limit=9) == []


async def test_known_looks_through_many_keys_in_turns(store: MemoryStore) -> None:
    kept(store, "a")
    keys = [key_of(f"{n}") for n in range(3 * SCAN_CHUNK)]
    looking = asyncio.ensure_future(store.known([A, *keys, B]))
    await asyncio.sleep(0)
    kept(store, "b")
    assert not looking.done(), "others had their turn"
    assert set(await looking) == {A, B}


# A clock that is set back.


async def test_an_entry_ages_on_when_the_clock_is_set_back(clock: Clock) -> None:
    mono = Clock()
    store = MemoryStore(1_000_000, now=clock, mono=mono)
    slot = kept(store, "a")
    assert slot.now(clock(), mono()) == START
    clock.time -= STEP
    assert slot.now(clock(), mono()) == START - STEP, "a clock may be put right a little"
    mono.time += 60
    clock.time -= 5000
    assert slot.now(clock(), mono()) == START + 60 - STEP
    assert kept(store, "b").now(clock(), mono()) == clock(), "made after that"
    clock.time = START + 100
    assert slot.now(clock(), mono()) == START + 100, "set forward it counts at once"


async def test_nothing_is_kept_longer_because_the_clock_is_set_back(clock: Clock) -> None:
    mono = Clock()
    store = MemoryStore(1_000_000, now=clock, mono=mono)
    kept(store, "a")
    clock.time -= 5000
    mono.time += 3600 + STEP - 0.001
    assert store.peek(A) is not None
    assert len(await store.entries(Match(), limit=9)) == 1
    assert set(await store.known([A])) == {A}
    mono.time += 0.002
    assert set(await store.known([A])) == set()
    assert await store.entries(Match(), limit=9) == []
    assert await store.purge(Match(), dry_run=True) == 0
    assert store.peek(A) is None


async def test_a_soft_purge_counts_by_the_time_the_entry_ages_by_and_leaves_its_age(clock: Clock) -> None:
    mono = Clock()
    store = MemoryStore(1_000_000, now=clock, mono=mono)
    slot = store.keep(make_entry("a", expires=START + 100, keep_until=START + 200))
    assert slot is not None
    clock.time -= 5000
    mono.time += 40 + STEP
    assert await store.purge(Match(), soft=True) == 1
    assert store.peek(A) is slot
    assert (slot.entry.expires, slot.entry.keep_until) == (START + 40, START + 140)
    mono.time += 20
    assert slot.now(clock(), mono()) == START + 60


@pytest.mark.slow
def test_the_bytes_charged_are_those_taken() -> None:
    """Charged are at least the bytes really taken, and less than twice as many."""
    count = 1000
    entries = []
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        store = MemoryStore(1 << 30, now=Clock())
        for n in range(count):
            entry = make_entry(f"{n}", body=os.urandom(600), user=f"user {n}", upstream_id=f"id {n}", created=START + n)
            entries.append(entry.key)
            slot = store.keep(entry)
            assert slot is not None
            store.attach(slot, "sse", os.urandom(700))
            store.alias(os.urandom(32), slot, None, 0)
        charged = sum(slot.size for key in entries if (slot := store.peek(key, START)) is not None)
        del entries, entry, slot
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= charged < 2 * taken


# Bytes that are somebody else's, and aliases that are to go.


async def test_what_is_reserved_is_taken_from_the_answers(store: MemoryStore) -> None:
    size = kept(store, "a").size
    small = MemoryStore(4 * size + 500, now=Clock())
    for name in ("a", "b", "c", "d"):
        kept(small, name)
    assert small.peek(A) is not None
    small.reserve(2 * size)
    assert [small.peek(key_of(name)) is not None for name in "abcd"] == [True, False, False, True]
    assert await used(small) == 4 * size
    assert (await small.stats()).evicted == 2
    kept(small, "e")
    assert [small.peek(key_of(name)) is not None for name in "ade"] == [False, True, True]
    small.reserve(0)
    assert await used(small) == 2 * size
    kept(small, "f")
    kept(small, "g")
    assert [small.peek(key_of(name)) is not None for name in "defg"] == [True] * 4


async def test_everything_may_be_reserved(store: MemoryStore) -> None:
    store.alias(b"1", kept(store, "a"), "payload", 10)
    store.reserve(1_000_000)
    assert store.peek(A) is None
    assert store.by_alias(b"1") is None
    assert (await store.stats()).entries == 0
    store.reserve(0)
    assert kept(store, "a") is store.peek(A)


async def test_what_does_not_fit_beside_what_is_reserved_pushes_nothing_out(store: MemoryStore) -> None:
    kept(store, "a")
    store.reserve(600_000)
    large = make_entry("b", body=bytes(500_000))
    assert store.keep(large) is None
    assert store.peek(A) is not None


async def test_a_form_that_does_not_fit_beside_what_is_reserved_is_left_out(store: MemoryStore) -> None:
    slot = kept(store, "a")
    kept(store, "b")
    store.reserve(600_000)
    store.attach(slot, "sse", bytes(500_000))
    assert store.peek(A) is slot
    assert store.peek(B) is not None
    assert slot.rendered == {}


async def test_an_alias_can_be_forgotten_without_its_entry(store: MemoryStore) -> None:
    slot = kept(store, "a")
    bare = await used(store)
    for digest in (b"1", b"2"):
        store.alias(digest, slot, "payload", 10)
    store.forget_alias(b"1")
    assert store.by_alias(b"1") is None
    assert store.by_alias(b"2") is not None
    assert store.peek(A) is slot
    for digest in (b"1", b"2", b"unknown"):
        store.forget_alias(digest)
    assert await used(store) == bare
    store.alias(b"1", slot, "again", 10)
    assert store.by_alias(b"1") == ("again", slot)
