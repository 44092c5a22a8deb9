"""How long an answer serves other questions: while it is fresh by both tiers' lives, and until it is purged, refreshed,
or the question has an answer of its own."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import EVE, Running, config_text, running
from tests.support.live import settled
from tests.support.semantic import ASKED, OTHER, REWORDED, TWICE_REWORDED, Room, by_wording, said, stats
from tests.support.traffic import decision, error_of, fixed, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Upstream, numbered

NOON = 1_750_000_000.0
EXTRA = """
  brief: {mode: request_response, cache: {exact: {ttl: 1h}, semantic: {ttl: 60s}}}
  long: {mode: request_response, cache: {exact: {ttl: 60s}, semantic: {ttl: 1h}}}
  revalidated: {mode: request_response, cache: {exact: {ttl: 100s, stale_while_revalidate: 50s}}}
  kept: {mode: request_response, cache: {exact: {ttl: 100s, stale_if_error: 1h}}}
"""
BROKEN = fixed(Reply([json.dumps({"error": {"message": "no"}}).encode()], status=500))


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    embedder = by_wording()
    with running(config_text(up.url, extra=EXTRA), embedders=lambda config: embedder) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _noon(gw: Running) -> Iterator[None]:
    gw.clock.frozen = NOON
    yield
    settled(gw)


@pytest.fixture
def room(gw: Running) -> Room:
    return Room(gw)


def at(gw: Running, seconds: float) -> None:
    gw.clock.frozen = NOON + seconds


def ttl(answer: Any) -> int:
    return int(answer.headers["cache-status"].removeprefix("semantic; hit; ttl=").partition(";")[0])


@pytest.mark.parametrize("path", ["/brief/v1", "/long/v1"])
def test_the_shorter_of_the_two_lives_holds(gw: Running, path: str) -> None:
    """By a search and by an alias; a hit makes it no longer."""
    room = Room(gw, path)
    text = room.told(ASKED)
    assert ttl(room.serves(REWORDED, text)) == 60
    at(gw, 59)
    again = room.serves(REWORDED, text)
    assert (ttl(again), again.headers["age"]) == (1, "59")
    assert ttl(room.serves(TWICE_REWORDED, text)) == 1
    at(gw, 61)
    assert text_of(room.refuses(REWORDED)) != text
    asked = room.ask(ASKED)
    assert (outcome(asked) == "exact") == (text_of(asked) == text) == (path == "/brief/v1")


@pytest.mark.parametrize("path", ["/revalidated/v1", "/kept/v1"])
def test_a_stale_answer_serves_its_own_question_only(gw: Running, up: Upstream, path: str) -> None:
    room = Room(gw, path)
    text = room.told(ASKED)
    room.serves(REWORDED, text)
    at(gw, 120)
    up.script = BROKEN
    for question in (REWORDED, TWICE_REWORDED):
        error_of(room.ask(question), 500)
    assert (outcome(own := room.ask(ASKED)), text_of(own)) == ("stale", text)
    up.script = numbered
    for question in (REWORDED, TWICE_REWORDED):
        assert text_of(room.ask(question)) != text


def test_a_life_cut_short_by_the_request_is_cut_for_others_too(room: Room) -> None:
    text = room.told(ASKED, headers={"x-refrain-ttl": "10s"})
    room.serves(REWORDED, text)
    at(room.gw, 11)
    assert text_of(room.refuses(REWORDED)) != text


def test_a_ttl_on_the_paraphrase_changes_nothing_for_the_source(room: Room) -> None:
    text = room.told(ASKED)
    room.serves(REWORDED, text, headers={"x-refrain-ttl": "1s"})
    at(room.gw, 30)
    room.serves(REWORDED, text)
    assert outcome(room.ask(ASKED)) == "exact"


# Purges


def purge(gw: Running, expected: int, **body: Any) -> None:
    done = gw.admin("POST", "/admin/purge", json=body)
    assert done.status_code == 200, done.text
    assert done.json()["purged"] == expected


@pytest.mark.parametrize("soft", [False, True])
def test_a_purge_of_the_source_ends_its_aliases(room: Room, up: Upstream, soft: bool) -> None:
    first = room.ask(ASKED)
    text = text_of(first)
    room.serves(REWORDED, text)
    room.serves(REWORDED, text)
    purge(room.gw, 1, key=decision(room.gw, first)["key"], soft=soft)
    with upstream_calls(up, 2):
        assert text_of(room.ask(REWORDED)) != text
        assert text_of(room.refuses(OTHER)) != text
    assert text_of(room.ask(TWICE_REWORDED)) != text


def test_a_purged_question_is_forgotten(room: Room) -> None:
    room.told(ASKED, headers={"x-refrain-tags": "passwords"})
    known = stats(room.gw)["questions"]
    purge(room.gw, 1, tags=["passwords"])
    until(lambda: stats(room.gw)["questions"] < known)
    room.refuses(REWORDED)


def test_tags_endpoint_user_and_age_reach_what_is_found_by_meaning(room: Room) -> None:
    text = room.told(ASKED, headers={"x-refrain-tags": "a"})
    room.serves(REWORDED, text)
    purge(room.gw, 0, tags=["b"])
    room.serves(REWORDED, text)
    purge(room.gw, 1, tags=["a"])
    other = text_of(room.refuses(REWORDED))
    assert other != text
    room.serves(ASKED, other)


def test_a_foreign_purge_ends_nothing(room: Room) -> None:
    text = room.told(ASKED)
    done = room.gw.admin("POST", "/admin/purge", key=EVE, json={"older_than": "0s"})
    assert done.status_code == 200
    room.serves(REWORDED, text)


# Another answer


def test_a_refreshed_source_is_never_served_as_it_was(room: Room) -> None:
    old = room.told(ASKED)
    room.serves(REWORDED, old)
    new = text_of(room.refuses(ASKED, headers={"cache-control": "no-cache"}))
    assert new != old
    for question in (REWORDED, TWICE_REWORDED, REWORDED):
        room.serves(question, new)


def test_a_source_revalidated_in_the_background_serves_its_new_answer(gw: Running, up: Upstream) -> None:
    room = Room(gw, "/revalidated/v1")
    old = room.told(ASKED)
    room.serves(REWORDED, old)
    at(gw, 120)
    assert outcome(room.ask(ASKED)) == "stale"
    settled(gw)
    again = room.ask(ASKED)
    assert (outcome(again), text_of(again) != old) == ("exact", True)
    room.serves(REWORDED, text_of(again))


def test_an_own_answer_wins(room: Room, up: Upstream) -> None:
    text = room.told(ASKED)
    room.serves(REWORDED, text)
    own = text_of(room.refuses(REWORDED, headers={"x-refrain-tier": "exact"}))
    for _ in range(3):
        again = room.ask(REWORDED)
        assert (outcome(again), text_of(again)) == ("exact", own)
        assert not said(room.gw, again)


def test_a_chain_is_not_made(room: Room) -> None:
    """An alias is no answer: nothing is found by it, and it ends with its source."""
    text = room.told(ASKED)
    questions = stats(room.gw)["questions"]
    room.serves(REWORDED, text)
    third = room.serves(TWICE_REWORDED, text)
    assert stats(room.gw)["questions"] == questions
    assert said(room.gw, third)["source"] == decision(room.gw, room.ask(ASKED))["key"]


def test_entries_show_no_alias(room: Room) -> None:
    text = room.told(ASKED)
    before = room.gw.admin("GET", "/admin/entries").json()["entries"]
    room.serves(REWORDED, text)
    assert room.gw.admin("GET", "/admin/entries").json()["entries"] == before


@pytest.mark.parametrize("policy", ["off", "{max_words: 3}"])
def test_a_changed_configuration_ends_aliases(up: Upstream, tmp_path: Any, policy: str) -> None:
    """What the file switches off, or would no longer find, is not served by what was remembered."""
    path, embedder = tmp_path / "refrain.yaml", by_wording()
    text = config_text(up.url, extra=EXTRA)
    with running(text, path=path, embedders=lambda config: embedder) as gw:
        room = Room(gw, "/brief/v1")
        answer = room.told(ASKED)
        room.serves(REWORDED, answer)
        path.write_text(text.replace("semantic: {ttl: 60s}", f"semantic: {policy}"))
        until(lambda: room.ask(REWORDED, headers={"cache-control": "only-if-cached"}).status_code == 504)
        room.refuses(TWICE_REWORDED)
