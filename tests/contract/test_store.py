"""What every store promises (cache.stores.base)."""

import asyncio
import os
import random
import time
from dataclasses import replace

import pytest

from cache.entry import Cost, Entry, Usage
from cache.match import Match
from cache.stores.base import Store
from tests.contract.conftest import Open
from tests.contract.stores import MAX_BODY, START, Clock, key_of, make_entry

PATTERNS = [
    "*",
    "?",
    "[ab]",
    "a*",
    "a?",
    "%",
    "_",
    "a%",
    "a_",
    "\\",
    "\\*",
    "a\\",
    "^a",
    "a$",
    "'",
    '"',
    "a' OR '1'='1",
]


async def settled(store: Store, key: bytes) -> Entry | None:
    """What the store holds once it has written everything."""
    await store.flush()
    return await store.get(key)


# Round trips.


async def test_every_field_comes_back(store: Store) -> None:
    entry = Entry(
        key=key_of("all"),
        scope=bytes(range(32)),
        tenant="acme",
        user="alice",
        endpoint="chat_assistant",
        api="responses",
        model="gpt-x",
        backend="openai",
        body=bytes(range(256)) * 20,
        created=START - 0.123456,
        expires=START + 60.25,
        keep_until=START + 120.5,
        usage=Usage(2**40, 7),
        cost=Cost(1234.5, None),
        upstream_id="resp_1",
        tags=("b", "a", "b"),
        documents=("handbook/leave.md@3f2a", ""),
    )
    await store.put(entry)
    assert await store.get(entry.key) == entry
    assert await settled(store, entry.key) == entry


@pytest.mark.parametrize(
    "text", ["", "\x00", "a\x00b", "müller", "日本語", "👩‍👩‍👧", "\U0010ffff", "\ufeff", "e\u0301", "\u00e9"]
)
async def test_any_text_comes_back_and_is_found(store: Store, text: str) -> None:
    entry = make_entry(tenant=text, user=text, endpoint=text, model=text, upstream_id=text, tags=(text,), body=b"")
    await store.put(entry)
    await store.put(make_entry("other", tenant=text + "\x00", tags=(text + "\x00",)))
    assert await settled(store, entry.key) == entry
    match = Match(tenant=text, user=text, endpoint=text, model=text, tags=frozenset([text]))
    assert await store.entries(match, limit=9) == [entry]
    assert await store.purge(match) == 1


@pytest.mark.parametrize("body", [b"", b"x" * MAX_BODY, random.Random(1).randbytes(MAX_BODY)])
async def test_bodies_from_empty_to_the_limit_come_back(store: Store, body: bytes) -> None:
    await store.put(make_entry(body=body))
    found = await settled(store, key_of("a"))
    assert found is not None
    assert found.body == body


async def test_unknown_key_is_a_miss(store: Store) -> None:
    await store.put(make_entry("a"))
    for key in (key_of("b"), b"", key_of("a")[:-1], key_of("a") + b"\x00"):
        assert await settled(store, key) is None


async def test_a_put_replaces(store: Store) -> None:
    await store.put(make_entry(body=b"old", tags=("old",)))
    await store.flush()
    await store.put(make_entry(body=b"new", tags=("new",)))
    for found in (await store.get(key_of("a")), await settled(store, key_of("a"))):
        assert found is not None
        assert found.body == b"new"
    assert await store.purge(Match(tags=frozenset(["old"])), dry_run=True) == 0
    assert (await store.stats()).entries == 1


