"""What was found for another query that means the same."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cache.match import Match
from cache.retrieval import Results
from gateway.config.endpoints import SemanticPolicy
from gateway.config.load import parse_config
from gateway.directives import Directives
from gateway.semantics import Semantics
from tests.gateway.retrieval.desk import ALICE, BOB, Desk, finder_of
from tests.support.embedders import Placed
from tests.support.tiers import AGAIN, RESET, RIVERS, SAME, folded

ALIKE = SemanticPolicy()
CONFIG = parse_config(
    """
auth: {required: false}
store: {url: "memory://"}
backends: {one: {kind: remote, base_url: "http://127.0.0.1:9/v1"}}
models: {"*": one}
retrievers: {handbook: {kind: http, url: "http://127.0.0.1:9/search"}}
endpoints:
  default: {cache: {semantic: off}, retrieval: {retriever: handbook, semantic: true}}
""",
    {},
)


class Matched(Desk):
    """Its shelf has something for each of the questions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedder = Placed(folded)
        self.semantics = Semantics(self.cache, self.clock, lambda _: self.embedder)
        self.finder = finder_of(self.cache, self.clock, self.semantics)
        self.shelf.put("reset.md", "A password is reset by the help desk.")
        self.shelf.put("hr/reset.md", "Passwords of the pay slips: reset by hr.", needs=["hr"])
        self.shelf.put("rivers.md", "Vienna has rivers: Danube and Wien.")

    async def alike(self, query: str, **more: Any) -> Results:
        return await self.find(query, alike=ALIKE, **more)


@pytest.fixture
async def desk() -> AsyncIterator[Matched]:
    made = Matched()
    await made.semantics.apply(CONFIG)
    yield made
    await made.semantics.aclose()


def searched(desk: Desk) -> int:
    return len(desk.shelf.searches)


async def test_another_wording_finds_the_same_without_a_search(desk: Matched) -> None:
    first = await desk.alike(RESET)
    visit = desk.visit()
    second = await desk.alike(SAME, visit=visit)
    assert searched(desk) == 1
    assert (first.outcome, second.outcome, second.references) == ("miss", "hit", first.references)
    assert second.search.query == SAME
    [tier] = visit.decision.tiers
    assert (tier.name, tier.result, tier.source) == ("retrieval", "hit", first.entry.key)
    assert tier.similarity == pytest.approx(1.0)
    texts = (await desk.finder.texts(visit, second)).texts
    assert texts == first.texts


async def test_the_same_wording_once_more_takes_no_vector(desk: Matched) -> None:
    await desk.alike(RESET)
    await desk.alike(SAME)
    embedded = len(desk.embedder.embedded)
    again = await desk.alike(SAME)
    assert again.similarity == pytest.approx(1.0)
    assert (len(desk.embedder.embedded), searched(desk)) == (embedded, 1)
    assert desk.snapshot.retrievers["handbook"].matches == {"first_in_context": 1, "": 2}


async def test_another_question_is_searched_for(desk: Matched) -> None:
    await desk.alike(RESET)
    assert (await desk.alike(RIVERS)).outcome == "miss"
    assert searched(desk) == 2


async def test_only_where_it_is_wanted(desk: Matched) -> None:
    await desk.alike(RESET)
    assert (await desk.find(SAME)).outcome == "miss"
    no_cache = Directives(no_cache=True)
    assert (await desk.alike(AGAIN, directives=no_cache)).outcome == "miss"
    assert searched(desk) == 3


async def test_what_another_endpoint_has_found_is_used_as_soon_as_it_was_asked_for_here(desk: Matched) -> None:
    await desk.find(RESET)
    assert (await desk.alike(RESET)).outcome == "hit"
    assert (await desk.alike(SAME)).similarity == pytest.approx(1.0)
    assert searched(desk) == 1


async def test_never_across_permissions_and_tenants(desk: Matched) -> None:
    await desk.alike(RESET, principal=ALICE)
    found = await desk.alike(SAME, principal=BOB)
    assert found.outcome == "miss"
    assert [r.document for r in found.references] == ["reset.md"]
    # With each other those of the same permissions share it.
    assert (await desk.alike(AGAIN, principal=BOB)).outcome == "hit"


async def test_never_across_a_change_of_the_documents(desk: Matched) -> None:
    await desk.alike(RESET)
    await desk.shelf.changed("reset.md", version="2", deleted=False)
    assert (await desk.alike(SAME)).outcome == "miss"


async def test_what_was_purged_is_searched_for(desk: Matched) -> None:
    first = await desk.alike(RESET)
    await desk.alike(SAME)
    await desk.cache.purge(Match(key=first.entry.key))
    assert (await desk.alike(SAME)).outcome == "miss"


async def test_what_is_too_old_for_who_asks_is_searched_for(desk: Matched) -> None:
    await desk.alike(RESET)
    desk.clock.time += 60
    assert (await desk.alike(SAME, directives=Directives(max_age=30))).outcome == "miss"


async def test_a_long_text_is_no_question_to_compare(desk: Matched) -> None:
    long = "password " * (ALIKE.max_words + 1)
    await desk.alike(long)
    await desk.alike(long + "!")
    assert searched(desk) == 2
    assert desk.snapshot.retrievers["handbook"].matches == {}


async def test_an_embedder_that_fails_is_a_miss(desk: Matched) -> None:
    await desk.alike(RESET)
    desk.embedder.fails = "crashed"
    assert (await desk.alike(SAME)).outcome == "miss"
    assert desk.snapshot.retrievers["handbook"].matches["embedder_crashed"] == 1


async def test_its_look_ups_are_not_among_those_for_answers(desk: Matched) -> None:
    await desk.alike(RESET)
    await desk.alike(SAME)
    assert desk.semantics.stats()["lookups"] == 0
