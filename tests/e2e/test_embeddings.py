"""POST /v1/embeddings on real sockets: each vector at its own index, only what is missing asked for, both wire forms
from one stored vector (statement 16); whose it is, how long it lives, and what is refused."""

import asyncio
import base64
import itertools
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.match import Match
from cache.stores import open_store
from tests.support.gateway import ALICE, BOB, EVE, Running, config_text, running
from tests.support.traffic import decision, error_of, fixed, outcome, upstream_calls
from tests.support.upstream import Reply, Upstream, embeddings_answer, vector_of
from tests.support.vectors import MODEL, embed, own, sent, vectors

Json = dict[str, Any]
_number = itertools.count(1)


@pytest.fixture(scope="module")
def client(gw: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0, timeout=20) as c:
        yield c


# The official client


def test_16_a_base64_client_and_a_float_client_get_the_same_vectors(
    client: openai.OpenAI, up: Upstream, prompt: str
) -> None:
    """The client asks for base64 where nobody says otherwise."""
    with upstream_calls(up, 1):
        as_text = client.embeddings.create(model=MODEL, input=[prompt, "b"])
        as_numbers = client.embeddings.create(model=MODEL, input=[prompt, "b"], encoding_format="float")
    assert up.seen[-1].body["encoding_format"] == "base64"
    for answer in (as_text, as_numbers):
        assert [(i.index, i.object) for i in answer.data] == [(0, "embedding"), (1, "embedding")]
        assert (answer.object, answer.model) == ("list", MODEL)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == len(prompt) + 1
    packed = [struct.pack("<8f", *i.embedding) for i in as_text.data]
    assert packed == [struct.pack("<8f", *i.embedding) for i in as_numbers.data]
    assert packed == [struct.pack("<8f", *vector_of(text)) for text in (prompt, "b")]


async def test_16_the_asynchronous_client_too(gw: Running, up: Upstream, prompt: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0) as c:
        await c.embeddings.create(model=MODEL, input=f"{prompt} 0")
        texts = [f"{prompt} {i}" for i in range(6)]
        with upstream_calls(up, 5):
            answers = await asyncio.gather(*(c.embeddings.create(model=MODEL, input=text) for text in texts))
    assert [a.data[0].embedding for a in answers] == [pytest.approx(v, rel=1e-7) for v in own(*texts)]


@pytest.mark.parametrize("form", ["float", "base64"])
def test_16_of_a_partly_cached_batch_only_the_misses_go_upstream(
    gw: Running, up: Upstream, prompt: str, form: str
) -> None:
    texts = [f"{prompt} {i}" for i in range(5)]
    with upstream_calls(up, 1):
        vectors(embed(gw, texts[1:4:2], encoding_format=form))
    with upstream_calls(up, 1):
        answer = embed(gw, texts, encoding_format=form)
    assert up.seen[-1].body["input"] == texts[::2]
    assert up.seen[-1].body["encoding_format"] == form
    assert {type(i["embedding"]) for i in answer.json()["data"]} == {str if form == "base64" else list}
    assert vectors(answer) == own(*texts)
    assert outcome(answer) == "miss"
    assert answer.headers["cache-status"] == 'exact; fwd=miss; detail="hits=2/5"'
    with upstream_calls(up, 0):
        again = embed(gw, texts, encoding_format=form)
    assert outcome(again) == "exact"
    assert again.headers["cache-status"].startswith("exact; hit; ttl=86")
    assert again.content == answer.content


def test_the_first_answer_is_written_like_the_later_ones(gw: Running, up: Upstream, prompt: str) -> None:
    """The backend's doubles have more digits than a float32; nobody ever sees them."""
    assert embed(gw, prompt).content == embed(gw, prompt).content
    numbers = embed(gw, prompt).json()["data"][0]["embedding"]
    assert numbers != vector_of(prompt)
    assert all(len(repr(n)) <= 14 for n in numbers)


def test_one_that_occurs_often_is_asked_for_once(gw: Running, up: Upstream, prompt: str) -> None:
    a, b = f"{prompt} a", f"{prompt} b"
    answer = embed(gw, [a, b, a, a])
    assert up.seen[-1].body["input"] == [a, b]
    assert vectors(answer) == own(a, b, a, a)
    assert answer.json()["usage"] == {"prompt_tokens": 4 * len(a), "total_tokens": 4 * len(a)}


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=6), st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_batches_come_each_text_has_its_vector_and_is_asked_for_once(
    gw: Running, up: Upstream, batches: list[list[int]], data: st.DataObject
) -> None:
    before, mark = len(up.seen), f"example {next(_number)}"
    for batch in batches:
        texts = [f"{mark}: {i}" for i in batch]
        form = data.draw(st.sampled_from(["float", "base64"]))
        answer = embed(gw, texts, encoding_format=form)
        assert vectors(answer) == own(*texts)
        assert answer.json()["usage"]["prompt_tokens"] == sum(map(len, texts))
    asked = sent(up.seen[before:])
    assert len(asked) == len(set(asked)) == len({i for batch in batches for i in batch})


