"""Statements 17 and 19 to 22: what may be stored, and what a request may ask of the cache."""

import json
from typing import Any

import pytest

from tests.support.gateway import ALICE, Running
from tests.support.traffic import chunks, error_of, fixed, outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Upstream, answer_with, chat_answer, chat_chunks, sse

Json = dict[str, Any]
SSE = "text/event-stream"
FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])


def entries(gw: Running) -> int:
    return int(gw.admin("GET", "/admin/stats").json()["tiers"]["exact"]["memory"]["entries"])


def not_stored(gw: Running, up: Upstream, prompt: str, **more: Any) -> None:
    """Two identical requests both reach the upstream, and no entry is left."""
    before = entries(gw)
    with upstream_calls(up, 2):
        for _ in range(2):
            gw.chat(prompt, **more)
    assert entries(gw) == before
    with upstream_calls(up, 0):
        error_of(gw.chat(prompt, **{**more, "headers": {"cache-control": "only-if-cached"}}), 504)


# Statement 17


def answer_of(count: int) -> Json:
    answer = chat_answer("One two three.")
    return {**answer, "choices": [{**answer["choices"][0], "index": i} for i in range(count)]}


def unfinished(*, choices: int = 1, finished: int = 0, done: bool, cut: bool = False) -> Reply:
    """A stream in which only the first `finished` choices come to their finish_reason."""
    pieces = [
        c
        for c in chat_chunks(answer_of(choices), include_usage=True)
        if not c["choices"] or c["choices"][0]["finish_reason"] is None or c["choices"][0]["index"] < finished
    ]
    return Reply([sse(pieces, done=done)], content_type=SSE, cut=cut)


@FORMS
@pytest.mark.parametrize(
    ("n", "reply"),
    [
        (1, unfinished(done=True)),
        (1, unfinished(done=False)),
        (1, unfinished(done=False, cut=True)),
        (2, unfinished(choices=2, finished=1, done=True)),
        (2, unfinished(choices=2, finished=1, done=False)),
        (3, Reply([sse(chat_chunks(answer_of(2), include_usage=True))], content_type=SSE)),
        (1, Reply([sse(chat_chunks(answer_of(1), include_usage=True), done=False)], content_type=SSE, cut=True)),
        (1, Reply([b"data: [DONE]\n\n"], content_type=SSE)),
        (1, Reply([b""], content_type=SSE)),
    ],
    ids=[
        "no finish_reason, DONE",
        "no finish_reason, end",
        "no finish_reason, cut",
        "one of two, DONE",
        "one of two, end",
        "a choice never begun",
        "all finished, cut before DONE",
        "DONE alone",
        "nothing",
    ],
)
def test_statement_17_a_stream_that_did_not_finish_is_not_stored(
    gw: Running, up: Upstream, prompt: str, stream: bool, n: int, reply: Reply
) -> None:
    """Statement 17: without a finish_reason for every choice, or without its end, nothing is stored."""
    up.script = fixed(reply)
    not_stored(gw, up, prompt, stream=stream, n=n)


@FORMS
@pytest.mark.parametrize("finish", [None, ""])
def test_statement_17_nor_is_a_whole_answer_without_finish_reason(
    gw: Running, up: Upstream, prompt: str, stream: bool, finish: str | None
) -> None:
    """Statement 17: the same where the upstream answers in one object."""
    answer = chat_answer("One two three.")
    answer["choices"][0]["finish_reason"] = finish
    up.script = fixed(Reply([json.dumps(answer).encode()]))
    not_stored(gw, up, prompt, path="/rr/v1", stream=stream)


@FORMS
def test_statement_17_legacy_prompts_in_a_list_need_an_answer_each(
    gw: Running, up: Upstream, prompt: str, stream: bool
) -> None:
    """Statement 17: of two prompts in a list only the first was answered: the stream is no answer to both."""
    piece = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "test-model"}
    only = {"index": 0, "text": "first", "logprobs": None, "finish_reason": "stop"}
    up.script = fixed(Reply([sse([{**piece, "choices": [only]}])], content_type=SSE))
    body = {"model": "test-model", "prompt": [prompt, f"{prompt} b"], "stream": stream}
    with upstream_calls(up, 2):
        for _ in range(2):
            gw.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {ALICE}"})


