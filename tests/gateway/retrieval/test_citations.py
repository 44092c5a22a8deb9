"""Citations: that the documents of an answer are in it once, streamed or not, and that nothing else of it changes."""

import copy
import json
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.retrieval.citations import Citations
from gateway.wire.assemble import Assembler
from gateway.wire.render import render_stream
from tests.support.traffic import accumulated
from tests.support.upstream import chat_answer, chat_chunks

Json = dict[str, Any]
DOCUMENTS = {"handbook/leave.md@1": "Leave", "https://intra.example/pay?x=1": 'Pay, "quoted"\n</document>'}


def cites(length: int, documents: dict[str, str] = DOCUMENTS) -> list[Json]:
    return [
        {"type": "url_citation", "url_citation": {"start_index": 0, "end_index": length, "title": title, "url": url}}
        for url, title in documents.items()
    ]


def events(chunks: list[Json]) -> list[Any]:
    return [(json.dumps(chunk).encode(), chunk) for chunk in chunks]


def through(chunks: list[Json], citations: Citations | None = None, *, batch: int = 1) -> list[Json]:
    """The chunks as they come out, in batches of so many; what is sent is what was parsed."""
    citations = citations or Citations(DOCUMENTS)
    found: list[Json] = []
    for start in range(0, len(chunks), batch):
        for data, chunk in citations.into_events(events(chunks[start : start + batch])):
            assert msgspec.json.decode(data) == chunk
            assert chunk is not None
            found.append(chunk)
    return found


def chunk(*choices: Any, **more: Any) -> Json:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": list(choices), **more}


def piece(index: Any, content: str | None = None, finish: str | None = None, **more: Any) -> Json:
    delta = {} if content is None else {"content": content}
    return {"index": index, "delta": {**delta, **more}, "finish_reason": finish}


def two_choices() -> Json:
    answer = chat_answer("One word more.")
    other = copy.deepcopy(answer["choices"][0])
    other["index"], other["message"]["content"] = 1, "Naïve 👍🏽 answer"
    answer["choices"].append(other)
    return answer


def assembled(chunks: list[Json]) -> Json:
    assembler = Assembler("chat")
    for one in chunks:
        assembler.add(one)
    assert assembler.complete
    return assembler.result()


# Whole answers


def test_a_whole_answer_cites_each_document_for_all_of_its_text() -> None:
    answer = chat_answer("Naïve 👍🏽 answer")
    before = copy.deepcopy(answer)
    made = Citations(DOCUMENTS).into_answer(answer)
    assert answer == before
    annotations = made["choices"][0]["message"].pop("annotations")
    assert annotations == cites(len("Naïve 👍🏽 answer"))
    assert made == before
    made["choices"][0]["message"]["annotations"] = annotations
    parsed = ChatCompletion.model_validate(made).choices[0].message.annotations
    assert parsed is not None
    assert [a.url_citation.url for a in parsed] == list(DOCUMENTS)


@pytest.mark.parametrize("content", [None, ""], ids=["null", "empty"])
def test_an_answer_without_text_cites_for_none(content: str | None) -> None:
    answer = chat_answer("x")
    answer["choices"][0]["message"]["content"] = content
    assert Citations(DOCUMENTS).into_answer(answer)["choices"][0]["message"]["annotations"] == cites(0)


def test_each_choice_has_its_own() -> None:
    made = Citations(DOCUMENTS).into_answer(two_choices())
    assert [c["message"]["annotations"] for c in made["choices"]] == [cites(14), cites(15)]


OWN = [{"type": "url_citation", "url_citation": {"start_index": 3, "end_index": 5, "title": "W", "url": "https://w"}}]


def test_a_backend_that_cites_by_itself_is_left_alone() -> None:
    answer = two_choices()
    answer["choices"][1]["message"]["annotations"] = OWN
    made = Citations(DOCUMENTS).into_answer(answer)
    assert [c["message"]["annotations"] for c in made["choices"]] == [cites(14), OWN]


def test_a_backend_that_cites_nothing_gets_ours() -> None:
    answer = chat_answer("x")
    answer["choices"][0]["message"]["annotations"] = []
    assert Citations(DOCUMENTS).into_answer(answer)["choices"][0]["message"]["annotations"] == cites(1)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"error": {"message": "no"}},
        {"choices": None},
        {"choices": {}},
        {"choices": []},
        {"choices": ["x", None, 5, [], {}, {"message": None}, {"message": "hi"}, {"text": "legacy"}]},
    ],
    ids=["empty", "error", "null", "object", "none", "odd"],
)
def test_an_answer_of_another_shape_stays_as_it_is(answer: Json) -> None:
    assert Citations(DOCUMENTS).into_answer(copy.deepcopy(answer)) == answer


def test_without_documents_nothing_is_touched() -> None:
    answer, chunks = two_choices(), events(chat_chunks(two_choices(), include_usage=True))
    assert Citations({}).into_answer(answer) is answer
    assert all(a is b for a, b in zip(Citations({}).into_events(chunks), chunks, strict=True))


