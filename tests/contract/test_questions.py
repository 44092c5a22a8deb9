"""What every store promises of questions kept beside entries, and of keys that it knows (cache.stores.base)."""

import asyncio

import pytest

from cache.match import Match
from cache.question import Question
from cache.stores.base import Store
from tests.contract.conftest import Open
from tests.contract.stores import START, Clock, Kind, key_of, make_entry, make_question


async def every(store: Store, *, page: int = 100) -> list[Question]:
    """All questions, read in pages."""
    found: list[Question] = []
    while True:
        after = found[-1].key if found else b""
        more = await store.questions(after=after, limit=page)
        assert len(more) <= page
        found += more
        if len(more) < page:
            return found


def kept(kind: Kind, *questions: Question) -> list[Question]:
    """What the store should give of these."""
    return sorted(questions, key=lambda question: question.key) if kind.keeps_questions else []


# Questions.


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_question_comes_back_whole(kind: Kind, store: Store, flushed: bool) -> None:
    question = Question(
        key=key_of("a"),
        context=bytes(range(32)),
        text="Wie heißt der \x00 Chef? 日本語 👩‍👩‍👧",
        embedder="sentence-transformers/ünïcode",
        vector=bytes(range(256)) * 6,
        same=(key_of("c"), key_of("b"), bytes(32)),
    )
    await store.put(make_entry("a"))
    if flushed:
        await store.flush()
    await store.note(question)
    assert await every(store) == kept(kind, question)


async def test_a_question_without_a_vector_comes_back(kind: Kind, store: Store) -> None:
    bare = Question(key_of("a"), bytes(32), "")
    await store.put(make_entry("a"))
    await store.note(bare)
    assert await every(store) == kept(kind, bare)


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_later_question_takes_the_place_of_the_earlier(kind: Kind, store: Store, flushed: bool) -> None:
    await store.put(make_entry("a"))
    await store.note(make_question("a", embedder="", vector=b""))
    if flushed:
        await store.flush()
    await store.note(make_question("a", same=(key_of("b"),)))
    assert await every(store) == kept(kind, make_question("a", same=(key_of("b"),)))


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_question_without_its_entry_is_ignored(store: Store, flushed: bool) -> None:
    await store.put(make_entry("b"))
    await store.note(make_question("a"))
    if flushed:
        await store.flush()
    await store.put(make_entry("a"))
    assert await every(store) == []


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_newer_answer_keeps_its_question(kind: Kind, store: Store, flushed: bool) -> None:
    """The key is a digest of the request, so the question is the same."""
    await store.put(make_entry("a", tags=("old",)))
    await store.note(make_question("a"))
    if flushed:
        await store.flush()
    await store.put(make_entry("a", body=b"a longer answer" * 100))
    assert await every(store) == kept(kind, make_question("a"))
    assert await store.purge(Match(tags=frozenset(["old"]))) == 0
    assert await store.purge(Match(key=key_of("a"))) == 1
    assert await every(store) == []


@pytest.mark.parametrize("flushed", [False, True])
async def test_questions_go_with_what_is_purged_and_do_not_come_back(kind: Kind, store: Store, flushed: bool) -> None:
    for name in ("a", "b"):
        await store.put(make_entry(name, user=name))
        await store.note(make_question(name))
    if flushed:
        await store.flush()
    assert await store.purge(Match(user="a")) == 1
    assert await every(store) == kept(kind, make_question("b"))
    await store.note(make_question("a"))
    await store.put(make_entry("a"))
    assert await every(store) == kept(kind, make_question("b"))


async def test_a_soft_purge_leaves_questions(kind: Kind, store: Store, clock: Clock) -> None:
    await store.put(make_entry("a", expires=START + 60, keep_until=START + 100))
    await store.note(make_question("a"))
    clock.time += 10
    assert await store.purge(Match(), soft=True) == 1
    assert await every(store) == kept(kind, make_question("a"))
    clock.time += 40
    assert await every(store) == []


async def test_questions_are_those_of_entries_that_may_still_be_kept(kind: Kind, store: Store, clock: Clock) -> None:
    for name, life in (("a", 60), ("b", 70)):
        await store.put(make_entry(name, expires=START + 50, keep_until=START + life))
        await store.note(make_question(name))
    clock.time = START + 60 - 0.001
    assert await every(store) == kept(kind, make_question("a"), make_question("b"))
    clock.time = START + 60
    assert await every(store) == kept(kind, make_question("b"))


async def test_pages_are_in_the_order_of_keys(kind: Kind, store: Store) -> None:
    questions = [make_question(f"{n}", vector=b"") for n in range(100)]
    for n, question in enumerate(questions):
        await store.put(make_entry(f"{n}"))
        await store.note(question)
    in_order = kept(kind, *questions)
    for page in (1, 7, 50, 100, 101):
        assert await every(store, page=page) == in_order
    middle = sorted(question.key for question in questions)[49]
    assert await store.questions(after=middle, limit=3) == in_order[50:53]
    between = middle[:-1] + bytes([middle[-1] ^ 1])
    expected = [question for question in in_order if question.key > between]
    assert await store.questions(after=between, limit=3) == expected[:3]
    assert await store.questions(after=b"\xff" * 32, limit=3) == []
    assert await store.questions(after=b"\xff" * 33, limit=3) == []
    assert await store.questions(after=b"", limit=0) == []
    assert await store.questions(after=b"", limit=-1) == []


