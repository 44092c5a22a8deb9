"""What a request says of the cache holds for answers by meaning, too."""

from collections.abc import Iterator

import pytest

from tests.support.gateway import Running, config_text, running
from tests.support.semantic import ASKED, OTHER, REWORDED, TWICE_REWORDED, Json, Room, by_wording, said
from tests.support.traffic import error_of, outcome, text_of, upstream_calls
from tests.support.upstream import Upstream

EXACT_ONLY = {"x-refrain-tier": "exact"}


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    embedder = by_wording()
    with running(config_text(up.url), embedders=lambda config: embedder) as gateway:
        yield gateway


@pytest.fixture
def room(gw: Running) -> Room:
    return Room(gw)


def test_only_if_cached_takes_a_semantic_answer(room: Room, up: Upstream) -> None:
    headers = {"cache-control": "only-if-cached"}
    text = room.told(ASKED)
    with upstream_calls(up, 0):
        room.serves(REWORDED, text, headers=headers)
        room.serves(REWORDED, text, headers=headers)
        error = room.ask(OTHER, headers=headers)
    assert error_of(error, 504)["code"] == "not_cached"
    assert error.headers["x-should-retry"] == "false"
    assert said(room.gw, error)["result"] == "miss"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"headers": {"cache-control": "no-cache"}}, "no_cache"),
        ({"headers": {"cache-control": "max-age=0"}}, "no_cache"),
        ({"cache": {"no-cache": True}}, "no_cache"),
        ({"cache": {"s-maxage": 0}}, "no_cache"),
        ({"headers": EXACT_ONLY}, "tier_not_asked"),
    ],
)
def test_a_request_that_wants_none(room: Room, up: Upstream, more: Json, why: str) -> None:
    """By a search and by an alias; its own answer is kept, and wins from then on."""
    text = room.told(ASKED)
    for known in (False, True):
        question = TWICE_REWORDED if known else REWORDED
        if known:
            room.serves(question, text)
        with upstream_calls(up, 1):
            own = text_of(room.refuses(question, why=why, **more))
        assert own != text
        again = room.ask(question)
        assert (outcome(again), text_of(again)) == ("exact", own)


@pytest.mark.parametrize("more", [{"headers": {"cache-control": "no-store"}}, {"cache": {"no-store": True}}])
def test_no_store_asks_nobody_and_leaves_nothing(room: Room, up: Upstream, more: Json) -> None:
    with upstream_calls(up, 1):
        assert outcome(room.ask(ASKED, **more)) == "bypass"
    text = text_of(room.refuses(REWORDED))  # the first one is not known
    with upstream_calls(up, 1):
        assert outcome(room.ask(TWICE_REWORDED, **more)) == "bypass"
    room.serves(TWICE_REWORDED, text)


@pytest.mark.parametrize("more", [{"headers": {"cache-control": "max-age=50"}}, {"cache": {"s-maxage": 50}}])
def test_an_age_that_is_asked_for_holds_for_it_too(room: Room, more: Json) -> None:
    text = room.told(ASKED)
    room.gw.clock.offset = 40
    room.serves(REWORDED, text, **more)
    room.serves(REWORDED, text, **more)
    room.gw.clock.offset = 60
    room.serves(REWORDED, text)
    assert text_of(room.refuses(REWORDED, **more)) != text


def test_the_semantic_tier_alone(room: Room, up: Upstream) -> None:
    text = room.told(ASKED)
    headers = {"x-refrain-tier": "semantic"}
    with upstream_calls(up, 0):
        room.serves(REWORDED, text, headers=headers)
        room.serves(ASKED, text, headers=headers)


@pytest.mark.parametrize("header", ["max-stale=1000", "max-age=1000000"])
def test_it_may_narrow_and_never_widen(gw: Running, header: str) -> None:
    room = Room(gw, "/short/v1")  # lives a minute
    text = room.told(ASKED)
    room.serves(REWORDED, text)
    gw.clock.offset = 61
    for question in (REWORDED, TWICE_REWORDED):
        assert text_of(room.ask(question, headers={"cache-control": header})) != text


@pytest.mark.parametrize("value", ["semantics", "exact;semantic"])
def test_a_tier_that_does_not_exist(room: Room, value: str) -> None:
    assert error_of(room.ask(ASKED, headers={"x-refrain-tier": value}), 400)["param"] == "x-refrain-tier"