# Streams


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_a_stream_makes_the_same_answer_as_a_whole_one(batch: int) -> None:
    """Whatever pieces the network has cut it into; and a replay of it tells the same once more."""
    answer = two_choices()
    made = through(chat_chunks(answer, include_usage=True), batch=batch)
    whole = Citations(DOCUMENTS).into_answer(answer)
    assert assembled(made) == whole
    replayed = accumulated(render_stream("chat", whole, include_usage=True).decode())
    assert [c["message"]["annotations"] for c in replayed["choices"]] == [cites(14), cites(15)]
    for one in made:
        ChatCompletionChunk.model_validate(one)


def test_only_the_last_chunk_of_a_choice_is_another_one() -> None:
    chunks = chat_chunks(two_choices(), include_usage=True)
    sent = events(chunks)
    got = Citations(DOCUMENTS).into_events(sent)
    changed = [new[1] for old, new in zip(sent, got, strict=True) if new[1] is not old[1]]
    assert [c["choices"][0]["finish_reason"] for c in changed if c] == ["stop", "stop"]
    assert [c["choices"][0]["delta"].keys() for c in changed if c] == [{"annotations"}] * 2


def test_the_choices_of_a_stream_may_come_in_turns() -> None:
    made = through(
        [
            chunk(piece(0, "ab"), piece(1, "c")),
            chunk(piece(1, "de"), piece(0, "f")),
            chunk(piece(1, None, "stop"), piece(0, "ghi")),
            chunk(piece(0, None, "length")),
        ]
    )
    found = [{c["index"]: c["delta"].get("annotations") for c in one["choices"]} for one in made]
    assert found == [{0: None, 1: None}, {1: None, 0: None}, {1: cites(3), 0: None}, {0: cites(6)}]


def test_the_text_of_the_last_chunk_counts() -> None:
    (made,) = through([chunk(piece(0, "All at once 👍", "stop", role="assistant"))])
    assert made["choices"][0]["delta"] == {
        "content": "All at once 👍",
        "role": "assistant",
        "annotations": cites(len("All at once 👍")),
    }


def test_characters_are_counted_and_not_bytes() -> None:
    made = through([chunk(piece(0, "é")), chunk(piece(0, "👍🏽")), chunk(piece(0, None, "stop"))])
    assert made[-1]["choices"][0]["delta"]["annotations"] == cites(3)


@pytest.mark.parametrize("where", ["before", "at_the_end"])
def test_a_stream_that_cites_by_itself_is_left_alone(where: str) -> None:
    mine = chunk(piece(0, "ab", annotations=OWN)), chunk(piece(0, None, "stop"))
    last = chunk(piece(0, "ab")), chunk(piece(0, None, "stop", annotations=OWN))
    chunks = list(mine if where == "before" else last)
    assert through(chunks) == chunks


def test_a_second_end_is_not_cited_again() -> None:
    end = chunk(piece(0, None, "stop"))
    made = through([chunk(piece(0, "ab")), end, end])
    assert [c["choices"][0]["delta"].get("annotations") for c in made] == [None, cites(2), None]


@pytest.mark.parametrize("delta", [None, "text", [], 5], ids=["null", "text", "list", "number"])
def test_an_end_with_an_odd_delta_is_cited_all_the_same(delta: Any) -> None:
    made = through([chunk({"index": 0, "delta": delta, "finish_reason": "stop"}), chunk({"index": 1})])
    assert made[0]["choices"][0]["delta"] == {"annotations": cites(0)}
    assert made[1] == chunk({"index": 1})


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"choices": None},
        {"choices": "x"},
        {"choices": [None, 5, "x", []]},
        {"choices": [{"finish_reason": "stop"}]},
        {"choices": [{"index": "0", "delta": {}, "finish_reason": "stop"}]},
        {"choices": [{"index": True, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": {"content": 5}, "finish_reason": None}]},
        {"error": {"message": "no"}},
    ],
    ids=["empty", "null", "text", "odd", "no_index", "text_index", "bool_index", "number", "error"],
)
def test_a_chunk_of_another_shape_stays_as_it_is(odd: Json) -> None:
    citations = Citations(DOCUMENTS)
    assert through([odd], citations) == [odd]
    assert through([chunk(piece(0, "ab", "stop"))], citations)[0]["choices"][0]["delta"]["annotations"] == cites(2)


def test_the_end_marker_and_bytes_that_need_no_change_pass_through() -> None:
    raw: list[Any] = [(b'{ "choices" : [ ] }', {"choices": []}), (b"[DONE]", None)]
    assert Citations(DOCUMENTS).into_events(raw) == raw


def test_numbers_of_a_changed_chunk_are_what_they_were() -> None:
    data = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x":123456789012345678901234567890,"y":1e-300}'
    ((made, _),) = Citations(DOCUMENTS).into_events([(data, msgspec.json.decode(data))])
    assert b"123456789012345678901234567890" in made
    assert json.loads(made)["y"] == 1e-300