async def test_questions_survive_a_restart_where_they_are_kept(kind: Kind, open_store: Open) -> None:
    first = await open_store(10**7)
    for name in ("a", "b"):
        await first.put(make_entry(name))
        await first.note(make_question(name))
    await first.aclose()
    second = await open_store(10**7)
    assert await every(second) == kept(kind, make_question("a"), make_question("b"))


async def test_questions_count_against_the_bound_and_give_their_space_back(kind: Kind, store: Store) -> None:
    await store.put(make_entry("a"))
    await store.flush()
    bare = (await store.stats()).bytes

    async def grown() -> int:
        await store.flush()
        return (await store.stats()).bytes - bare

    await store.note(make_question("a"))
    one = await grown()
    assert 1536 < one < 2500 if kind.keeps_questions else one == 0
    await store.note(make_question("a", vector=bytes(768 * 4)))
    assert one + 1536 <= await grown() < one + 2500 if kind.keeps_questions else await grown() == 0
    await store.note(make_question("a"))
    assert await grown() == one
    await store.put(make_entry("a"))
    assert await grown() == one
    await store.purge(Match())
    assert await grown() == -bare


async def test_what_goes_for_space_takes_its_question_along(open_store: Open) -> None:
    small = await open_store(40_000)
    for n in range(100):
        await small.put(make_entry(f"{n}"))
        await small.note(make_question(f"{n}"))
        await small.flush()
        stats = await small.stats()
        assert stats.bytes <= 40_000
    assert (await small.stats()).evicted > 50
    assert await small.get(key_of("99")) is not None
    questions = await every(small)
    keys = [question.key for question in questions]
    assert set(await small.known(keys)) == set(keys)


async def test_concurrent_notes_puts_and_purges_leave_a_whole(kind: Kind, store: Store) -> None:
    async def work(seed: int) -> None:
        for n in range(40):
            name = f"{(seed * 7 + n) % 10}"
            await store.put(make_entry(name))
            await asyncio.sleep(0)
            await store.note(make_question(name, text=name))
            if n % 9 == seed:
                await store.purge(Match(key=key_of(name)))

    await asyncio.gather(*(work(seed) for seed in range(6)))
    for question in await every(store):
        assert question == make_question(question.text, text=question.text)
    await store.purge(Match())
    assert await every(store) == []
    stats = await store.stats()
    assert (stats.entries, stats.bytes) == (0, 0)


# Keys.


@pytest.mark.parametrize("flushed", [False, True])
async def test_known_are_the_keys_of_entries_that_may_still_be_kept(store: Store, clock: Clock, flushed: bool) -> None:
    for name, life in (("a", 60), ("b", 70), ("c", 70)):
        await store.put(make_entry(name, expires=START + 50, keep_until=START + life))
    if flushed:
        await store.flush()
    asked = [key_of(name) for name in ("a", "b", "z", "c", "b")] + [b"", bytes(32), key_of("a")[:-1]]
    assert set(await store.known(asked)) == {key_of(name) for name in "abc"}
    assert set(await store.known(asked[1:3])) == {key_of("b")}
    assert set(await store.known([])) == set()
    await store.purge(Match(key=key_of("c")))
    clock.time = START + 60
    assert set(await store.known(asked)) == {key_of("b")}


async def test_known_of_what_waits_and_what_is_written(store: Store) -> None:
    for name in ("written", "written and replaced"):
        await store.put(make_entry(name))
    await store.flush()
    await store.put(make_entry("written and replaced", keep_until=START))
    await store.put(make_entry("waits"))
    await store.put(make_entry("waits, but dead", keep_until=START))
    asked = [key_of(n) for n in ("written", "written and replaced", "waits", "waits, but dead")]
    assert set(await store.known(asked)) == {key_of("written"), key_of("waits")}


async def test_thousands_of_keys(store: Store) -> None:
    for n in range(0, 3000, 3):
        await store.put(make_entry(f"{n}"))
        if n == 1500:
            await store.flush()
    keys = [key_of(f"{n}") for n in range(3000)]
    assert set(await store.known(keys)) == set(keys[::3])


async def test_to_be_known_is_no_use(store: Store, open_store: Open) -> None:
    entries = [make_entry(name, body=bytes(range(256)) * 8) for name in "abcd"]
    await store.put(entries[0])
    await store.flush()
    small = await open_store(3 * (await store.stats()).bytes + 100)
    for entry in entries[:3]:
        await small.put(entry)
    await small.flush()
    assert len(await small.known([key_of("a")])) == 1
    await small.put(entries[3])
    await small.flush()
    assert set(await small.known([key_of(name) for name in "abcd"])) == {key_of(name) for name in "bcd"}
