"""Requests that cannot be judged by the words of one short text: never answered by meaning, nor is their answer ever
another question's. Each says why."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.embedders import Placed
from tests.support.gateway import ALICE, Running, config_text, running
from tests.support.semantic import ASKED, OTHER, REWORDED, TWICE_REWORDED, Json, Room, said, stats
from tests.support.traffic import decision, outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, reply_for

EXTRA = """
  wordy: {mode: request_response, cache: {semantic: {max_words: 10}}}
"""
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
RESULT: list[Json] = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "x"},
]


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def every_text(text: str) -> str:
    """All at one place, but for what asks something else."""
    return OTHER if OTHER in text else ASKED


@pytest.fixture(scope="module")
def embedder() -> Placed:
    return Placed(every_text)


@pytest.fixture(scope="module")
def gw(up: Upstream, embedder: Placed) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA), embedders=lambda config: embedder) as gateway:
        yield gateway


@pytest.fixture
def room(gw: Running) -> Room:
    return Room(gw)


PICTURE: list[Json] = [{"type": "text", "text": "This one."}, IMAGE]
ALONE: list[tuple[str, Json, list[Json]]] = [
    ("tools", {"tools": [TOOL]}, []),
    ("tools", {"functions": [TOOL["function"]]}, []),
    ("several_choices", {"n": 2}, []),
    ("logprobs", {"logprobs": True}, []),
    ("logprobs", {"logprobs": True, "top_logprobs": 3}, []),
    ("tool_results", {}, [user("Look."), *RESULT]),
    ("not_text", {}, [user(PICTURE), {"role": "assistant", "content": "A cat."}]),
]


@pytest.mark.parametrize(("why", "more", "before"), ALONE, ids=[f"{why} {list(m)}" for why, m, _ in ALONE])
def test_requests_that_are_left_alone(
    room: Room, embedder: Placed, up: Upstream, why: str, more: Json, before: list[Json]
) -> None:
    up.script = lambda seen, number: reply_for(seen, several(f"number {number}", seen.body.get("n") or 1))
    embedded, questions = len(embedder.embedded), stats(room.gw)["questions"]
    texts = set()
    for question in (ASKED, REWORDED):
        answer = room.ask(question, messages=room.messages(question, *before), **more)
        assert (outcome(answer), said(room.gw, answer)) == (
            "miss",
            {"tier": "semantic", "result": "skipped", "why": why},
        )
        assert "semantic" not in answer.headers["cache-status"]
        texts.add(text_of(answer))
        again = room.ask(question, messages=room.messages(question, *before), **more)
        assert outcome(again) == "exact"  # only meaning is left alone
    assert len(texts) == 2
    assert len(embedder.embedded) == embedded
    assert stats(room.gw)["questions"] == questions


def several(text: str, n: int) -> Json:
    answer = chat_answer(text)
    return {**answer, "choices": [{**answer["choices"][0], "index": i} for i in range(n)]}


@pytest.mark.parametrize(
    ("why", "asked", "reworded"),
    [
        ("about_now", "What is the weather today?", "What's the weather today?"),
        ("about_now", "Who is the current president of France?", "Who's the current president of France?"),
        ("too_long", f"{ASKED} " + "please " * 64, f"{REWORDED} " + "please " * 64),
        ("too_long", f"{ASKED} " + "x" * 2000, f"{REWORDED} " + "x" * 2000),
        ("empty", "", " "),
        ("not_text", [{"type": "text", "text": ASKED}, IMAGE], [{"type": "text", "text": REWORDED}, IMAGE]),
    ],
)
def test_questions_that_are_left_alone(room: Room, why: str, asked: Any, reworded: Any) -> None:
    texts = [text_of(room.refuses(question, why=why)) for question in (asked, reworded)]
    assert len(set(texts)) == 2


def test_the_limit_of_words_is_the_endpoints(gw: Running) -> None:
    """Exactly as many are compared, one more is not, however it is spelled."""
    room, ten = Room(gw, "/wordy/v1"), "How do I reset my password on this old phone?"
    assert len(ten.split()) == 10
    text = room.told(ten)
    room.serves(ten.replace("do", "can"), text)
    for eleven in (
        ten.replace("my", "my own"),
        ten.replace(" my ", " my\u2003own "),
        ten.replace(" my ", "\nmy\town\n"),
    ):
        room.refuses(eleven, why="too_long")
    usual, padding = Room(gw), " please" * (64 - len(ASKED.split()))
    text = usual.told(ASKED + padding)
    usual.serves(REWORDED + padding, text)
    usual.refuses(f"{REWORDED}{padding} please", why="too_long")


def test_a_megabyte_is_no_question(room: Room, embedder: Placed) -> None:
    embedded = len(embedder.embedded)
    room.refuses("How do I reset it? " * 50_000, why="too_long")
    room.refuses("x" * 1_000_000, why="too_long")
    assert len(embedder.embedded) == embedded


@pytest.mark.parametrize(
    "other",
    [
        [user("I forgot it."), {"role": "assistant", "content": "Which one?"}],
        [user("I lost it."), {"role": "assistant", "content": "Which one?"}],
        [user("I forgot it!"), {"role": "assistant", "content": "Which one?"}],
        [user("I forgot it."), {"role": "assistant", "content": "Which  one?"}],
        [{"role": "developer", "content": "Be brief."}],
        [{**user("I forgot it."), "name": "ann"}, {"role": "assistant", "content": "Which one?"}],
    ],
)
def test_earlier_turns_must_be_the_same(room: Room, other: list[Json]) -> None:
    turns = [user("I forgot it."), {"role": "assistant", "content": "Which one?"}]
    text = text_of(room.ask(ASKED, messages=room.messages(ASKED, *turns)))
    alone = room.told(ASKED)
    again = room.ask(REWORDED, messages=room.messages(REWORDED, *other))
    if other == turns:
        assert (outcome(again), text_of(again)) == ("semantic", text)
    else:
        assert (outcome(again), said(room.gw, again)["why"]) == ("miss", "first_in_context")
        assert text_of(again) not in (text, alone)


def test_another_system_prompt(room: Room) -> None:
    text = room.told(ASKED)
    similar = Room(room.gw, system=room.system + " ")
    assert text_of(similar.refuses(REWORDED, why="first_in_context")) != text
    plain = room.gw.chat(f"{REWORDED} ({room.system})")
    assert text_of(plain) != text


def test_a_last_turn_that_is_not_the_users(room: Room) -> None:
    said_by = [{"role": "assistant", "content": "I would"}]
    texts = set()
    for question in (ASKED, REWORDED):
        answer = room.ask(question, messages=[*room.messages(question), *said_by])
        assert said(room.gw, answer)["why"] == "not_a_user_turn"
        texts.add(text_of(answer))
    assert len(texts) == 2


def test_legacy_completions_are_left_alone(gw: Running, up: Upstream) -> None:
    for prompt in (ASKED, REWORDED):
        headers = {"authorization": f"Bearer {ALICE}"}
        answer = gw.client.post("/v1/completions", json={"model": "test-model", "prompt": prompt}, headers=headers)
        assert (outcome(answer), said(gw, answer)["why"]) == ("miss", "not_chat")


def tool_call() -> Json:
    answer = chat_answer("")
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    return {**answer, "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}]}


def refusal() -> Json:
    answer = chat_answer("No.")
    answer["choices"][0]["message"]["refusal"] = "I cannot help with that."
    return answer


def cut() -> Json:
    answer = chat_answer("It is")
    answer["choices"][0]["finish_reason"] = "length"
    return answer


@pytest.mark.parametrize("given", [tool_call, refusal, cut])
def test_answers_that_serve_no_other_question(room: Room, up: Upstream, given: Any) -> None:
    up.script = lambda seen, number: Reply([json.dumps(given()).encode()])
    more: Json = {"path": "/rr/v1"}
    assert outcome(room.ask(ASKED, **more)) == "miss"
    up.script = lambda seen, number: reply_for(seen, chat_answer(f"number {number}"))
    with upstream_calls(up, 1):
        own = room.refuses(REWORDED, **more)
    room.serves(TWICE_REWORDED, text_of(own), **more)


def test_text_in_one_part_is_the_same_text(room: Room) -> None:
    text = room.told(ASKED)
    parts = [{"type": "text", "text": REWORDED}]
    first = room.serves(REWORDED, text)
    assert decision(room.gw, room.ask(parts))["key"] == decision(room.gw, first)["key"]  # type: ignore[arg-type]
