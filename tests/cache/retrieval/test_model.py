"""Whatever happens in whatever order: what is found is what a search would find now for this principal."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cache.match import Match
from tests.cache.retrieval.desk import Desk
from tests.support.retrievers import Shelf

WORDS = ("leave", "pay", "form")
IDS = ("a.md", "b.md")
PERMISSIONS = ("hr", "eng")

permissions = st.sampled_from((None, frozenset[str](), frozenset({"hr"}), frozenset({"hr", "eng"})))
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
find = st.tuples(
    st.just("find"),
    st.sampled_from(("acme", "globex")),
    permissions,
    st.sampled_from(WORDS),
    st.sampled_from((1, 3)),
    st.booleans(),
)
put = st.tuples(
    st.just("put"), st.sampled_from(IDS), texts, st.sampled_from("12"), st.frozensets(st.sampled_from(PERMISSIONS))
)
others = st.one_of(
    st.tuples(st.just("delete"), st.sampled_from(IDS)),
    st.tuples(st.just("purge"), st.sampled_from(IDS)),
    st.tuples(st.just("evict"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from((60.0, 90_000.0))),
)
steps = st.lists(st.one_of(find, find, put, others), min_size=4, max_size=14)


@settings(max_examples=80, deadline=None)
@given(steps)
def test_nothing_else_is_ever_found(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[Any, ...]]) -> None:
    desk = Desk(Shelf())
    desk.shelf.put("a.md", "leave pay", needs=["hr"])
    desk.shelf.put("b.md", "leave form\n\npay leave")
    asked: dict[tuple[Any, ...], bool] = {}
    for step in steps:
        match step:
            case ("find", *what, full):
                asked[tuple(what)] = full
            case ("put", id, text, version, needs):
                desk.shelf.put(id, text, version=version, needs=sorted(needs))
            case ("delete", id):
                desk.shelf.documents.pop(id, None)
            case ("purge", id):
                await desk.cache.purge(Match(documents=frozenset({f"shelf/{id}"})))
                assert not await desk.cache.entries(Match(documents=frozenset({f"shelf/{id}"})), limit=1)
            case ("evict", number):
                kept = sorted(entry.key for entry in await desk.cache.entries(Match(), limit=100))
                desk.forget_front(*kept[number::10])
            case ("wait", seconds):
                desk.clock.time += seconds
        for what, full in asked.items():
            await _look(desk, *what, full=full)


async def _look(
    desk: Desk, tenant: str, permissions: frozenset[str] | None, query: str, top_k: int, *, full: bool
) -> None:
    shelf = desk.shelf
    effective = None if permissions is None else shelf.effective(permissions)
    results = await desk.find(tenant=tenant, permissions=effective, query=query, top_k=top_k)
    expected = shelf.found(query, top_k, permissions)
    pieces = [(f.document, f.version, f.position, f.score) for f in expected]
    assert [(r.document, r.version, r.position, r.score) for r in results.references] == pieces
    assert results.entry.tenant == tenant
    if full:
        results = await desk.texts(results)
        assert results.texts == tuple(f.text for f in expected)
