"""Texts, kept apart from results: found by what they say, and never another one than what was found."""

import asyncio
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.entry import Entry
from cache.match import Match
from cache.retrieval import LIFE, Passage, Reference, refer
from cache.retrieval.passages import decode, encode, text_of
from tests.cache.retrieval.desk import Desk


async def kept(desk: Desk, api: str) -> list[Entry]:
    return [entry for entry in await desk.cache.entries(Match(), limit=100) if entry.api == api]


async def put(desk: Desk, entry: Entry) -> None:
    await desk.cache.put(entry, since=desk.cache.mark())


async def test_who_has_searched_has_the_texts(desk: Desk) -> None:
    results = await desk.find()
    assert results.texts == (
        "Pay during parental leave is full.",
        "Parental leave is fourteen weeks.",
        "Unpaid leave needs a form.",
    )
    assert await desk.texts(results) is results


async def test_who_has_kept_results_has_the_texts_that_were_kept(desk: Desk) -> None:
    first = await desk.find()
    again = await desk.find()
    assert again.texts is None
    assert (await desk.texts(again)).texts == first.texts
    assert len(desk.shelf.searches) == 1


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
async def test_texts_that_memory_has_lost_are_in_the_store(desk: Desk) -> None:
    first = await desk.find()
    again = await desk.find()
    search = again.search
    desk.forget_front(search.text_key(again.references[0]), search.text_key(again.references[2]))
    assert (await desk.texts(again)).texts == first.texts
    assert len(desk.shelf.searches) == 1


async def test_a_text_is_kept_once_for_all_results_of_a_tenant(desk: Desk) -> None:
    for query in ("parental leave", "leave", "unpaid leave"):
        await desk.find(query=query)
        await desk.find(query=query, permissions=None)
    assert len(await kept(desk, "search")) == 6
    assert len(await kept(desk, "chunk")) == 3
    await desk.find(tenant="globex")
    assert len(await kept(desk, "chunk")) == 6


async def test_a_text_says_whose_it_is(desk: Desk) -> None:
    await desk.find(query="unpaid")
    (chunk,) = await kept(desk, "chunk")
    assert (chunk.tenant, chunk.user, chunk.documents) == ("acme", "alice", ("shelf/leave.md",))
    assert chunk.body == b"Unpaid leave needs a form."
    assert chunk.expires - chunk.created == LIFE


async def test_a_text_of_the_same_words_in_another_document_is_another_one(desk: Desk) -> None:
    desk.shelf.put("copy.md", "Unpaid leave needs a form.")
    await desk.find(query="unpaid")
    assert {entry.documents for entry in await kept(desk, "chunk")} == {("shelf/copy.md",), ("shelf/leave.md",)}


async def test_where_a_text_is_gone_the_search_is_run_anew_and_kept(desk: Desk) -> None:
    await desk.find()
    results = await desk.find()
    desk.clock.time += 60
    key = results.search.text_key(results.references[1])
    assert await desk.cache.purge(Match(key=key)) == 1
    full = await desk.texts(results)
    assert (full.outcome, full.references) == ("miss", results.references)
    assert full.texts is not None
    assert len(desk.shelf.searches) == 2
    again = await desk.find()
    assert (again.outcome, again.age) == ("hit", 0)
    assert (await desk.texts(again)).texts == full.texts
    assert len(desk.shelf.searches) == 2


async def test_what_is_found_anew_is_given_with_its_own_references(desk: Desk) -> None:
    """A service may answer otherwise under the same generation."""
    search = desk.search()
    await desk.find(search)
    results = await desk.find(search)
    desk.shelf.put("leave.md", "Parental leave has changed.", version="8")
    await desk.cache.purge(Match(key=search.text_key(results.references[0])))
    full = await desk.texts(results)
    assert [r.version for r in full.references if r.document == "leave.md"] == ["8"]
    assert full.texts == ("Pay during parental leave is full.", "Parental leave has changed.")


async def test_many_that_miss_one_text_search_once(desk: Desk) -> None:
    await desk.find()
    results = [await desk.find() for _ in range(20)]
    await desk.cache.purge(Match(key=results[0].search.text_key(results[0].references[0])))
    full = await asyncio.gather(*(desk.texts(one) for one in results))
    assert len({one.texts for one in full}) == 1
    assert len(desk.shelf.searches) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"Parental leave is fifty weeks.",
        b"",
        b"\xff\xfe",
        b"Unpaid leave needs a form.",
        b"Parental leave is fourteen weeks. ",
    ],
    ids=["other words", "empty", "not UTF-8", "a neighbour's", "a blank more"],
)
async def test_nobody_can_put_other_words_under_a_reference(desk: Desk, body: bytes) -> None:
    first = await desk.find()
    results = await desk.find()
    key = results.search.text_key(results.references[1])
    slot = await desk.cache.get(key)
    assert slot is not None
    await put(desk, replace(slot.entry, body=body))
    assert (await desk.texts(results)).texts == first.texts
    assert len(desk.shelf.searches) == 2
    assert (await desk.texts(await desk.find())).texts == first.texts, "the text is as it was"
    assert len(desk.shelf.searches) == 2