def test_statement_17_a_finished_stream_is_stored(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 17, the other side: every choice finished and the stream at its end is kept."""
    up.script = fixed(Reply([sse(chat_chunks(answer_of(2), include_usage=True))], content_type=SSE))
    with upstream_calls(up, 1):
        assert [outcome(gw.chat(prompt, n=2)) for _ in range(2)] == ["miss", "exact"]


# Statement 19


def ending(**choice: Any) -> Json:
    answer = chat_answer("One two three.")
    return {**answer, "choices": [{**answer["choices"][0], **choice}]}


def saying(**message: Any) -> Json:
    return ending(message={"role": "assistant", "content": None, "refusal": None, **message})


@MODES
@FORMS
@pytest.mark.parametrize(
    "answer",
    [
        ending(finish_reason="length"),
        ending(finish_reason="content_filter"),
        ending(finish_reason="function_call"),
        ending(finish_reason="something_new"),
        saying(content=""),
        saying(content=None),
        saying(content=None, tool_calls=[]),
    ],
    ids=["length", "content_filter", "function_call", "unknown end", "empty", "null", "no tool calls"],
)
def test_statement_19_answers_cut_filtered_or_empty_are_not_stored(
    gw: Running, up: Upstream, prompt: str, path: str, stream: bool, answer: Json
) -> None:
    """Statement 19: after length, content_filter or an empty answer the next request reaches the upstream."""
    up.script = answer_with(answer)
    not_stored(gw, up, prompt, path=path, stream=stream)


@MODES
def test_statement_19_one_cut_choice_of_two_is_enough(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Statement 19: every choice must have ended well."""
    answer = answer_of(2)
    answer["choices"][1]["finish_reason"] = "length"
    up.script = answer_with(answer)
    not_stored(gw, up, prompt, path=path, n=2)


@MODES
@FORMS
@pytest.mark.parametrize(
    "reply",
    [
        Reply([b'{"error": {"message": "no", "type": "server_error", "param": null, "code": null}}']),
        Reply([json.dumps({**chat_answer("text"), "error": {"message": "no"}}).encode()]),
        Reply([b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n'], content_type=SSE),
        Reply([sse(chat_chunks(chat_answer("a b"), include_usage=True)[:2]), b'data: {"error": {"message": "no"}}\n\n'],
              content_type=SSE),
        Reply([b'{"error": {"message": "slow down"}}'], status=429, headers={"retry-after": "1"}),
        Reply([b'{"error": {"message": "broken"}}'], status=500),
        Reply([b"<html>bad gateway</html>"], status=502, content_type="text/html"),
        Reply([b"busy"], status=503),
    ],
    ids=["error in 200", "error beside choices", "error event", "error in mid-stream", "429", "500", "502", "503"],
)  # fmt: skip
def test_statement_19_errors_are_not_stored(
    gw: Running, up: Upstream, prompt: str, path: str, stream: bool, reply: Reply
) -> None:
    """Statement 19: an error object in a 200, 429 and 5xx are errors to the client, and the next request goes on."""
    up.script = fixed(reply)
    not_stored(gw, up, prompt, path=path, stream=stream)
    up.script = answer_with(chat_answer("All is well."))
    with upstream_calls(up, 1):
        assert text_of(gw.chat(prompt, path=path, stream=stream)) == "All is well."


# Statement 20

SEARCH = {"type": "web_search"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}


@FORMS
@pytest.mark.parametrize(
    "more",
    [
        {"store": True},
        {"web_search_options": {}},
        {"web_search_options": {"search_context_size": "low"}},
        {"tools": [SEARCH]},
        {"tools": [FUNCTION, {"type": "code_interpreter", "container": {"type": "auto"}}]},
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
        {"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://example.com"}]},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"background": True},
    ],
    ids=lambda more: json.dumps(more)[:40],
)
def test_statement_20_state_and_hosted_tools_pass_by(
    gw: Running, up: Upstream, prompt: str, stream: bool, more: Json
) -> None:
    """Statement 20: neither look-up nor store for web search, hosted tools, store, conversations, background."""
    before = entries(gw)
    with upstream_calls(up, 2):
        assert {outcome(gw.chat(prompt, stream=stream, **more)) for _ in range(2)} == {"bypass"}
    assert entries(gw) == before