# What an element is


def test_tokens_are_one_element_and_no_text(gw: Running, up: Upstream) -> None:
    tokens = [9_000_001, 9_000_002]
    with upstream_calls(up, 2):
        assert vectors(embed(gw, tokens)) == own(tokens)
        assert up.seen[-1].body["input"] == tokens
        assert vectors(embed(gw, str(tokens))) == own(str(tokens))
    with upstream_calls(up, 0):
        assert vectors(embed(gw, [tokens, tokens])) == own(tokens, tokens)
    with upstream_calls(up, 1):
        assert vectors(embed(gw, [tokens, [3], tokens])) == own(tokens, [3], tokens)
    assert up.seen[-1].body["input"] == [[3]]


def test_every_size_is_another_vector(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 3):
        for dimensions in (None, 4, 5, None, 4, 5):
            answer = embed(gw, prompt, dimensions=dimensions)
            assert vectors(answer) == own(prompt, size=dimensions or 8)


def test_a_backend_that_gives_another_size_is_believed(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = lambda seen, number: Reply([json.dumps(embeddings_answer(replace(seen, body=plain(seen)))).encode()])
    assert [len(v) for v in vectors(embed(gw, [prompt], dimensions=4))] == [8]


def plain(seen: Any) -> Json:
    return {k: v for k, v in seen.body.items() if k != "dimensions"}


def test_models_are_kept_apart(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 2):
        assert embed(gw, prompt).json()["model"] == MODEL
        assert embed(gw, prompt, model="other-model").json()["model"] == "other-model"


def test_fields_that_nobody_here_knows_go_upstream_and_into_the_key(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 2):
        for more in ({"input_type": "query"}, {"input_type": "passage"}, {"input_type": "query", "user": "u1"}):
            vectors(embed(gw, prompt, **more))
    assert up.seen[-1].body["input_type"] == "passage"


# Whose it is


def test_another_tenant_never_gets_it(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 2):
        for key, word in ((ALICE, "miss"), (BOB, "exact"), (EVE, "miss"), (EVE, "exact")):
            answer = embed(gw, prompt, key=key)
            assert (outcome(answer), vectors(answer)) == (word, own(prompt))


def test_the_endpoint_says_who_shares(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 4):
        for path, key, word in (
            ("/personal/v1", ALICE, "miss"),
            ("/personal/v1", BOB, "miss"),
            ("/personal/v1", BOB, "exact"),
            ("/v1", ALICE, "miss"),  # another endpoint
            ("/everyone/v1", ALICE, "miss"),
            ("/everyone/v1", EVE, "exact"),
        ):
            assert outcome(embed(gw, prompt, key=key, path=path)) == word, (path, key)


def test_nobody_is_served_without_a_key(gw: Running, prompt: str) -> None:
    embed(gw, prompt)
    assert error_of(embed(gw, prompt, key="rf-nobody"), 401)["type"] == "authentication_error"
    assert error_of(embed(gw, prompt, path="/nowhere/v1"), 404)["code"] == "endpoint_not_found"
    assert gw.admin("GET", "/v1/embeddings").status_code == 405


# How long


def test_a_vector_lives_as_long_as_the_endpoint_s_answers(gw: Running, up: Upstream, prompt: str) -> None:
    embed(gw, prompt, path="/short/v1")
    gw.clock.offset += 59
    again = embed(gw, [prompt, "b"], path="/short/v1")
    assert again.headers["age"] == "59"
    assert up.seen[-1].body["input"] == ["b"]
    gw.clock.offset += 2
    with upstream_calls(up, 1):
        stale = embed(gw, prompt, path="/short/v1")
    assert (outcome(stale), stale.headers["cache-status"]) == ("miss", "exact; fwd=miss")
    assert "age" not in stale.headers


def test_a_request_may_shorten_the_life_of_what_it_stores(gw: Running, up: Upstream, prompt: str) -> None:
    embed(gw, [prompt], headers={"x-refrain-ttl": "10s"})
    gw.clock.offset += 11
    with upstream_calls(up, 1):
        assert outcome(embed(gw, [prompt])) == "miss"


@pytest.mark.parametrize(
    ("more", "word", "status"),
    [
        ({"headers": {"cache-control": "no-store"}}, "bypass", "exact; fwd=bypass"),
        ({"cache": {"no-store": True}}, "bypass", "exact; fwd=bypass"),
        ({"headers": {"x-refrain-tier": "semantic"}}, "bypass", "exact; fwd=bypass"),
        ({"headers": {"x-refrain-ttl": "0s"}}, "miss", "exact; fwd=miss"),
        ({"path": "/uncached/v1"}, "bypass", "exact; fwd=bypass"),
    ],
    ids=str,
)
def test_what_is_not_to_be_kept_is_not(
    gw: Running, up: Upstream, prompt: str, more: Json, word: str, status: str
) -> None:
    with upstream_calls(up, 2):
        for _ in range(2):
            answer = embed(gw, [prompt, prompt], **more)
            assert (outcome(answer), answer.headers["cache-status"]) == (word, status)
            assert vectors(answer) == own(prompt, prompt)
    assert "cache" not in up.seen[-1].body


def test_a_fresh_one_may_be_asked_for_and_replaces_the_old_one(gw: Running, up: Upstream, prompt: str) -> None:
    embed(gw, prompt)
    gw.clock.offset += 30
    with upstream_calls(up, 1):
        fresh = embed(gw, prompt, headers={"cache-control": "no-cache"})
        assert fresh.headers["cache-status"] == "exact; fwd=request"
        assert embed(gw, prompt).headers["age"] == "0"


def test_only_young_ones_may_be_asked_for(gw: Running, up: Upstream, prompt: str) -> None:
    embed(gw, f"{prompt} a")
    gw.clock.offset += 30
    embed(gw, f"{prompt} b")
    both = [f"{prompt} a", f"{prompt} b"]
    with upstream_calls(up, 1):
        answer = embed(gw, both, headers={"cache-control": "max-age=20"})
    assert up.seen[-1].body["input"] == both[:1]
    assert answer.headers["cache-status"] == 'exact; fwd=request; detail="hits=1/2"'
    assert vectors(answer) == own(*both)


def test_only_cached_ones_may_be_asked_for(gw: Running, up: Upstream, prompt: str) -> None:
    only = {"cache-control": "only-if-cached"}
    embed(gw, prompt)
    with upstream_calls(up, 0):
        assert vectors(embed(gw, [prompt, prompt], headers=only)) == own(prompt, prompt)
        missing = embed(gw, [prompt, f"{prompt} b"], headers=only)
        assert error_of(missing, 504)["code"] == "not_cached"
    assert missing.headers["x-should-retry"] == "false"


def test_a_purge_by_tag_takes_the_vectors_that_have_it(gw: Running, up: Upstream, prompt: str) -> None:
    tagged, other = [f"{prompt} a", f"{prompt} b"], f"{prompt} c"
    embed(gw, tagged, headers={"x-refrain-tags": prompt})
    embed(gw, other)
    purged = gw.admin("POST", "/admin/purge", json={"tags": [prompt]})
    assert purged.json() == {"purged": 2}
    embed(gw, [*tagged, other])
    assert up.seen[-1].body["input"] == tagged


# A restart


def test_after_a_restart_vectors_are_there_and_spoilt_ones_are_not(up: Upstream, tmp_path: Path) -> None:
    text = config_text(up.url, store=f"sqlite:///{tmp_path}/cache.db")
    texts = [f"restart {i}" for i in range(100)]
    with running(text) as gw:
        first = embed(gw, texts)
    with running(text) as gw, upstream_calls(up, 0):
        again = embed(gw, texts)
        assert again.content == first.content
        assert outcome(again) == "exact"
    asyncio.run(spoil(f"sqlite:///{tmp_path}/cache.db", 3))
    with running(text) as gw, upstream_calls(up, 1):
        assert vectors(embed(gw, texts)) == own(*texts)
    assert len(up.seen[-1].body["input"]) == 3


async def spoil(url: str, count: int) -> None:
    """Let so many entries of the store hold something that is no vector."""
    store = await open_store(url, max_bytes=2**26, max_entry=2**20)
    assert store is not None
    for entry in await store.entries(Match(), limit=count):
        await store.put(replace(entry, body=entry.body[:-1]))
    await store.aclose()


# What goes wrong


def spoilt(change: Any) -> Any:
    """A script that changes the items of a good answer."""

    def script(seen: Any, number: int) -> Reply:
        answer = embeddings_answer(seen)
        change(answer["data"])
        return Reply([json.dumps(answer).encode()])

    return script


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop(),
        lambda data: data.append({**data[0], "index": 2}),
        lambda data: data[1].update(index=0),
        lambda data: data[1].update(index=5),
        lambda data: data[0]["embedding"].pop(),
        lambda data: data[0].update(embedding=[None] * 8),
        lambda data: data[0].update(embedding=[1e39] * 8),
        lambda data: data[0].update(embedding="AAAA"),
        lambda data: data[0].update(embedding=base64.b64encode(b"1234").decode()),
        lambda data: data.clear(),
    ],
    ids=["missing", "more", "twice", "beyond", "shorter", "null", "infinite", "bytes", "size", "none"],
)
def test_a_reply_that_is_none_is_an_error_and_nothing_of_it_is_kept(
    gw: Running, up: Upstream, prompt: str, change: Any
) -> None:
    texts = [f"{prompt} a", f"{prompt} b"]
    up.script, normal = spoilt(change), up.script
    assert error_of(embed(gw, texts), 502)["code"] == "backend_reply_broken"
    up.script = normal
    with upstream_calls(up, 1):
        assert vectors(embed(gw, texts)) == own(*texts)
    assert up.seen[-1].body["input"] == texts