async def test_an_entry_of_another_kind_is_no_text(desk: Desk) -> None:
    await desk.find()
    results = await desk.find()
    slot = await desk.cache.get(results.search.text_key(results.references[1]))
    assert slot is not None
    await put(desk, replace(slot.entry, api="chat"))
    assert (await desk.texts(results)).outcome == "miss"


async def test_texts_over_the_bound_are_searched_for_each_time(desk: Desk) -> None:
    desk.cache.max_entry = 500  # the references fit
    desk.shelf.put("long.md", "parental leave " * 50)
    first = await desk.find(query="parental leave", top_k=1)
    assert first.references[0].document == "hr/pay.md"
    await desk.find()
    results = await desk.find()
    assert results.outcome == "hit"
    assert (await desk.texts(results)).outcome == "miss"


async def test_a_text_is_not_written_again_while_it_lasts(desk: Desk) -> None:
    await desk.find(query="parental leave")
    desk.clock.time += 1_800
    await desk.find(query="leave")
    assert {entry.age(desk.clock()) for entry in await kept(desk, "chunk")} == {1_800}
    desk.clock.time += 7_200
    await desk.find(query="unpaid leave")
    assert {entry.age(desk.clock()) for entry in await kept(desk, "chunk")} == {0}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"[[]]",
        b"\xff",
        b"[" * 10_000,
        b'[["a","1",0,1.0,"","AAAA"]]',
        b'[["a","1",-1,1.0,"","%s"]]',
        b'[["a","1",0,1e999,"","%s"]]',
        b'[["a","1",0,NaN,"","%s"]]',
        b'[["a","1",0,"1","","%s"]]',
        b'[["a",1,0,1.0,"","%s"]]',
        b'[[null,"1",0,1.0,"","%s"]]',
        b'[["a","1",0.5,1.0,"","%s"]]',
        b'[["a","1",0,1.0,"","%s","more"]]',
        b'[["a","1",0,1.0,""]]',
        b'[["a","1",0,1.0,"","%s"],["b","1",0,1.0,"","%s"],["c","1",0,1.0,"","%s"]]',
    ],
    ids=[
        *(
            "empty",
            "object",
            "null",
            "empty item",
            "not UTF-8",
            "deep",
            "short digest",
            "negative position",
            "infinite",
        ),
        *("NaN", "score a text", "version a number", "id null", "half a position", "too many fields", "too few fields"),
        "more than asked for",
    ],
)
async def test_damaged_results_are_a_miss_and_are_replaced(desk: Desk, body: bytes) -> None:
    digest = msgspec.json.encode(bytes(32)).strip(b'"')
    body = body.replace(b"%s", digest)
    search = desk.search(top_k=2)
    first = await desk.find(search)
    await put(desk, replace(first.entry, body=body))
    assert await desk.results.recall(search) is None
    assert (await desk.find(search)).outcome == "miss"
    assert (await desk.find(search)).references == first.references


def test_the_digest_is_over_document_version_title_and_text() -> None:
    passage = Passage("a", "1", 0, "text", 0.5, "title")
    digest = refer(passage).digest
    assert digest.hex() == "a66103fc712b30f6140f1ced195a9d3a10b33b5f06d03e001bd780d4d8c5b8e4"
    assert refer(replace(passage, position=9, score=0.1)).digest == digest
    for name in ("document", "version", "title", "text"):
        assert refer(replace(passage, **{name: "other"})).digest != digest
    assert refer(Passage("a", "1t", 0, "ext", 0.5)).digest != refer(Passage("a", "1", 0, "text", 0.5)).digest


passages = st.builds(
    Passage,
    document=st.text(),
    version=st.text(),
    position=st.integers(0, 10**6),
    text=st.text(),
    score=st.floats(allow_nan=False, allow_infinity=False),
    title=st.text(),
)


@given(st.lists(passages, max_size=5))
def test_references_are_read_back_as_they_were(found: list[Passage]) -> None:
    references = tuple(map(refer, found))
    assert decode(encode(references), most=5) == references
    for passage, reference in zip(found, references, strict=True):
        assert text_of(passage.text.encode(), reference) == passage.text


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    read = decode(body, most=5)
    assert read is None or all(isinstance(reference, Reference) for reference in read)