def test_statement_20_store_true_neither_reads_nor_replaces_the_entry(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 20: `store` is out of the key, so a stored answer lies under the same one, and is left alone."""
    with upstream_calls(up, 2):
        first = gw.chat(prompt)
        second = gw.chat(prompt, store=True)
        third = gw.chat(prompt)
    assert [outcome(r) for r in (first, second, third)] == ["miss", "bypass", "exact"]
    assert text_of(first) == text_of(third) != text_of(second)


@pytest.mark.parametrize(
    "more",
    [
        {"store": False},
        {"background": False},
        {"previous_response_id": None},
        {"conversation": None},
        {"web_search_options": None},
        {"tools": [FUNCTION]},
        {"tools": [{"type": "custom", "custom": {"name": "c"}}]},
        {"tools": []},
    ],
    ids=lambda more: json.dumps(more)[:40],
)
def test_statement_20_what_is_switched_off_does_not_count(gw: Running, up: Upstream, prompt: str, more: Json) -> None:
    """Statement 20, the other side: functions of the client, and state not asked for, are cached."""
    with upstream_calls(up, 1):
        assert [outcome(gw.chat(prompt, **more)) for _ in range(2)] == ["miss", "exact"]


# Statement 21


@FORMS
@pytest.mark.parametrize(
    "more", [{}, {"temperature": None}, {"temperature": 0.1}, {"temperature": 1}, {"seed": 1}, {"top_p": 0}]
)
def test_statement_21_sampled_answers_pass_where_policy_says_so(
    gw: Running, up: Upstream, prompt: str, stream: bool, more: Json
) -> None:
    """Statement 21: with `sampled: bypass` a request without an explicit temperature of 0 is not cached."""
    before = entries(gw)
    with upstream_calls(up, 2):
        assert {outcome(gw.chat(prompt, path="/careful/v1", stream=stream, **more)) for _ in range(2)} == {"bypass"}
    assert entries(gw) == before


@pytest.mark.parametrize("temperature", [0, 0.0])
def test_statement_21_deterministic_ones_are_cached(gw: Running, up: Upstream, prompt: str, temperature: float) -> None:
    """Statement 21, the other side: temperature 0 is deterministic, and elsewhere sampling is reused."""
    with upstream_calls(up, 1):
        answers = [gw.chat(prompt, path="/careful/v1", temperature=temperature) for _ in range(2)]
    assert [outcome(a) for a in answers] == ["miss", "exact"]
    with upstream_calls(up, 1):
        assert [outcome(gw.chat(prompt, temperature=0.9)) for _ in range(2)] == ["miss", "exact"]


# Statement 22

NO_STORE = [{"headers": {"cache-control": "no-store"}}, {"cache": {"no-store": True}}]
NO_CACHE = [
    {"headers": {"cache-control": "no-cache"}},
    {"headers": {"cache-control": "max-age=0"}},
    {"headers": {"cache-control": "No-Cache, max-age=600"}},
    {"headers": {"cache-control": "max-age=600, an-extension=1, no-cache"}},
    {"cache": {"no-cache": True}},
    {"cache": {"s-maxage": 0}},
]


@MODES
@pytest.mark.parametrize("more", NO_STORE, ids=str)
def test_statement_22_no_store_leaves_nothing(gw: Running, up: Upstream, prompt: str, path: str, more: Json) -> None:
    """Statement 22: the answer of a no-store request is not kept."""
    with upstream_calls(up, 2):
        outcome(gw.chat(prompt, path=path, **more))
        assert outcome(gw.chat(prompt, path=path)) == "miss"


@MODES
@pytest.mark.parametrize("more", NO_CACHE, ids=str)
def test_statement_22_no_cache_asks_again(gw: Running, up: Upstream, prompt: str, path: str, more: Json) -> None:
    """Statement 22: no-cache and max-age=0 skip the look-up, and what they fetch takes the place of the old answer."""
    with upstream_calls(up, 2):
        first = gw.chat(prompt, path=path)
        again = gw.chat(prompt, path=path, **more)
        after = gw.chat(prompt, path=path)
    assert outcome(first) == outcome(again) == "miss"
    assert outcome(after) == "exact"
    assert text_of(first) != text_of(again) == text_of(after)


@pytest.mark.parametrize("more", [{"headers": {"cache-control": "max-age=30"}}, {"cache": {"s-maxage": 30}}], ids=str)
def test_statement_22_max_age(gw: Running, up: Upstream, prompt: str, more: Json) -> None:
    """Statement 22: max-age=N takes an answer of at most that age."""
    gw.clock.frozen = 1_000_000.0
    with upstream_calls(up, 1):
        outcome(gw.chat(prompt))
        gw.clock.offset += 29
        assert outcome(gw.chat(prompt, **more)) == "exact"
        gw.clock.offset += 2
        assert outcome(gw.chat(prompt)) == "exact"
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, **more)) == "miss"


@MODES
@FORMS
def test_statement_22_only_if_cached(gw: Running, up: Upstream, prompt: str, path: str, stream: bool) -> None:
    """Statement 22: only-if-cached never calls the upstream; nothing there is a 504 that SDKs do not retry."""
    control = {"cache-control": "only-if-cached"}
    with upstream_calls(up, 0):
        refused = gw.chat(prompt, path=path, stream=stream, headers=control)
    error_of(refused, 504)
    assert refused.headers["x-should-retry"] == "false"
    with upstream_calls(up, 1):
        first = gw.chat(prompt, path=path, stream=stream)
        second = gw.chat(prompt, path=path, stream=stream, headers=control)
    assert outcome(second) == "exact"
    assert text_of(first) == text_of(second)


@pytest.mark.parametrize("value", ["only-if-cached, no-cache", "only-if-cached, max-age=0", "only-if-cached, no-store"])
def test_statement_22_only_if_cached_with_a_contradiction_calls_nobody(
    gw: Running, up: Upstream, prompt: str, value: str
) -> None:
    """Statement 22: whatever it is combined with, only-if-cached does not reach the upstream."""
    outcome(gw.chat(prompt))
    with upstream_calls(up, 0):
        gw.chat(prompt, headers={"cache-control": value})


SHORTER = [
    {"headers": {"x-refrain-ttl": "10s"}},
    {"cache": {"ttl": 10}},
    {"headers": {"x-refrain-ttl": "10s"}, "cache": {"ttl": 40}},
    {"headers": {"x-refrain-ttl": "40s"}, "cache": {"ttl": 10}},
]
LONGER = [{"headers": {"x-refrain-ttl": "3650d"}}, {"cache": {"ttl": 1e20}}, {"cache": {"ttl": 3600}}]


@pytest.mark.parametrize(("more", "life"), [(m, 10) for m in SHORTER] + [(m, 60) for m in LONGER], ids=str)
def test_statement_22_a_client_may_shorten_a_life_but_not_lengthen_it(
    gw: Running, up: Upstream, prompt: str, more: Json, life: int
) -> None:
    """Statement 22: the shorter of the client's TTL and the configured one (60 s here) holds."""
    gw.clock.frozen = 1_000_000.0
    with upstream_calls(up, 1):
        outcome(gw.chat(prompt, path="/short/v1", **more))
        gw.clock.offset += life - 0.001
        assert outcome(gw.chat(prompt, path="/short/v1")) == "exact"
    gw.clock.offset += 0.001
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path="/short/v1")) == "miss"


