"""Endpoints with `fallback`, through real sockets: two backends, and clients that should notice nothing when the first
one is down."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.test_rag_stale import lose_texts
from tests.support.exposition import value
from tests.support.gateway import ALICE, KEYS, Running, running
from tests.support.live import FORMS, SSE, TOKENS, answer_of, call, error_event, first_byte_held, gate, settled
from tests.support.rag import FALLEN, LABEL, Rag, rag_text, shelf_of_three, unasked
from tests.support.retrievers import serving
from tests.support.semantic import ASKED, REWORDED, Room, by_wording
from tests.support.traffic import byte_identical, decision, error_of, fixed, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, chat_chunks, free_port, numbered, reply_for, sse
from tests.support.upstream import upstream as an_upstream
from tests.support.vectors import embed

pytestmark = pytest.mark.slow

Json = dict[str, Any]
KINDS = pytest.mark.parametrize("form", list(FORMS))
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
DEAD = Reply([b'{"error": {"message": "no"}}'], status=500)
FAILURES: dict[str, Reply] = {
    "500": DEAD,
    "503": Reply([b"busy"], status=503),
    "429": Reply([b'{"error": {"message": "later"}}'], status=429, headers={"retry-after": "7"}),
    "refused credentials": Reply([b"no"], status=401),
    "a redirect": Reply([b""], status=307, headers={"location": "http://elsewhere.example/"}),
    "cut": Reply([], cut=True),
    "garbage": Reply([b"<html>"]),
    "an error event": Reply([b'data: {"error": {"message": "no"}}\n\n'], content_type=SSE),
}


def config(one: str, two: str, *, store: str = "memory://", fallback: str = "[two]") -> str:
    return f"""
backends:
  one: {{kind: remote, base_url: "{one}", api_key: sk-first-secret}}
  two: {{kind: remote, base_url: "{two}", api_key: sk-second-secret}}
models: {{"*": one}}
store: {{url: "{store}"}}
{KEYS}
endpoints:
  default: {{mode: stream, fallback: {fallback}}}
  rr: {{mode: request_response, fallback: {fallback}}}
  old: {{mode: stream, fallback: {fallback}, cache: {{exact: {{ttl: 60s, stale_if_error: 1h}}}}}}