# Time.


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
async def test_expiry_is_one_instant_in_every_time_zone(
    store: Store, clock: Clock, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        entry = make_entry(expires=START + 10, keep_until=START + 60)
        await store.put(entry)
        for flushed in (False, True):
            clock.time = START + 60 - 0.001
            assert await store.get(entry.key) == entry
            if not flushed:
                await store.flush()
        clock.time = START + 60
        assert await store.get(entry.key) is None
        assert await store.entries(Match(), limit=9) == []
        assert await store.purge(Match(), dry_run=True) == 0
        clock.time = START + 60 + 0.001
        assert await store.get(entry.key) is None
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_a_use_does_not_lengthen_a_life(store: Store, clock: Clock) -> None:
    await store.put(make_entry(keep_until=START + 60))
    for second in range(60):
        clock.time = START + second
        assert await store.get(key_of("a")) is not None
    await store.flush()
    clock.time = START + 60
    assert await store.get(key_of("a")) is None


async def test_what_expired_may_be_put_again(store: Store, clock: Clock) -> None:
    await store.put(make_entry(keep_until=START + 60))
    clock.time = START + 61
    assert await settled(store, key_of("a")) is None
    fresh = make_entry(created=START + 61, expires=START + 120, keep_until=START + 120)
    await store.put(fresh)
    assert await settled(store, key_of("a")) == fresh


async def test_expired_entries_give_their_space_back(store: Store, clock: Clock) -> None:
    for n in range(50):
        await store.put(make_entry(f"old {n}", keep_until=START + 60))
    await store.flush()
    clock.time = START + 60
    for n in range(50):
        assert await store.get(key_of(f"old {n}")) is None
    await store.put(make_entry("new"))
    await store.flush()
    stats = await store.stats()
    assert (stats.entries, stats.evicted) == (1, 0)


# Space.


async def charged(store: Store, entry: Entry) -> int:
    """Bytes that the store charges for the entry. Leaves the store empty."""
    await store.put(entry)
    await store.flush()
    size = (await store.stats()).bytes
    await store.purge(Match())
    return size


def noise(name: str, size: int = 3000) -> Entry:
    """An entry that no compression makes smaller."""
    return make_entry(name, body=random.Random(name).randbytes(size))


async def test_least_recently_used_go_first(store: Store, open_store: Open) -> None:
    room = 10
    small = await open_store(room * await charged(store, noise("00")) + 100)
    for n in range(10 * room):
        await small.put(noise(f"{n:02}"))
        assert await small.get(key_of("00")) is not None, n
        await small.flush()
        stats = await small.stats()
        assert stats.bytes <= stats.max_bytes
        assert stats.entries == min(n + 1, room)
    kept = {name for n in range(10 * room) if await small.get(key_of(name := f"{n:02}")) is not None}
    assert kept == {"00", *(f"{n:02}" for n in range(9 * room + 1, 10 * room))}
    assert (await small.stats()).evicted == 9 * room


async def test_the_bound_holds_whatever_the_sizes(open_store: Open) -> None:
    sizes = random.Random(7)
    small = await open_store(100_000)
    for n in range(300):
        await small.put(noise(f"{n}", sizes.choice([0, 100, 5_000, 40_000])))
        if n % 10 == 0:
            await small.flush()
            assert (await small.stats()).bytes <= 100_000
    await small.flush()
    stats = await small.stats()
    assert 50_000 < stats.bytes <= 100_000
    assert stats.entries == len(await small.entries(Match(), limit=1000))


async def test_an_entry_larger_than_the_store_is_not_kept(open_store: Open) -> None:
    small = await open_store(20_000)
    await small.put(noise("other"))
    await small.put(noise("a", 20_001))
    assert await small.get(key_of("a")) is None
    assert await settled(small, key_of("a")) is None
    assert await small.get(key_of("other")) == noise("other")
    assert (await small.stats()).evicted == 0


async def test_what_is_too_large_still_replaces(open_store: Open) -> None:
    """The former answer is not the newest any more, so it must not come back."""
    small = await open_store(20_000)
    await small.put(noise("a", 100))
    await small.flush()
    await small.put(noise("a", 20_001))
    assert await small.get(key_of("a")) is None
    assert await settled(small, key_of("a")) is None


async def test_replacing_and_purging_give_space_back(store: Store) -> None:
    one = await charged(store, noise("00"))
    for size in (3000, 50, 100_000, 3000):
        await store.put(noise("00", size))
        await store.flush()
    assert (await store.stats()).bytes == one
    await store.purge(Match())
    stats = await store.stats()
    assert (stats.entries, stats.bytes) == (0, 0)


# Purge.

SHELF = [
    make_entry("a", tenant="acme", user="alice", endpoint="e1", model="m1", tags=("x", "y"), documents=("d1",)),
    make_entry("b", tenant="acme", user="bob", endpoint="e1", model="m2", tags=("y",), created=START - 10),
    make_entry("c", tenant="other", user="alice", endpoint="e2", model="m1", documents=("d1", "d2")),
    make_entry("d", tenant="other", user="bob", endpoint="e2", model="m2", created=START - 20),
]

CRITERIA = [
    (Match(), "abcd"),
    (Match(key=key_of("c")), "c"),
    (Match(key=key_of("z")), ""),
    (Match(tags=frozenset(["y"])), "ab"),
    (Match(tags=frozenset(["x", "nothing"])), "a"),
    (Match(tags=frozenset(["d1"])), ""),
    (Match(tags=frozenset()), ""),
    (Match(documents=frozenset(["d2", "d1"])), "ac"),
    (Match(documents=frozenset(["x"])), ""),
    (Match(endpoint="e2"), "cd"),
    (Match(model="m1"), "ac"),
    (Match(tenant="acme"), "ab"),
    (Match(user="bob"), "bd"),
    (Match(older_than=START), "bd"),
    (Match(older_than=START - 10), "d"),
    (Match(older_than=START - 20), ""),
    (Match(tenant="acme", user="alice"), "a"),
    (Match(tenant="acme", older_than=START), "b"),
    (Match(tags=frozenset(["y"]), documents=frozenset(["d1"])), "a"),
    (Match(tags=frozenset(["y"]), model="m2", endpoint="e1", tenant="acme", user="bob"), "b"),
    (Match(key=key_of("a"), tenant="other"), ""),
    (Match(tenant="ACME"), ""),
    (Match(tenant=""), ""),
    (Match(text="LIC"), "ac"),
    (Match(text="acm"), "ab"),
    (Match(text="M1"), "ac"),
    (Match(text="x"), "a"),
    (Match(text="d2"), "c"),
    (Match(text=key_of("b").hex()[:9].upper()), "b"),
    (Match(text=key_of("b").hex()[1:9]), ""),
    (Match(text="e1"), ""),
    (Match(text="%"), ""),
    (Match(text="_"), ""),
    (Match(text="alice", tenant="other"), "c"),
]


@pytest.mark.parametrize(("match", "names"), CRITERIA)
@pytest.mark.parametrize("flushed", [False, True])
async def test_purge_and_listing_select_the_same(store: Store, match: Match, names: str, flushed: bool) -> None:
    for entry in SHELF:
        await store.put(entry)
    if flushed:
        await store.flush()
    chosen = {key_of(name) for name in names}
    assert await store.purge(match, dry_run=True) == len(names)
    assert {entry.key for entry in await store.entries(match, limit=9)} == chosen
    assert await store.purge(match) == len(names)
    assert await store.purge(match) == 0
    for entry in SHELF:
        assert (await store.get(entry.key) is None) == (entry.key in chosen)
    assert (await store.stats()).entries == len(SHELF) - len(names)


@pytest.mark.parametrize(("match", "names"), CRITERIA)
@pytest.mark.parametrize("flushed", [False, True])
async def test_a_soft_purge_ends_lives_and_nothing_else(
    store: Store, clock: Clock, match: Match, names: str, flushed: bool
) -> None:
    shelf = [replace(entry, expires=START + 100, keep_until=START + 160) for entry in SHELF]
    for entry in shelf:
        await store.put(entry)
    if flushed:
        await store.flush()
    clock.time = START + 40
    assert await store.purge(match, soft=True, dry_run=True) == len(names)
    assert [await store.get(entry.key) for entry in shelf] == shelf
    assert await store.purge(match, soft=True) == len(names)
    assert await store.purge(match, soft=True) == 0, "what is stale already is not made stale once more"
    chosen = {key_of(name) for name in names}
    for entry in shelf:
        cut = replace(entry, expires=START + 40, keep_until=START + 100)
        assert await store.get(entry.key) == (cut if entry.key in chosen else entry)
    clock.time = START + 100
    assert {entry.key for entry in await store.entries(Match(), limit=9)} == {e.key for e in shelf} - chosen


async def test_a_soft_purge_is_about_what_is_fresh(store: Store, clock: Clock) -> None:
    stale = make_entry("a", created=START - 10, expires=START - 5, keep_until=START + 100)
    graceless = make_entry("b", created=START, expires=START + 60, keep_until=START + 60)
    await store.put(stale)
    await store.put(graceless)
    assert await store.purge(Match(), soft=True) == 1
    assert await settled(store, stale.key) == stale
    assert await store.get(graceless.key) is None
    again = make_entry("b", created=START, expires=START + 60, keep_until=START + 60)
    await store.put(again)
    assert await settled(store, again.key) == again


@pytest.mark.parametrize("criterion", ["tags", "documents", "tenant", "user", "endpoint", "model"])
async def test_pattern_characters_mean_themselves(store: Store, criterion: str) -> None:
    many = criterion in ("tags", "documents")
    texts = [*PATTERNS, "a", "b", "ab", "aa", "abc"]
    for text in texts:
        await store.put(make_entry(text, **{criterion: (text,) if many else text}))
    for left, text in enumerate(PATTERNS, 1):
        assert await store.purge(Match(**{criterion: frozenset([text]) if many else text})) == 1, text
        assert await store.get(key_of(text)) is None
        assert (await store.stats()).entries == len(texts) - left


async def test_a_purge_by_a_great_many_tags(store: Store) -> None:
    for n in range(10):
        await store.put(make_entry(f"{n}", tags=(f"t{n}",)))
    wanted = frozenset(f"t{n}" for n in range(5, 60_000))
    assert await store.purge(Match(tags=wanted)) == 5


async def test_purge_also_takes_what_is_not_written_yet(store: Store) -> None:
    await store.put(make_entry("a", body=b"1"))
    await store.purge(Match(key=key_of("a")))
    assert await store.get(key_of("a")) is None
    assert await settled(store, key_of("a")) is None


async def test_what_is_put_after_a_purge_stays(store: Store) -> None:
    await store.put(make_entry("a", body=b"1"))
    purge = asyncio.ensure_future(store.purge(Match()))
    await asyncio.sleep(0)
    await store.put(make_entry("a", body=b"2"))
    await purge
    for found in (await store.get(key_of("a")), await settled(store, key_of("a"))):
        assert found is not None
        assert found.body == b"2"


# Listing.


async def test_listing_is_the_newest_first_and_limited(store: Store) -> None:
    order = list(range(40))
    random.Random(3).shuffle(order)
    for n in order:
        await store.put(make_entry(f"{n}", created=START - n))
    expected = [key_of(f"{n}") for n in range(40)]
    assert [entry.key for entry in await store.entries(Match(), limit=100)] == expected
    assert [entry.key for entry in await store.entries(Match(), limit=7)] == expected[:7]
    assert [entry.key for entry in await store.entries(Match(older_than=START - 30), limit=2)] == expected[31:33]
    assert await store.entries(Match(), limit=0) == []
    assert await store.entries(Match(), limit=-1) == []


async def test_a_thousand_entries(store: Store) -> None:
    entries = [make_entry(f"{n}", body=b"%d" % n, tags=(f"t{n % 3}",), created=START - n) for n in range(1000)]
    for entry in entries:
        await store.put(entry)
    assert await store.entries(Match(), limit=2000) == entries
    assert (await store.stats()).entries == 1000
    assert await store.purge(Match(tags=frozenset(["t1"]))) == 333
    for n, entry in enumerate(entries):
        assert (await store.get(entry.key)) == (None if n % 3 == 1 else entry)


# Concurrency.


async def test_concurrent_puts_gets_and_purges_never_mix_entries_up(store: Store) -> None:
    async def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(60):
            name = f"{dice.randrange(20)}"
            match dice.randrange(6):
                case 0 | 1:
                    await store.put(make_entry(name, upstream_id=f"{seed}", tags=(name,)))
                case 2:
                    await store.purge(Match(tags=frozenset([name])))
                case _:
                    found = await store.get(key_of(name))
                    assert found is None or found.tags == (name,)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(seed) for seed in range(8)))
    left = await store.entries(Match(), limit=100)
    assert len({entry.key for entry in left}) == len(left) == (await store.stats()).entries
    await store.purge(Match())
    assert await store.entries(Match(), limit=100) == []


async def test_cancelled_calls_do_not_disturb_later_ones(store: Store) -> None:
    entries = {name: make_entry(name) for name in map(str, range(30))}
    for entry in entries.values():
        await store.put(entry)
    await store.flush()
    for turn in range(30):
        calls = [asyncio.ensure_future(store.get(entry.key)) for entry in entries.values()]
        calls.append(asyncio.ensure_future(store.purge(Match(tenant="nobody"))))
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        name = f"{turn}"
        assert await store.get(key_of(name)) == entries[name]


async def test_last_used_order_survives_equal_times(store: Store, open_store: Open) -> None:
    """The clock stands still here: order comes from the order of calls alone."""
    small = await open_store(3 * await charged(store, noise("00")) + 100)
    for name in ("00", "01", "02"):
        await small.put(noise(name))
    await small.flush()
    for name in ("01", "00", "02"):
        await small.get(key_of(name))
    for name, gone in (("03", "01"), ("04", "00"), ("05", "02")):
        await small.put(noise(name))
        assert await settled(small, key_of(gone)) is None


async def test_closing_twice_is_harmless(store: Store) -> None:
    await store.put(replace(make_entry(), body=os.urandom(10)))
    await store.aclose()
    await store.aclose()