@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"x-refrain-ttl": "60"}},
        {"headers": {"x-refrain-ttl": "-5s"}},
        {"headers": {"x-refrain-ttl": "nan"}},
        {"headers": {"x-refrain-ttl": "1e20s"}},
        {"cache": {"ttl": -1}},
        {"cache": {"ttl": "10"}},
        {"cache": {"ttl": True}},
        {"cache": {"s-maxage": -1}},
        {"cache": {"no-cache": "yes"}},
        {"cache": "no-cache"},
    ],
    ids=str,
)
def test_statement_22_a_ttl_that_cannot_be_read_never_means_for_ever(
    gw: Running, up: Upstream, prompt: str, more: Json
) -> None:
    """Statement 22: an unreadable TTL is refused, or it may at most leave the configured one (60 s) in force."""
    gw.clock.frozen = 1_000_000.0
    refused = gw.chat(prompt, path="/short/v1", **more)
    if refused.status_code != 200:
        assert error_of(refused, 400)["param"]
    gw.clock.offset += 60
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path="/short/v1")) == "miss"


def test_statement_22_a_ttl_of_nothing_is_not_stored(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 22: `ttl: 0` keeps nothing; it does not mean "for ever"."""
    with upstream_calls(up, 2):
        outcome(gw.chat(prompt, cache={"ttl": 0}))
        assert outcome(gw.chat(prompt)) == "miss"


def test_statement_22_stale_answers_need_the_client_and_the_policy(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 22: max-stale takes an expired answer only within its bound and where policy keeps such answers."""
    stale = {"cache-control": "max-stale=60"}
    gw.clock.frozen = 1_000_000.0
    with upstream_calls(up, 2):
        outcome(gw.chat(prompt, path="/short/v1"))
        outcome(gw.chat(prompt, path="/lasting/v1"))
    gw.clock.offset += 90
    with upstream_calls(up, 0):
        old = gw.chat(prompt, path="/lasting/v1", headers=stale)
    assert outcome(old) == "stale"
    assert old.headers["age"] == "90"
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path="/short/v1", headers=stale)) == "miss"
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path="/lasting/v1", headers={"cache-control": "max-stale=29"})) == "miss"