prices: {{test-model: {{input: 1.0, output: 2.0}}}}
"""


def second(seen: Seen, number: int) -> Reply:
    """What the other backend says."""
    return reply_for(seen, chat_answer(f"The second one's answer {number}.", model=seen.body["model"]))


@pytest.fixture(scope="module")
def two() -> Iterator[Upstream]:
    with an_upstream() as app:
        app.script = second
        yield app


@pytest.fixture(scope="module")
def gw(up: Upstream, two: Upstream) -> Iterator[Running]:
    with running(config(up.url, two.url)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _as_it_was(two: Upstream, gw: Running) -> Iterator[None]:
    yield
    two.script = second
    settled(gw)


@pytest.fixture
def client(gw: Running) -> Iterator[openai.OpenAI]:
    """The official one, which tries nothing again by itself."""
    with openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0, timeout=20) as made:
        yield made


def message(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


# What a client notices: nothing


@pytest.mark.parametrize("how", FAILURES)
@MODES
@KINDS
def test_a_failing_backend_is_stood_in_for(
    gw: Running, up: Upstream, two: Upstream, prompt: str, form: str, path: str, how: str
) -> None:
    up.script = fixed(FAILURES[how])
    with upstream_calls(up, 1), upstream_calls(two, 1):
        answer = gw.chat(prompt, path=path, **FORMS[form])
    assert outcome(answer) == "miss"
    assert answer_of(answer)["choices"][0]["message"]["content"] == f"The second one's answer {two.calls}."
    record = decision(gw, answer)
    assert (record["backend"], record["error"], record["stored"]) == ("two", None, True)
    assert [failure["backend"] for failure in record["failures"]] == ["one"]
    assert record["tokens"]["served"] == TOKENS


def test_the_official_client_gets_its_answer_whole_or_streamed(
    client: openai.OpenAI, up: Upstream, two: Upstream, prompt: str
) -> None:
    up.script = fixed(DEAD)
    answer = client.chat.completions.create(model="m", messages=message(f"{prompt} whole"))
    assert answer.choices[0].message.content == f"The second one's answer {two.calls}."
    with client.chat.completions.create(model="m", messages=message(f"{prompt} streamed"), stream=True) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == f"The second one's answer {two.calls}."


@MODES
def test_a_backend_that_is_silent_is_stood_in_for(up: Upstream, two: Upstream, prompt: str, path: str) -> None:
    up.script = fixed(Reply([b"{}"], first_pause=5))
    text = config(up.url, two.url).replace("sk-first-secret", "k, timeouts: {first_byte: 200ms}")
    with running(text) as gateway:
        for number, form in enumerate(FORMS.values()):
            answer = gateway.chat(f"{prompt} {number}", path=path, **form)
            assert text_of(answer) == f"The second one's answer {two.calls}."
            record = decision(gateway, answer)
            assert record["failures"] == [{"backend": "one", "error": "backend_timeout_first_byte"}]
            assert 150 < record["phases"]["fallback"] < record["ms"]
        settled(gateway)


def test_a_backend_that_nobody_listens_for_is_stood_in_for(two: Upstream, prompt: str) -> None:
    with running(config(f"http://127.0.0.1:{free_port()}/v1", two.url)) as gateway:
        for number, form in enumerate(FORMS.values()):
            answer = gateway.chat(f"{prompt} {number}", **form)
            assert text_of(answer) == f"The second one's answer {two.calls}."
            assert decision(gateway, answer)["failures"] == [{"backend": "one", "error": "backend_unreachable"}]
        settled(gateway)


def test_each_backend_gets_its_own_credential_and_the_same_request(
    gw: Running, up: Upstream, two: Upstream, prompt: str
) -> None:
    up.script = fixed(DEAD)
    assert outcome(gw.chat(prompt, temperature=0.5, headers={"openai-beta": "x=1"})) == "miss"
    first, other = up.seen[-1], two.seen[-1]
    assert first.headers["authorization"] == "Bearer sk-first-secret"
    assert other.headers["authorization"] == "Bearer sk-second-secret"
    assert (other.path, other.raw, other.headers["openai-beta"]) == (first.path, first.raw, "x=1")
    for seen in (first, other):
        assert ALICE not in str(seen.headers)
    assert "first-secret" not in str(other.headers) + other.raw.decode()


def test_a_turn_that_would_come_too_late_is_had_elsewhere(up: Upstream, two: Upstream, prompt: str) -> None:
    text = config(up.url, two.url).replace("sk-first-secret", "k, max_running: 1")
    with running(text) as gateway:
        up.script = lambda seen, number: Reply(numbered(seen, number).pieces, content_type=SSE, first_pause=0.9)
        assert outcome(gateway.chat(f"{prompt} first")) == "miss"  # so that it is known what a call takes
        with gate() as go:
            up.script = first_byte_held(go)
            calls = up.calls
            other = call(gateway, f"{prompt} somebody else's")
            until(lambda: up.calls > calls)
            answer = gateway.chat(prompt, headers={"x-stainless-read-timeout": "0.7"})
            assert text_of(answer) == f"The second one's answer {two.calls}."
            assert decision(gateway, answer)["failures"] == [{"backend": "one", "error": "deadline_too_short"}]
            go.set()
            assert outcome(other.result()) == "miss"
        settled(gateway)


# Where nobody else is asked


@KINDS
def test_a_request_at_fault_is_told_so(gw: Running, up: Upstream, two: Upstream, prompt: str, form: str) -> None:
    up.script = fixed(Reply([b'{"error": {"message": "too long", "code": "context_length_exceeded"}}'], status=400))
    with upstream_calls(two, 0):
        answer = gw.chat(prompt, **FORMS[form])
    assert error_of(answer, 400)["code"] == "context_length_exceeded"
    assert decision(gw, answer)["failures"] == []


def test_a_stream_that_breaks_off_ends_with_an_error_event(
    gw: Running, client: openai.OpenAI, up: Upstream, two: Upstream, prompt: str
) -> None:
    chunks = chat_chunks(chat_answer("one two three"), include_usage=True)
    up.script = fixed(Reply([sse(chunks[:3], done=False)], content_type=SSE, hang=0.05, cut=True))
    with upstream_calls(two, 0):
        assert error_event(gw.chat(prompt, stream=True))["code"] == "backend_reply_broken"
        with (
            pytest.raises(openai.APIError),
            client.chat.completions.create(model="m", messages=message(prompt), stream=True) as stream,
        ):
            for _ in stream:
                pass


def test_when_both_fail_the_client_hears_when_to_come_back(
    gw: Running, up: Upstream, two: Upstream, prompt: str
) -> None:
    up.script, two.script = fixed(DEAD), fixed(FAILURES["429"])
    answer = gw.chat(prompt)
    assert error_of(answer, 429)["type"] == "rate_limit_exceeded"
    assert answer.headers["retry-after"] == "7"
    record = decision(gw, answer)
    assert record["backend"] == "two"
    assert [failure["error"] for failure in record["failures"]] == ["backend_error", "rate_limit_exceeded"]


def test_vectors_of_two_models_are_not_mixed(gw: Running, up: Upstream, two: Upstream, prompt: str) -> None:
    up.script = fixed(DEAD)
    with upstream_calls(two, 0):
        error_of(embed(gw, prompt), 500)


# Keys


@MODES
@KINDS
def test_its_answer_is_kept_for_as_long_as_the_first_backend_is_down(
    gw: Running, up: Upstream, two: Upstream, prompt: str, form: str, path: str
) -> None:
    up.script = fixed(DEAD)
    with upstream_calls(two, 1), upstream_calls(up, 3):
        answers = [gw.chat(prompt, path=path, **FORMS[form]) for _ in range(3)]
    assert [outcome(answer) for answer in answers] == ["miss", "exact", "exact"]
    assert len({text_of(answer) for answer in answers}) == 1
    assert not any(byte_identical(gw, answer) for answer in answers)
    assert answers[1].headers["cache-status"].startswith("exact; hit; ttl=")
    saved = decision(gw, answers[1])
    assert (saved["tokens"]["saved"], saved["tokens"]["consumed"]) == (TOKENS, 0)
    assert [(tier["tier"], tier["why"]) for tier in saved["tiers"]] == [("exact", "fallback")]
    entry = gw.admin("GET", "/admin/entries", params={"key": saved["key"]}).json()["entries"]
    assert [found["backend"] for found in entry] == ["two"]

    up.script = numbered
    with upstream_calls(up, 1):
        back, again = gw.chat(prompt, path=path, **FORMS[form]), gw.chat(prompt, path=path, **FORMS[form])
    assert (outcome(back), outcome(again)) == ("miss", "exact")
    assert text_of(back) == text_of(again) == f"This is answer number {up.calls}."
    assert byte_identical(gw, again)
    assert decision(gw, back)["key"] != saved["key"]
    up.script = fixed(DEAD)
    assert text_of(gw.chat(prompt, path=path, **FORMS[form])) == text_of(back)  # it is kept


def test_a_purge_reaches_what_a_fallback_has_answered(gw: Running, up: Upstream, two: Upstream, prompt: str) -> None:
    up.script = fixed(DEAD)
    headers = {"x-refrain-tags": "purge-me"}
    with upstream_calls(two, 2):
        assert outcome(gw.chat(prompt, headers=headers)) == "miss"
        assert gw.admin("POST", "/admin/purge", json={"tags": ["purge-me"]}).json() == {"purged": 1}
        assert outcome(gw.chat(prompt, headers=headers)) == "miss"


def test_everybody_who_waits_gets_it(gw: Running, up: Upstream, two: Upstream, prompt: str) -> None:
    with gate() as fails, gate() as answers:
        up.script = lambda seen, number: Reply([b"{}"], status=500, gates={0: fails}, cut=True)
        two.script = first_byte_held(answers)
        with upstream_calls(up, 1), upstream_calls(two, 1):
            callers = [call(gw, prompt, **FORMS[form]) for form in FORMS]
            until(lambda: gw.admin("GET", "/metrics").text.count("refrain_flight_listeners 3.0"))
            fails.set()
            until(lambda: two.open)
            callers.append(call(gw, prompt))
            until(lambda: gw.admin("GET", "/metrics").text.count("refrain_flight_listeners 4.0"))
            answers.set()
            results = [caller.result() for caller in callers]
    assert sorted(outcome(result) for result in results) == ["joined", "joined", "joined", "miss"]
    assert {decision(gw, result)["backend"] for result in results} == {"two"}
    assert len({answer_of(result)["choices"][0]["message"]["content"] for result in results}) == 1


def test_a_stale_answer_comes_after_the_chain(gw: Running, up: Upstream, two: Upstream, prompt: str) -> None:
    gw.clock.frozen = 1_750_000_000.0
    old = text_of(gw.chat(prompt, path="/old/v1"))
    gw.clock.frozen += 100
    up.script = two.script = fixed(DEAD)
    answer = gw.chat(prompt, path="/old/v1")
    assert (outcome(answer), text_of(answer), decision(gw, answer)["backend"]) == ("stale", old, "one")
    two.script = second
    assert text_of(gw.chat(prompt, path="/old/v1")) == f"The second one's answer {two.calls}."


def test_what_a_fallback_has_answered_survives_a_restart(
    up: Upstream, two: Upstream, prompt: str, tmp_path: Path
) -> None:
    text = config(up.url, two.url, store=f"sqlite:///{tmp_path}/cache.db")
    up.script = fixed(DEAD)
    with running(text) as gateway:
        first = text_of(gateway.chat(prompt))
    with upstream_calls(two, 0), running(text) as gateway:
        again = gateway.chat(prompt)
        assert (outcome(again), text_of(again)) == ("exact", first)
        up.script = numbered
        assert text_of(gateway.chat(prompt)) == f"This is answer number {up.calls}."
        settled(gateway)


# Beside the other tiers, the lane and reloads


def test_another_question_is_not_answered_with_a_fallbacks_answer(up: Upstream, two: Upstream) -> None:
    with running(config(up.url, two.url), embedders=lambda _: by_wording()) as gateway:
        room = Room(gateway)
        up.script = fixed(DEAD)
        fallen = room.told(ASKED)
        up.script = numbered
        text = room.told(REWORDED)
        assert text != fallen
        room.serves(ASKED, text)
        settled(gateway)


def about_documents(up: Upstream, two: Upstream, search: str) -> str:
    other = f'  two: {{kind: remote, base_url: "{two.url}", api_key: sk-second-secret}}\nmodels:'
    text = rag_text(up.url, search).replace("models:", other, 1)
    return text.replace("hr: {", "hr: {fallback: [two], ").replace("lenient: {mode", "lenient: {fallback: [two], mode")


def test_documents_that_are_lost_are_no_failure_of_the_backend(up: Upstream, two: Upstream) -> None:
    shelf = shelf_of_three()
    with serving(shelf) as url, running(about_documents(up, two, url)) as gateway:
        r, question = Rag(gateway, up, shelf), unasked()
        r.ask(question, path="/lenient/v1")
        lose_texts(r, "lenient/holidays.md@1")
        shelf.fails = FALLEN
        with upstream_calls(up, 1), upstream_calls(two, 0):
            answer = r.ask(question, path="/lenient/v1", temperature=0)
        assert answer.headers["x-refrain-documents"] == "unavailable"
        assert decision(gateway, answer)["failures"] == []
        settled(gateway)


def test_an_answer_from_documents_may_come_from_a_fallback(up: Upstream, two: Upstream) -> None:
    with serving(shelf_of_three()) as url, running(about_documents(up, two, url)) as gateway:
        question = unasked()
        up.script = fixed(DEAD)
        answers = [gateway.chat(question, path="/hr/v1") for _ in range(2)]
        assert [outcome(answer) for answer in answers] == ["miss", "exact"]
        assert [LABEL in answer.headers["x-refrain-documents"] for answer in answers] == [True, True]
        tiers = [(tier["tier"], tier["result"]) for tier in decision(gateway, answers[1])["tiers"]]
        assert tiers == [("retrieval", "hit"), ("exact", "hit")]
        assert "holidays for 25 days" in two.seen[-1].raw.decode()
        settled(gateway)


def test_a_batch_is_answered_by_the_fallback_too(up: Upstream, two: Upstream, prompt: str, tmp_path: Path) -> None:
    up.script = fixed(DEAD)
    lines = [
        {
            "custom_id": f"line {number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "test-model", "messages": message(f"{prompt} {number % 3}")},
        }
        for number in range(6)
    ]
    text = config(up.url, two.url, store=f"sqlite:///{tmp_path}/cache.db")
    with (
        running(text) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=ALICE, max_retries=0, timeout=20) as client,
        upstream_calls(two, 3),
    ):
        sent = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("lines.jsonl", sent), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        done = until(lambda: (b := client.batches.retrieve(batch.id)).status == "completed" and b)
        results = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    assert sorted(result["custom_id"] for result in results) == [line["custom_id"] for line in lines]
    assert {result["response"]["status_code"] for result in results} == {200}


def test_a_chain_that_is_taken_back_is_not_gone_along_any_more(
    up: Upstream, two: Upstream, prompt: str, tmp_path: Path
) -> None:
    path = tmp_path / "refrain.yaml"
    with running(config(up.url, two.url), path=path) as gateway:
        up.script = fixed(DEAD)
        assert outcome(gateway.chat(prompt)) == "miss"
        path.write_text(config(up.url, two.url, fallback="[]"))
        until(lambda: gateway.chat(prompt).status_code == 500)
        path.write_text(config(up.url, two.url))
        answer = until(lambda: (found := gateway.chat(prompt)).status_code == 200 and found)
        assert outcome(answer) == "exact"
        settled(gateway)


def test_a_crowd_while_the_first_backend_is_down(gw: Running, up: Upstream, two: Upstream, prompt: str) -> None:
    up.script = fixed(DEAD)
    with upstream_calls(two, 5), ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: gw.chat(f"{prompt} {number % 5}", stream=number % 2 == 0), range(40)))
    assert {outcome(answer) for answer in answers} <= {"miss", "joined", "exact"}
    for number in range(5):
        assert len({text_of(answer) for answer in answers[number::5]}) == 1


def test_the_metrics_say_how_often(gw: Running, up: Upstream, prompt: str) -> None:
    def fallbacks() -> float:
        return value(gw.admin("GET", "/metrics").text, "refrain_fallbacks_total", backend="one", to="two")

    up.script = fixed(DEAD)
    gw.chat(f"{prompt} first")
    before = fallbacks()
    gw.chat(f"{prompt} second")
    assert fallbacks() == before + 1