def test_indexes_in_any_order_are_read_by_their_number(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = spoilt(lambda data: data.reverse())
    texts = [f"{prompt} {i}" for i in range(4)]
    assert vectors(embed(gw, texts)) == own(*texts)


def test_a_backend_that_always_answers_in_its_own_form_is_understood(gw: Running, up: Upstream, prompt: str) -> None:
    for form, other in (("float", "base64"), ("base64", "float")):
        up.script = lambda seen, number, other=other: Reply(
            [json.dumps(embeddings_answer(replace(seen, body={**seen.body, "encoding_format": other}))).encode()]
        )
        answer = embed(gw, [f"{prompt} {form}"], encoding_format=form)
        assert isinstance(answer.json()["data"][0]["embedding"], str if form == "base64" else list)
        assert vectors(answer) == own(f"{prompt} {form}")


@pytest.mark.parametrize(
    ("status", "shown", "headers"),
    [
        (400, 400, {}),
        (429, 429, {"retry-after": "7"}),
        (500, 500, {}),
        (503, 503, {"retry-after-ms": "5"}),
        (401, 502, {}),
    ],
)
def test_a_backend_s_errors_are_passed_on(
    gw: Running, up: Upstream, prompt: str, status: int, shown: int, headers: dict[str, str]
) -> None:
    body = json.dumps({"error": {"message": "No.", "type": "t", "param": "input[1]", "code": "c"}}).encode()
    up.script, normal = fixed(Reply([body], status=status, headers=headers)), up.script
    answer = embed(gw, [prompt, "b"])
    error = error_of(answer, shown)
    assert ("No." in error["message"], error["param"] == "input[1]") == (
        (True, True) if shown < 500 else (False, False)
    )
    assert headers.items() <= dict(answer.headers).items()
    up.script = normal
    assert outcome(embed(gw, [prompt])) == "miss"


def test_an_error_in_a_good_reply_is_one(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = fixed(Reply([json.dumps({"error": {"message": "Busy.", "code": "busy"}}).encode()]))
    assert error_of(embed(gw, prompt), 502)["code"] == "busy"


def test_a_bad_input_is_refused_before_anybody_is_called(gw: Running, up: Upstream) -> None:
    with upstream_calls(up, 0):
        refused = embed(gw, ["a", "b", "c", ""])
        assert error_of(refused, 400)["param"] == "input[3]"
        assert error_of(embed(gw, ["a"] * 2049), 400)["param"] == "input"
        bare = gw.client.post("/v1/embeddings", content=b"{", headers={"authorization": f"Bearer {ALICE}"})
        assert error_of(bare, 400)["code"] == "invalid_json"
    assert decision(gw, refused)["api"] == "embeddings"


def test_as_many_as_may_be_at_once(gw: Running, up: Upstream, prompt: str) -> None:
    texts = [f"{prompt} {i}" for i in range(2048)]
    with upstream_calls(up, 2):
        embed(gw, texts[:1000])
        assert vectors(embed(gw, texts, encoding_format="base64")) == own(*texts)
    assert up.seen[-1].body["input"] == texts[1000:]