def test_statement_22_without_being_asked_nothing_stale_is_served(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 22: a policy that keeps stale answers does not serve them unasked while the upstream is well."""
    gw.clock.frozen = 1_000_000.0
    outcome(gw.chat(prompt, path="/lasting/v1"))
    gw.clock.offset += 60
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path="/lasting/v1")) == "miss"


@pytest.mark.parametrize(
    ("tier", "outcomes"),
    [
        ("exact", ["miss", "exact"]),
        ("semantic", ["miss", "miss"]),
        ("prefix", ["bypass", "bypass"]),
        ("EXACT, semantic", ["miss", "exact"]),
    ],
)
def test_statement_22_a_request_may_narrow_the_tiers(
    gw: Running, up: Upstream, prompt: str, tier: str, outcomes: list[str]
) -> None:
    """Statement 22: x-refrain-tier names the tiers that may answer; one that it leaves out does not."""
    asked = {"x-refrain-tier": tier}
    assert [outcome(gw.chat(prompt, headers=asked)) for _ in range(2)] == outcomes


def test_statement_22_a_request_cannot_switch_a_tier_on(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 22: where the endpoint's tier is off, x-refrain-tier and a TTL do not bring it back."""
    more = {"headers": {"x-refrain-tier": "exact", "x-refrain-ttl": "1h"}, "cache": {"ttl": 600}}
    with upstream_calls(up, 2):
        assert {outcome(gw.chat(prompt, path="/uncached/v1", **more)) for _ in range(2)} == {"bypass"}


def test_statement_22_streamed_answers_obey_as_well(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 22: the controls hold for streams: no-store, then only-if-cached finds nothing."""
    with upstream_calls(up, 1):
        first = gw.chat(prompt, stream=True, headers={"cache-control": "no-store"})
        assert chunks(first.text)
        error_of(gw.chat(prompt, stream=True, headers={"cache-control": "only-if-cached"}), 504)
