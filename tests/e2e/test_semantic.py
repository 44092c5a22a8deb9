"""The answer of another question that means the same, with the real embedder: what its client, the records and the
counters say, and that look-alikes are left alone."""

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.gateway import ALICE, Running, config_text
from tests.support.live import FORMS
from tests.support.semantic import ASKED, REWORDED, Room, meaning, said, sample, stats
from tests.support.traffic import accumulated, chunks, decision, outcome, text_of, upstream_calls
from tests.support.upstream import Upstream, chat_answer, reply_for

EXTRA = """
  literal: {mode: request_response, cache: {semantic: off}}
prices: {test-model: {input: 1.0, output: 2.0}}
"""
REWORDINGS = [
    (ASKED, REWORDED),
    ("What is the capital of France?", "What's the capital of France?"),
    ("How many moons does Jupiter have?", "How many moons has Jupiter got?"),
    ("Please explain how photosynthesis works.", "Can you explain how photosynthesis works?"),
    ("Who wrote Pride and Prejudice?", "Who was Pride and Prejudice written by?"),
    ("What is the boiling point of water at sea level?", "At sea level, what is the boiling point of water?"),
    ("How tall is Mount Everest?", "What is the height of Mount Everest?"),
    ("Give me a recipe for banana bread.", "Please give me a recipe for banana bread."),
]


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with meaning(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture
def room(gw: Running) -> Room:
    return Room(gw)


def test_a_paraphrase_is_served_and_its_head_says_so(room: Room, up: Upstream) -> None:
    text = room.told(ASKED)
    room.gw.clock.offset = 60
    with upstream_calls(up, 0):
        answer = room.serves(REWORDED, text)
    head = answer.headers
    assert head["x-refrain-cache"] == "semantic"
    member, exact = head["cache-status"].split(", ")
    found = re.fullmatch(r'semantic; hit; ttl=(\d+); detail="similarity=(0\.\d\d)"', member)
    assert found is not None, head["cache-status"]
    assert 86_400 - 70 <= int(found[1]) <= 86_400 - 60
    assert float(found[2]) > 0.9
    assert exact == "exact; fwd=miss"
    assert 60 <= int(head["age"]) < 70
    assert re.fullmatch(r"tokens=18; usd=0\.000025; ms=\d+", head["x-refrain-saved"])
    assert head["cache-control"] == "private, no-store"
    assert "semantic;dur=" in head["server-timing"]


def test_the_record_says_what_was_served_and_why(room: Room) -> None:
    first = room.ask(ASKED)
    answer = room.serves(REWORDED, text_of(first))
    source, record = decision(room.gw, first), decision(room.gw, answer)
    assert record["id"] == answer.headers["x-request-id"] != first.headers["x-request-id"]
    assert [tier["tier"] for tier in record["tiers"]] == ["exact", "semantic"]
    tier = record["tiers"][1]
    assert (tier["result"], tier["source"]) == ("hit", source["key"])
    assert f"{tier['similarity']:.2f}" in answer.headers["cache-status"]
    assert record["key"] != source["key"]
    assert (record["outcome"], record["status"], record["stored"]) == ("semantic", 200, False)
    assert record["tokens"].items() >= {"served": 18, "consumed": 0, "unserved": 0, "saved": 18}.items()
    assert record["usd"]["saved"] == pytest.approx(25e-6)
    assert record["ms_saved"] >= 0


def test_the_counters_say_it(room: Room) -> None:
    gw = room.gw
    labels = {"endpoint": "default", "tier": "semantic", "outcome": "semantic"}

    def counted() -> tuple[float, ...]:
        served = sample(gw, "refrain_requests_total", **labels)
        hits = sample(gw, "refrain_semantic_lookups_total", result="hit")
        return served, hits, stats(gw)["hits"], gw.admin("GET", "/admin/stats").json()["requests"].get("semantic", 0)

    before, lookups = counted(), stats(gw)["lookups"]
    room.serves(REWORDED, room.told(ASKED))
    assert counted() == tuple(count + 1 for count in before)
    found = stats(gw)
    assert found["lookups"] == lookups + 2  # the first one found nothing to compare with
    assert found["lookups"] == found["hits"] + sum(found["misses"].values())
    assert found["state"] == "ready"
    assert sample(gw, "refrain_semantic_ready") == 1
    assert sample(gw, "refrain_semantic_questions") == found["questions"] > 0
    assert sample(gw, "refrain_semantic_vectors") == found["vectors"] > 0
    assert sample(gw, "refrain_semantic_bytes") == found["bytes"] > 0


@pytest.mark.parametrize("stored", FORMS)
@pytest.mark.parametrize("form", FORMS)
def test_it_comes_in_the_form_that_was_asked_for(room: Room, up: Upstream, stored: str, form: str) -> None:
    up.script = lambda seen, number: reply_for(seen, chat_answer(f"Click on “Forgot password?”, {number} times."))
    text = room.told(ASKED, **FORMS[stored])
    for _ in range(2):  # by a search, and by its alias
        answer = room.serves(REWORDED, text, **FORMS[form])
        if form == "json":
            assert answer.json()["usage"]["total_tokens"] == 18
            continue
        usages = [chunk["usage"] for chunk in chunks(answer.text) if chunk.get("usage")]
        assert [usage["total_tokens"] for usage in usages] == ([18] if form == "sse+usage" else [])
        assert accumulated(answer.text)["choices"][0]["finish_reason"] == "stop"


def test_the_official_client(room: Room, up: Upstream) -> None:
    with openai.OpenAI(base_url=f"{room.gw.url}/v1", api_key=ALICE, max_retries=0) as client:

        def ask(question: str) -> tuple[str, str]:
            messages = room.messages(question)
            raw = client.chat.completions.with_raw_response.create(model="test-model", messages=messages)  # type: ignore[arg-type]
            return str(raw.headers["x-refrain-cache"]), str(raw.parse().choices[0].message.content)

        asked = ask(ASKED)
        assert asked[0] == "miss"
        with upstream_calls(up, 0):
            assert ask(REWORDED) == ("semantic", asked[1])
            create: Any = client.chat.completions.create
            with create(model="test-model", messages=room.messages(REWORDED), stream=True) as stream:
                assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == asked[1]


@pytest.mark.parametrize(("asked", "reworded"), REWORDINGS, ids=[asked for asked, _ in REWORDINGS])
def test_paraphrases(room: Room, asked: str, reworded: str) -> None:
    room.serves(reworded, room.told(asked))


def test_nothing_is_embedded_for_the_first_question_of_a_context(room: Room) -> None:
    before = stats(room.gw)["vectors"]
    assert said(room.gw, room.ask(ASKED))["why"] == "first_in_context"
    assert stats(room.gw)["vectors"] == before
    room.serves(REWORDED, text_of(room.ask(ASKED)))
    assert stats(room.gw)["vectors"] == before + 1  # the paraphrase has no answer of its own to be found by


def test_a_repeated_paraphrase_is_not_searched_for_again(room: Room) -> None:
    text = room.told(ASKED)
    first = room.serves(REWORDED, text)
    lookups = stats(room.gw)["lookups"]
    again = room.serves(REWORDED, text)
    assert stats(room.gw)["lookups"] == lookups
    found, before = said(room.gw, again), said(room.gw, first)
    assert found["why"] == "alias"
    assert (found["similarity"], found["source"]) == (before["similarity"], before["source"])
    assert again.headers["cache-status"].startswith("semantic; hit; ttl=")


def test_off_is_off(gw: Running) -> None:
    room = Room(gw, "/literal/v1")
    room.told(ASKED)
    assert not said(gw, room.refuses(REWORDED))
    assert "semantic" not in room.refuses("How may I reset my password?").headers["cache-status"]


def test_an_exact_repeat_stays_exact(room: Room) -> None:
    text = room.told(ASKED)
    room.serves(REWORDED, text)
    again = room.ask(ASKED)
    assert (outcome(again), text_of(again)) == ("exact", text)
