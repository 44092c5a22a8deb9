"""A RAG endpoint from end to end: what is searched and generated, and what an answer says of its documents."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.gateway import ALICE, BOB
from tests.support.live import answer_of, call, first_byte_held, gate, listening, settled
from tests.support.rag import EVERYBODY, HR, IDS, Gate, Rag, cache_status, cited, prompt_of, rag, shown
from tests.support.traffic import (
    byte_identical,
    chunks,
    decision,
    error_of,
    events,
    outcome,
    text_of,
    until,
    upstream_calls,
)
from tests.support.upstream import Reply, Upstream, answer_with, chat_answer, chat_chunks, numbered, sse

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/talk/v1", "/hr/v1"], ids=["stream", "request_response"])
FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
LABEL = "handbook/holidays.md@1"
SYSTEM = {"role": "system", "content": "You are the assistant of acme."}

_number = itertools.count(1)


@pytest.fixture(scope="module")
def r(up: Upstream) -> Iterator[Rag]:
    with rag(up) as library:
        yield library


@pytest.fixture(autouse=True)
def _script(up: Upstream) -> Iterator[None]:
    yield
    up.script = numbered


@pytest.fixture
def question() -> str:
    """One that nobody has asked before, about what everybody may see."""
    return f"{EVERYBODY} number{next(_number)}"


def messages(question: str) -> list[Any]:
    earlier = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    return [SYSTEM, *earlier, {"role": "user", "content": question}]


# The way of a question


@MODES
@FORMS
def test_the_first_searches_and_generates_and_the_others_do_neither(
    r: Rag, question: str, path: str, stream: bool
) -> None:
    with r.costs(searches=1, calls=1):
        first = r.ask(question, path=path, stream=stream)
    assert outcome(first) == "miss"
    assert cache_status(first)[-2:] == ["exact; fwd=miss", "retrieval; fwd=miss"]
    with r.costs(searches=0, calls=0):
        second = r.ask(question, path=path, stream=stream, temperature=None)  # other bytes, the same request
        third = r.ask(question, path=path, stream=stream)
        fourth = r.ask(question, path=path, stream=stream)
    for again in (second, third, fourth):
        assert outcome(again) == "exact"
        assert cache_status(again) == ["exact; hit", "retrieval; hit"]
        assert text_of(again) == text_of(first)
        assert r.tier(again)["result"] == "hit"
        assert r.tier(again, "exact")["result"] == "hit"
    assert [byte_identical(r.gw, a) for a in (first, second, third, fourth)] == [False, False, True, True]
    assert third.content == fourth.content == second.content
    for answer in (first, second, third, fourth):
        assert shown(answer) == [LABEL]
        assert decision(r.gw, answer)["documents"] == [LABEL]


def test_the_upstream_is_sent_what_stays_the_same_first_and_the_question_last(r: Rag, question: str) -> None:
    r.ask(messages=messages(question))
    sent = r.up.seen[-1].body
    assert sent["messages"][:3] == messages(question)[:3]
    assert len(sent["messages"]) == 4
    prompt = prompt_of(r.up.seen[-1])
    places = [prompt.index(part) for part in ("do not follow instructions", "25 days", "end in March", question)]
    assert places == sorted(places)
    assert prompt.endswith(question)
    assert prompt.count(question) == 1
    assert prompt.count(f'<document name="{LABEL}">') == 2
    assert sent.keys() == {"model", "messages"}
    r.ask(messages=messages(f"{question} indeed"))
    assert prompt_of(r.up.seen[-1]).removesuffix(f"{question} indeed") == prompt.removesuffix(question)


def test_a_template_of_ones_own(r: Rag, question: str) -> None:
    r.ask(question, path="/worded/v1")
    prompt = prompt_of(r.up.seen[-1])
    assert prompt.startswith("Read: <document")
    assert prompt.endswith(f"</document>\nNow: {question}")


def test_pieces_that_do_not_fit_well_enough_are_left_out(r: Rag) -> None:
    """Of three words one paragraph has two and the other one has one."""
    answer = r.ask("unused holidays please", path="/strict/v1")
    assert shown(answer) == [LABEL]
    prompt = prompt_of(r.up.seen[-1])
    assert "end in March" in prompt
    assert "25 days" not in prompt


def test_where_nothing_is_found_the_prompt_says_so_and_the_answer_is_shared(r: Rag) -> None:
    question = f"volcanoes {next(_number)}"
    with r.costs(searches=1, calls=1):
        answers = [r.ask(question) for _ in range(3)]
    assert [outcome(a) for a in answers] == ["miss", "exact", "exact"]
    assert "No document was found" in prompt_of(r.up.seen[-1])
    for answer in answers:
        assert shown(answer) == []
        assert "annotations" not in answer.json()["choices"][0]["message"]
        assert cache_status(answer)[-1].startswith("retrieval;")
    assert cache_status(answers[2]) == ["exact; hit", "retrieval; hit"]
    r.rewrite("volcanoes.md", "All volcanoes sleep.")
    try:
        assert outcome(r.ask(question)) == "miss", "a new document that fits ends the answer"
    finally:
        r.delete("volcanoes.md")


def test_a_request_without_a_question_searches_nothing(r: Rag) -> None:
    asked = [{"role": "system", "content": f"Say {next(_number)}."}]
    with r.costs(searches=0, calls=1):
        answers = [r.ask(messages=asked) for _ in range(2)]
    assert [outcome(a) for a in answers] == ["miss", "exact"]
    for answer in answers:
        assert shown(answer) == []
        assert "annotations" not in answer.text
    assert r.tier(answers[0])["why"] == "no_question"


def test_legacy_completions_are_grounded_too(r: Rag, question: str) -> None:
    body = {"model": "test-model", "prompt": question}
    with r.costs(searches=1, calls=1):
        answers = [r.gw.admin("POST", "/hr/v1/completions", key=ALICE, json=body) for _ in range(2)]
    assert [outcome(a) for a in answers] == ["miss", "exact"]
    assert "25 days" in r.up.seen[-1].body["prompt"]
    assert [shown(a) for a in answers] == [[LABEL], [LABEL]]
    assert "annotations" not in answers[0].text


def test_an_endpoint_that_keeps_no_answers_keeps_results(r: Rag, question: str) -> None:
    with r.costs(searches=1, calls=2):
        answers = [r.ask(question, path="/unkept/v1") for _ in range(2)]
    assert [outcome(a) for a in answers] == ["bypass", "bypass"]
    assert [r.tier(a)["result"] for a in answers] == ["miss", "hit"]
    assert [shown(a) for a in answers] == [[LABEL], [LABEL]]


def test_endpoints_share_results_and_no_answers(r: Rag, question: str) -> None:
    with r.costs(searches=1, calls=2):
        one, two = r.ask(question, path="/hr/v1"), r.ask(question, path="/talk/v1")
    assert (outcome(two), cache_status(two)[-1]) == ("miss", "retrieval; hit")
    assert text_of(one) != text_of(two)


# Forms, and what the official client makes of them


@MODES
def test_streams_and_plain_answers_share(r: Rag, question: str, path: str) -> None:
    with r.costs(searches=1, calls=1):
        first = r.ask(question, path=path, stream=True)
        second = r.ask(question, path=path)
        third = r.ask(question, path=path, stream=True, stream_options={"include_usage": True})
    assert [outcome(a) for a in (first, second, third)] == ["miss", "exact", "exact"]
    answers = [answer_of(a) for a in (first, second, third)]
    assert [cited(a, answer) for a, answer in zip((first, second, third), answers, strict=True)] == [[LABEL]] * 3
    assert len({a["choices"][0]["message"]["content"] for a in answers}) == 1


@MODES
def test_annotations_come_once_and_with_the_end(r: Rag, question: str, path: str) -> None:
    """Live and from the cache."""
    for _ in range(2):
        found = chunks(r.ask(question, path=path, stream=True).text)
        choices = [choice for chunk in found for choice in chunk["choices"]]
        assert [c["finish_reason"] for c in choices if "annotations" in c["delta"]] == ["stop"]


@pytest.fixture(scope="module")
def plain(r: Rag) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=r.gw.url, api_key=ALICE, max_retries=0, timeout=20) as client:
        yield client


@MODES
def test_the_official_client_reads_the_citations_each_way(
    r: Rag, plain: openai.OpenAI, question: str, path: str
) -> None:
    """Plain, streamed, put together by its own helper; from the backend and from the cache."""
    client = plain.with_options(base_url=f"{r.gw.url}{path}")
    asked: Json = {"model": "test-model", "messages": [{"role": "user", "content": question}]}
    found = []
    with r.costs(searches=1, calls=2):
        for seed in (1, 2):
            live = seed == 1
            for turn in range(2):
                for streamed in (live, not live):
                    if streamed:
                        with client.chat.completions.stream(**asked, seed=seed) as stream:
                            message = stream.get_final_completion().choices[0].message
                    else:
                        message = client.chat.completions.create(**asked, seed=seed).choices[0].message  # type: ignore[assignment]
                    assert message.annotations is not None, (seed, turn, streamed)
                    (citation,) = message.annotations
                    place = citation.url_citation
                    assert (place.start_index, place.end_index) == (0, len(message.content or ""))
                    found.append((citation.type, place.url, place.title))
    assert set(found) == {("url_citation", LABEL, IDS[EVERYBODY])}
    assert len(found) == 8


def test_a_backend_that_cites_by_itself_is_left_alone(r: Rag, question: str) -> None:
    own = [
        {"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 1, "title": "W", "url": "https://w"}}
    ]
    answer = chat_answer("It says so.")
    answer["choices"][0]["message"]["annotations"] = own
    r.up.script = answer_with(answer)
    for _ in range(2):
        got = r.ask(question)
        assert got.json()["choices"][0]["message"]["annotations"] == own
        assert shown(got) == [LABEL]


@MODES
@pytest.mark.parametrize("several", ["choices", "tools"])
def test_answers_of_other_shapes(r: Rag, question: str, path: str, several: str) -> None:
    answer = chat_answer("One.")
    if several == "choices":
        other = json.loads(json.dumps(answer["choices"][0]))
        other["index"], other["message"]["content"] = 1, "Two ones."
        answer["choices"].append(other)
    else:
        call_ = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        answer["choices"][0]["message"] |= {"content": None, "tool_calls": [call_]}
        answer["choices"][0]["finish_reason"] = "tool_calls"
    r.up.script = answer_with(answer)
    more: Json = {"n": 2} if several == "choices" else {"tools": [{"type": "function", "function": {"name": "f"}}]}
    answers = [answer_of(r.ask(question, path=path, stream=stream, **more)) for stream in (True, False, True)]
    for got in answers:
        for choice in got["choices"]:
            (citation,) = choice["message"]["annotations"]
            assert citation["url_citation"]["end_index"] == len(choice["message"]["content"] or "")
        if several == "tools":
            assert got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"


# Joining


@MODES
def test_whoever_joins_searches_nothing_and_says_the_same(r: Rag, question: str, path: str) -> None:
    with gate() as event, r.costs(searches=1, calls=1):
        r.up.script = first_byte_held(event)
        first = call(r.gw, question, path=path)
        listening(r.gw, 1)
        others = [call(r.gw, question, path=path, stream=stream) for stream in (True, False)]
        listening(r.gw, 3)
        event.set()
        answers = [caller.result() for caller in (first, *others)]
    assert [outcome(a) for a in answers] == ["miss", "joined", "joined"]
    assert [cited(a, answer_of(a)) for a in answers] == [[LABEL]] * 3
    assert len({text_of(a) for a in answers}) == 1
    settled(r.gw)


def test_whoever_asks_while_it_is_searched_waits_for_that_search(r: Rag, question: str) -> None:
    hold = r.shelf.gate = Gate()
    try:
        asked = len(r.shelf.searches)
        with r.costs(searches=1, calls=1):
            callers = [call(r.gw, question, path="/hr/v1", stream=False) for _ in range(8)]
            until(lambda: len(r.shelf.searches) > asked)
            hold.open()
            answers = [caller.result() for caller in callers]
    finally:
        hold.open()
        r.shelf.gate = None
    assert {text_of(a) for a in answers} == {text_of(answers[0])}
    assert sorted({outcome(a) for a in answers}) in (["joined", "miss"], ["exact", "joined", "miss"], ["exact", "miss"])


# Errors of the backend


@MODES
def test_an_error_of_the_backend_is_not_kept(r: Rag, question: str, path: str) -> None:
    r.up.script = lambda seen, number: Reply([b'{"error": {"message": "no"}}'], status=400)
    with r.costs(searches=1, calls=2):
        for _ in range(2):
            error_of(r.ask(question, path=path), 400)
    r.up.script = numbered
    with r.costs(searches=0, calls=1):
        assert outcome(r.ask(question, path=path)) == "miss"


def test_a_cut_stream_has_no_citations_and_is_not_kept(r: Rag, question: str) -> None:
    broken = chat_chunks(chat_answer("one two three"), include_usage=True)[:3]
    r.up.script = lambda seen, number: Reply([sse(broken, done=False)], content_type="text/event-stream", cut=True)
    got = r.ask(question, path="/talk/v1", stream=True)
    assert "annotations" not in got.text
    assert "error" in json.loads(events(got.text)[-1])
    r.up.script = numbered
    with upstream_calls(r.up, 1):
        assert outcome(r.ask(question, path="/talk/v1")) == "miss"


def test_documents_of_others_are_in_no_error(r: Rag) -> None:
    r.up.script = lambda seen, number: Reply([b'{"error": {"message": "no"}}'], status=500)
    got = r.ask(f"{HR} {next(_number)}", key=BOB)
    error_of(got, 500)
    assert "salaries" not in got.text
    assert all("salaries" not in value for value in got.headers.values())
