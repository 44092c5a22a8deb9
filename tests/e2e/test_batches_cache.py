"""Lines of a batch and online requests share the caches, each as its owner may; and the books count both alike."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.batches import (
    EMBEDDINGS,
    TOKENS,
    Json,
    Lane,
    chat_line,
    chat_lines,
    counts,
    lane,
    lane_config,
    line,
    text_in,
)
from tests.support.gateway import BOB, EVE, Running, running
from tests.support.traffic import outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, numbered, reply_for

pytestmark = pytest.mark.slow

EACH = sum(TOKENS)


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(lane_config(up, tmp_path_factory.mktemp("lane"))) as gateway:
        yield gateway


@pytest.fixture
def alice(gw: Running) -> Iterator[Lane]:
    with lane(gw) as found:
        yield found


def slow(seen: Seen, number: int) -> Reply:
    reply = numbered(seen, number)
    reply.first_pause = 0.3
    return reply


def record(gw: Running, result: Json) -> Json:
    """The decision of a line."""
    found = gw.admin("GET", "/admin/decisions", params={"id": result["response"]["request_id"]})
    assert found.status_code == 200, found.text
    return dict(found.json())


def test_every_line_reads_the_cache_first(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    online = gw.chat(f"{prompt} 1")
    with upstream_calls(up, 1):
        batch = alice.run(chat_lines(prompt, 2))
    answers = alice.answers(batch)
    assert answers["c1"]["response"]["body"] == online.json()
    assert [record(gw, answers[id])["outcome"] for id in ("c1", "c2")] == ["exact", "miss"]
    assert batch.usage is not None
    assert batch.usage.total_tokens == 2 * EACH  # whoever gave them


def test_results_are_there_for_everybody_online(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    batch = alice.run([chat_line("one", prompt)])
    with upstream_calls(up, 0):
        for stream in (False, True):
            response = gw.chat(prompt, key=BOB, stream=stream)
            assert outcome(response) == "exact"
            assert text_of(response) == text_in(alice.answers(batch)["one"])
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, key=EVE)) == "miss"  # of another tenant


def test_a_second_batch_asks_nobody(alice: Lane, up: Upstream, prompt: str) -> None:
    first = alice.run(chat_lines(prompt, 50))
    with upstream_calls(up, 0):
        second = alice.run(chat_lines(prompt, 50))
    texts = [{id: text_in(result) for id, result in alice.answers(batch).items()} for batch in (first, second)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("more", [{}, {"temperature": 0.7, "seed": 1}], ids=["plain", "sampled"])
def test_a_hundred_identical_lines_run_once(alice: Lane, up: Upstream, prompt: str, more: Json) -> None:
    up.script = slow
    with upstream_calls(up, 1):
        batch = alice.run([chat_line(f"c{n}", prompt, **more) for n in range(100)])
    assert counts(batch) == (100, 100, 0)
    assert {text_in(result) for result in alice.answers(batch).values()} == {f"This is answer number {up.calls}."}


def test_a_hundred_identical_embeddings_run_once(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    up.script = slow
    with upstream_calls(up, 1):
        batch = alice.run([line(f"c{n}", EMBEDDINGS, input=prompt) for n in range(100)], url=EMBEDDINGS)
        head = {"authorization": f"Bearer {alice.client.api_key}"}
        online = gw.client.post("/v1/embeddings", json={"model": "test-model", "input": prompt}, headers=head)
    assert counts(batch) == (100, 100, 0)
    vectors = [result["response"]["body"]["data"][0]["embedding"] for result in alice.answers(batch).values()]
    assert vectors == [online.json()["data"][0]["embedding"]] * 100


def test_four_lines_in_ten_are_duplicates(alice: Lane, up: Upstream, prompt: str) -> None:
    numbers = [*range(120), *range(80)]
    Random(9).shuffle(numbers)
    with upstream_calls(up, 120):
        batch = alice.run([chat_line(f"c{n}", f"{prompt} {number}") for n, number in enumerate(numbers)])
    assert counts(batch) == (200, 200, 0)
    texts: dict[int, set[str]] = {}
    for id, result in alice.answers(batch).items():
        texts.setdefault(numbers[int(id[1:])], set()).add(text_in(result))
    assert all(len(of_one) == 1 for of_one in texts.values())
    assert len(texts) == len(set().union(*texts.values())) == 120


# For whom


@pytest.mark.parametrize(("endpoint", "calls"), [("rr", 0), ("personal", 1), ("permitted", 1), ("everyone", 0)])
def test_the_endpoint_says_who_shares(gw: Running, up: Upstream, prompt: str, endpoint: str, calls: int) -> None:
    with lane(gw, endpoint=endpoint) as alice, lane(gw, endpoint=endpoint, key=BOB) as bob:
        first = alice.run([chat_line("one", prompt)])
        with upstream_calls(up, calls):
            second = bob.run([chat_line("one", prompt)])
        same = text_in(alice.answers(first)["one"]) == text_in(bob.answers(second)["one"])
        assert same == (calls == 0)
        with upstream_calls(up, 0):
            assert outcome(gw.chat(prompt, path=f"/{endpoint}/v1", key=BOB)) == "exact"


# Directives


def test_no_store_of_the_batch_holds_for_its_lines(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 3):
        batch = alice.run(chat_lines(prompt, 2), extra_headers={"Cache-Control": "no-store"})
        assert outcome(gw.chat(f"{prompt} 1")) == "miss"
    assert {record(gw, result)["outcome"] for result in alice.answers(batch).values()} == {"bypass"}


def test_no_cache_of_the_batch_holds_for_its_lines(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    gw.chat(f"{prompt} 1")
    with upstream_calls(up, 1):
        alice.run(chat_lines(prompt, 1), extra_headers={"Cache-Control": "no-cache"})


def test_tags_of_the_batch_are_those_of_its_answers(gw: Running, alice: Lane, prompt: str) -> None:
    alice.run(chat_lines(prompt, 3), extra_headers={"x-refrain-tags": "nightly,tickets"})
    assert outcome(gw.chat(f"{prompt} 1")) == "exact"
    assert gw.admin("POST", "/admin/purge", json={"tags": ["nightly"]}).json() == {"purged": 3}
    assert outcome(gw.chat(f"{prompt} 1")) == "miss"


def test_only_what_is_cached(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    gw.chat(f"{prompt} 1")
    with upstream_calls(up, 0):
        batch = alice.run(chat_lines(prompt, 2), extra_headers={"Cache-Control": "only-if-cached"})
    assert counts(batch) == (2, 1, 1)
    assert alice.answers(batch).keys() == {"c1"}
    response = alice.failures(batch)["c2"]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (504, "not_cached")


def test_a_lines_own_directives_hold_for_it_alone(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    before = up.calls
    alice.run(
        [chat_line("no", f"{prompt} 1", cache={"no-store": True}), chat_line("yes", f"{prompt} 2")],
    )
    assert not any("cache" in seen.body for seen in up.seen[before:])
    assert [outcome(gw.chat(f"{prompt} {n}")) for n in (1, 2)] == ["miss", "exact"]
    with upstream_calls(up, 1):
        alice.run([chat_line("fresh", f"{prompt} 2", cache={"no-cache": True})])


def test_a_directive_that_cannot_be_read_is_the_lines_fault(alice: Lane, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        batch = alice.run([chat_line("bad", prompt, cache={"ttl": "long"}), chat_line("good", prompt)])
    response = alice.failures(batch)["bad"]["response"]
    assert (response["status_code"], response["body"]["error"]["param"]) == (400, "cache.ttl")


# Books


def test_the_books_count_the_lines(up: Upstream, tmp_path: Path) -> None:
    """served + unserved = consumed + saved, of lines as of requests; uploads and looks are none."""
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    details = {"completion_tokens_details": {"reasoning_tokens": 2}}
    up.script = lambda seen, number: reply_for(seen, chat_answer(f"{number}", usage={**usage, **details}))
    prices = "prices: {test-model: {input: 1.0, output: 2.0}}\n"
    with running(lane_config(up, tmp_path, extra=prices)) as gw, lane(gw) as alice:
        with upstream_calls(up, 30):
            batch = alice.run([chat_line(f"c{n}", f"Counted {n % 30}") for n in range(100)])
        found: dict[str, Any] = gw.admin("GET", "/admin/stats").json()
        assert sum(found["requests"].values()) == 100
        assert found["requests"]["miss"] == 30
        tokens, usd = found["tokens"], found["usd"]
        assert tokens["served"] + tokens["unserved"] == tokens["consumed"] + tokens["saved"]
        assert (tokens["served"], tokens["consumed"], tokens["saved"]) == (100 * EACH, 30 * EACH, 70 * EACH)
        assert usd["served"] + usd["unserved"] == pytest.approx(usd["consumed"] + usd["saved"])
        assert found["by"]["tenant"].keys() == {"acme"}
        assert batch.usage is not None
        shown = batch.usage
        assert (shown.input_tokens, shown.output_tokens, shown.total_tokens) == (1100, 700, 1800)
        assert (shown.input_tokens_details.cached_tokens, shown.output_tokens_details.reasoning_tokens) == (400, 200)
