"""Statements 1 to 6 and 8: what makes two requests the same, and what never does."""

import copy
import json
import os
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway import ADMIN, ALICE, Running, running
from tests.support.traffic import error_of, outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, reply_for

Json = dict[str, Any]
_examples = count(1)

# DESIGN 6, "out of the key".
DENIED = {
    "stream",
    "stream_options",
    "user",
    "safety_identifier",
    "metadata",
    "store",
    "service_tier",
    "cache",
    "cache_control",
}
# Fields that the gateway reads: random values for them are refused or bypass, so they have tests of their own.
READ = {
    "model",
    "messages",
    "prompt",
    "n",
    "tools",
    "audio",
    "modalities",
    "web_search_options",
    "background",
    "conversation",
    "previous_response_id",
}


def many(seen: Seen, number: int) -> Reply:
    """As many choices as were asked for, other ones at every call."""
    answer = chat_answer(f"Answer {number}.")
    first = answer["choices"][0]
    choices = [{**copy.deepcopy(first), "index": i} for i in range(seen.body.get("n") or 1)]
    return reply_for(seen, {**answer, "choices": choices})


def post(gw: Running, body: Json, *, path: str = "/rr/v1", **headers: str) -> Any:
    return gw.raw(json.dumps(body).encode(), path=path, **headers)


def apart(gw: Running, up: Upstream, one: Json, other: Json, *, path: str = "/rr/v1") -> None:
    """Both are stored (a third and fourth request are hits), each under a key of its own."""
    with upstream_calls(up, 2):
        answers = [post(gw, body, path=path) for body in (one, other, one, other)]
    assert [outcome(a) for a in answers] == ["miss", "miss", "exact", "exact"]
    assert answers[0].content == answers[2].content != answers[1].content == answers[3].content


def together(gw: Running, up: Upstream, one: Json, other: Json, *, path: str = "/rr/v1") -> None:
    with upstream_calls(up, 1):
        answers = [post(gw, body, path=path) for body in (one, other)]
    assert [outcome(a) for a in answers] == ["miss", "exact"]
    assert text_of(answers[0]) == text_of(answers[1])


# Statement 1

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)
# Documented parameters, for which null and absent are the same.
NULLABLE = {
    *("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "logit_bias", "logprobs"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "reasoning_effort", "verbosity", "prediction"),
    *("moderation", "response_format", "tool_choice", "functions", "function_call", "parallel_tool_calls"),
    *("suffix", "echo", "best_of"),
}
names = st.text(min_size=1, max_size=12).filter(
    lambda name: name not in DENIED | READ | NULLABLE and not name.startswith("prompt_cache_")
)
ABSENT = object()


def strict(value: Any) -> Any:
    """The value such that `==` means: the same JSON, numbers compared as numbers."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, value)
    if isinstance(value, int | float):
        return ("number", Fraction(Decimal(repr(value))))
    if isinstance(value, list):
        return ("list", [strict(v) for v in value])
    return ("object", {k: strict(v) for k, v in value.items()})


def placed(where: str, text: str, name: str, value: Any) -> Json:
    """A chat body with the field at that place; absent if the value is ABSENT."""
    field = {} if value is ABSENT else {name: value}
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    body: Json = {"model": "test-model", "messages": [{"role": "user", "content": text}]}
    match where:
        case "top":
            return {**body, **field}
        case "nested":
            return {**body, "an_unknown_option": {"deep": [field, {"user": "u", **field}]}}
        case "message":
            body["messages"][0] |= {f"x-{k}": v for k, v in field.items()}
        case "part":
            parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "data:,x", **field}}]
            body["messages"][0]["content"] = parts
        case "tool":
            function["parameters"]["properties"] = field
            return {**body, "tools": [{"type": "function", "function": function}]}
    return body


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    where=st.sampled_from(["top", "nested", "message", "part", "tool"]),
    name=names,
    values=st.tuples(values, st.just(ABSENT) | values).filter(
        lambda pair: pair[1] is ABSENT or strict(pair[0]) != strict(pair[1])
    ),
)
def test_statement_1_any_unknown_field_makes_another_request(
    gw: Running, up: Upstream, where: str, name: str, values: tuple[Any, Any]
) -> None:
    """Statement 1: requests that differ in any one field, known or not, at any depth, go upstream twice."""
    text = f"Example {next(_examples)}."
    apart(gw, up, *(placed(where, text, name, value) for value in values))


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("field", "one", "other"),
    [
        ("model", "test-model", "other-model"),
        ("model", "test-model", "Test-Model"),
        ("temperature", 0, 0.7),
        ("temperature", 0.7, 0.7000000000000001),
        ("temperature", ABSENT, 1),
        ("top_p", ABSENT, 1),
        ("top_p", 0.9, 0.95),
        ("top_k", 10, 20),
        ("seed", 1, 2),
        ("n", 1, 2),
        ("stop", "a", ["a", "b"]),
        ("stop", ["a", "b"], ["b", "a"]),
        ("max_tokens", 10, 11),
        ("max_completion_tokens", 10, ABSENT),
        ("logit_bias", {"1": 1}, {"1": 2}),
        ("presence_penalty", ABSENT, 0),
        ("frequency_penalty", 0, 0.5),
        ("logprobs", False, True),
        ("top_logprobs", 2, 3),
        ("reasoning_effort", "low", "high"),
        ("verbosity", "low", "high"),
        ("modalities", ABSENT, ["text"]),
        ("prediction", ABSENT, {"type": "content", "content": "x"}),
        ("moderation", ABSENT, {"level": "low"}),
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("tools", ABSENT, [FUNCTION]),
        ("tools", [FUNCTION], [{**FUNCTION, "function": {"name": "g", "parameters": {}}}]),
        ("tool_choice", "auto", "required"),
        ("functions", ABSENT, [{"name": "f"}]),
        ("function_call", "auto", "none"),
        ("parallel_tool_calls", True, False),
        ("thinking", {"budget": 1}, {"budget": 2}),
        ("system", "a", "b"),
        ("an_unknown_one", ABSENT, None),
        ("an_unknown_one", {}, []),
        ("an_unknown_one", "", None),
        ("metadata2", "a", "b"),
        ("Stream_", "a", "b"),
        ("prompt", "a", "b"),
    ],
)
def test_statement_1_every_known_field_counts(
    gw: Running, up: Upstream, prompt: str, field: str, one: Any, other: Any
) -> None:
    """Statement 1: each documented parameter is in the key, an explicit sampling default as well."""
    up.script = many
    base = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    apart(gw, up, *({**base, **({} if value is ABSENT else {field: value})} for value in (one, other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([{"role": "user", "content": "{}"}], [{"role": "system", "content": "{}"}]),
        ([{"role": "user", "content": "{}"}], [{"role": "user", "content": "{}", "name": "bob"}]),
        (
            [{"role": "user", "content": "{}"}, {"role": "user", "content": "b"}],
            [{"role": "user", "content": "b"}, {"role": "user", "content": "{}"}],
        ),
        ([{"role": "user", "content": "{}b"}], [{"role": "user", "content": "{}"}, {"role": "user", "content": "b"}]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "{}b"}]}],
            [{"role": "user", "content": [{"type": "text", "text": "{}"}, {"type": "text", "text": "b"}]}],
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA{}"}}]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AB{}"}}]}],
        ),
        (
            [{"role": "tool", "tool_call_id": "call_1", "content": "{}"}],
            [{"role": "tool", "tool_call_id": "call_2", "content": "{}"}],
        ),
        ([{"role": "user", "content": "{}"}], [{"role": "user", "content": '{{"type": "text", "text": "{}"}}'}]),
    ],
    ids=["role", "name", "order", "border of messages", "border of parts", "image bytes", "tool_call_id", "look-alike"],
)
def test_statement_1_every_part_of_a_message_counts(
    gw: Running, up: Upstream, prompt: str, one: list[Json], other: list[Json]
) -> None:
    """Statement 1: roles, names, order, borders, images and tool call ids are in the key."""

    def body(messages: list[Json]) -> Json:
        return {"model": "test-model", "messages": json.loads(json.dumps(messages).replace("{}", prompt))}

    apart(gw, up, body(one), body(other))


@pytest.mark.parametrize(
    "more",
    [
        {"user": "u1"},
        {"safety_identifier": "s"},
        {"metadata": {"a": "b"}},
        {"store": False},
        {"service_tier": "flex"},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"cache": {"ttl": 600}},
        {"n": 1},
        {"n": None},
        {"logprobs": False},
        {"logprobs": None},
        {"seed": None},
        {"temperature": None},
        {"tools": None},
        {"stop": None},
        {"stream": False},
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
    ],
    ids=str,
)
def test_statement_1_the_deny_list_and_documented_defaults_share(
    gw: Running, up: Upstream, prompt: str, more: Json
) -> None:
    """Statement 1: what DESIGN 6 leaves out of the key, and the spellings that it calls the same, share an entry."""
    base = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    together(gw, up, base, {**base, **more})


def test_statement_1_the_same_message_in_its_documented_spellings(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 1: a string and its single text part, and the two names of the token limit, are the same."""
    part = {"type": "text", "text": prompt}
    spelled = [
        {"messages": [{"role": "user", "content": prompt}], "max_tokens": 9},
        {"messages": [{"role": "user", "content": [part]}], "max_tokens": 9},
        {"messages": [{"role": "user", "content": prompt}], "max_completion_tokens": 9},
        {
            "messages": [{"role": "user", "content": [{**part, "cache_control": {"type": "ephemeral"}}]}],
            "max_tokens": 9,
        },
    ]
    with upstream_calls(up, 1):
        answers = [post(gw, {"model": "test-model", **body}) for body in spelled]
    assert [outcome(a) for a in answers] == ["miss", "exact", "exact", "exact"]


def test_statement_1_sdk_headers_are_not_in_the_key(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 1: headers that SDKs add to every request do not make another request of it."""
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    sdk = {
        "OpenAI-Organization": "org",
        "OpenAI-Project": "proj",
        "X-Stainless-Lang": "python",
        "x-stainless-retry-count": "1",
        "x-stainless-read-timeout": "600",
        "User-Agent": "OpenAI/Python 3",
        "Idempotency-Key": "abc",
    }
    with upstream_calls(up, 1):
        assert outcome(post(gw, body)) == "miss"
        assert outcome(post(gw, body, **sdk)) == "exact"


def test_statement_1_two_endpoints_do_not_share(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 1: the endpoint is part of the key, also where its policy is the same."""
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    with upstream_calls(up, 2):
        assert [outcome(post(gw, body, path=p)) for p in ("/rr/v1", "/twin/v1")] == ["miss", "miss"]


# Statement 2


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"])
def test_statement_2_the_spelling_of_the_json_does_not_matter(gw: Running, up: Upstream, path: str) -> None:
    """Statement 2: key order, whitespace and escapes of the JSON text lead to the same entry."""
    text = f"Grüße, 東京 \U0001f600 / on {path}"
    body = {
        "model": "test-model",
        "messages": [{"role": "user", "content": text}],
        "seed": 7,
        "logit_bias": {"10": 1, "9": 2},
        "unknown": {"b": 1, "a": [1, {"d": 1, "c": 2}]},
    }
    backwards = {
        "unknown": {"a": [1, {"c": 2, "d": 1}], "b": 1},
        "logit_bias": {"9": 2, "10": 1},
        "seed": 7,
        "messages": [{"content": text, "role": "user"}],
        "model": "test-model",
    }
    plain = json.dumps(body, ensure_ascii=False)
    spellings = [
        plain,
        json.dumps(body),  # ASCII only: escapes and surrogate pairs
        json.dumps(backwards, ensure_ascii=False, separators=(",", ":")),
        json.dumps(body, indent="\t"),
        f" \r\n\t{plain}\n ",
        plain.replace("/", "\\/").replace('"seed"', '"\\u0073eed"'),
        plain.replace("test-model", "\\u0074est-model"),
    ]
    assert len(set(spellings)) == len(spellings)
    with upstream_calls(up, 1):
        answers = [gw.raw(s.encode(), path=path) for s in spellings]
    assert [outcome(a) for a in answers] == ["miss", *["exact"] * (len(spellings) - 1)]
    assert len({a.content for a in answers}) == 1


# Statement 3

ALIKE = [
    ("\u00e9t\u00e9", "e\u0301te\u0301"),
    ("\u2126", "\u03a9"),
    ("\ufb01le", "file"),
    ("x\u00b2", "x2"),
    ("\u2460", "1"),
    ("\uff21", "A"),
    ("Yes", "yes"),
    ("Straße", "STRASSE"),
    ("Straße", "Strasse"),
    ("end ", "end"),
    (" start", "start"),
    ("end\n", "end"),
    ("a  b", "a b"),
    ("a\tb", "a b"),
    ("a\nb", "a b"),
    ("a\r\nb", "a\nb"),
    ("a\u00a0b", "a b"),
    ("a\u3000b", "a b"),
    ("a\u200bb", "ab"),
    ("a\u00adb", "ab"),
    ("a\u0000b", "ab"),
]


@pytest.mark.parametrize(
    ("place", "one", "other"),
    [("user", *pair) for pair in ALIKE] + [("system", *pair) for pair in ALIKE[::5]],
    ids=lambda value: ascii(value),
)
def test_statement_3_text_that_only_looks_alike_does_not_share(
    gw: Running, up: Upstream, prompt: str, place: str, one: str, other: str
) -> None:
    """Statement 3: equal only after NFC, NFKC, case folding, trimming or collapsing is not equal."""

    def body(text: str) -> Json:
        messages = [{"role": "user", "content": prompt}, {"role": place, "content": text}]
        return {"model": "test-model", "messages": messages}

    apart(gw, up, body(one), body(other))


def test_statement_3_legacy_prompts_neither(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 3: the same holds for the prompt of a legacy completion."""
    with upstream_calls(up, 3):
        for text in (prompt, f"{prompt} ", prompt.upper()):
            body = json.dumps({"model": "test-model", "prompt": text}).encode()
            head = {"authorization": f"Bearer {ALICE}", "content-type": "application/json"}
            assert outcome(gw.client.post("/rr/v1/completions", content=body, headers=head)) == "miss"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("\u00e9", "e\u0301", True),
        ("a\r\nb", "a\nb", True),
        (" a \n", "a", True),
        ("\ufb01le", "file", False),
        ("Yes", "yes", False),
        ("a  b", "a b", False),
        ("\u00a0a", "a", False),
    ],
    ids=["NFC", "line ends", "outer blanks", "NFKC", "case", "inner blanks", "no-break space"],
)
def test_statement_3_an_endpoint_may_choose_text(
    gw: Running, up: Upstream, prompt: str, one: str, other: str, same: bool
) -> None:
    """Statement 3: `normalize: text` merges NFC, line ends and outer blanks, and nothing else."""

    def body(text: str) -> Json:
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
        return {"model": "test-model", "messages": messages}

    (together if same else apart)(gw, up, body(one), body(other), path="/textual/v1")


# Statement 4


@pytest.mark.parametrize("field", ["seed", "an_unknown_one"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("9007199254740992", "9007199254740993"),
        ("9007199254740992.0", "9007199254740993.0"),
        ("-9007199254740992", "-9007199254740993"),
        ("123456789012345678901234567890", "123456789012345678901234567891"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("1", "true"),
        ("0", "false"),
        ("1", '"1"'),
        ("true", '"true"'),
        ("1", "[1]"),
        ("1e2", "1e3"),
        ("1e-400", "0"),
    ],
)
def test_statement_4_values_that_python_or_a_double_would_merge(
    gw: Running, up: Upstream, prompt: str, field: str, one: str, other: str
) -> None:
    """Statement 4: neighbouring integers beyond a double, 1 and true, 1 and "1" do not share an entry."""
    template = '{"model": "test-model", "messages": [{"role": "user", "content": "%s"}], "%s": %s}'
    with upstream_calls(up, 2):
        answers = [gw.raw((template % (prompt, field, v)).encode(), path="/rr/v1") for v in (one, other, one, other)]
    assert [outcome(a) for a in answers] == ["miss", "miss", "exact", "exact"]


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"])
def test_statement_4_numbers_reach_the_upstream_as_they_were(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Statement 4: what is kept apart in the key is kept apart on its way upstream too."""
    body = (
        '{"model": "test-model", "messages": [{"role": "user", "content": "%s"}], "seed": 9007199254740993, "t": 0.1}'
    )
    with upstream_calls(up, 1):
        outcome(gw.raw((body % prompt).encode(), path=path))
    assert up.seen[-1].body["seed"] == 9007199254740993
    assert up.seen[-1].body["t"] == 0.1


# Statement 5

UNREADABLE = {
    "duplicate key": b'{"model": "m", "model": "m", "messages": [{"role": "user", "content": "a"}]}',
    "duplicate key, escaped": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "a": 1, "\\u0061": 1}',
    "duplicate key, nested": b'{"model": "m", "messages": [{"role": "user", "role": "user", "content": "a"}]}',
    "NaN": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "seed": NaN}',
    "Infinity": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "seed": Infinity}',
    "-Infinity": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "x": [-Infinity]}',
    "1e999": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
    "-1e999": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "x": {"y": -1e999}}',
    "an integer beyond a double": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "x": 1%s}'
    % (b"0" * 400),
    "lone high surrogate": b'{"model": "m", "messages": [{"role": "user", "content": "a\\ud800"}]}',
    "lone low surrogate": b'{"model": "m", "messages": [{"role": "user", "content": "\\udc00a"}]}',
    "surrogates in the wrong order": b'{"model": "m", "messages": [{"role": "user", "content": "\\udc00\\ud800"}]}',
    "lone surrogate in a key": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "\\ud800": 1}',
    "surrogate as UTF-8": b'{"model": "m", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
    "broken UTF-8": b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
    "an exponent beyond all bounds": b'{"model": "m", "messages": [{"content": "a"}], "x": 1e99999999999999999999}',
}


def stored(gw: Running) -> int:
    """How many answers are kept."""
    return int(gw.admin("GET", "/admin/stats").json()["tiers"]["exact"]["memory"]["entries"])


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_statement_5_what_parsers_disagree_on_is_refused(gw: Running, up: Upstream, body: bytes) -> None:
    """Statement 5: duplicate keys, NaN, Infinity, 1e999 and lone surrogates are a 400; nothing is stored."""
    before = stored(gw)
    with upstream_calls(up, 0):
        for path in ("/v1", "/rr/v1"):
            error_of(gw.raw(body, path=path), 400)
    assert stored(gw) == before


@pytest.mark.parametrize(
    "number", ["1e-99999999999999999999", "0e99999999999999999999", "1e-999999999", "-0.0", "0E+2"]
)
def test_statement_5_odd_numbers_are_served_or_refused_but_never_a_fault(gw: Running, prompt: str, number: str) -> None:
    """Statement 5: a number with an absurd exponent is an answer or a 400, not an internal error."""
    body = f'{{"model": "test-model", "messages": [{{"role": "user", "content": "{prompt}"}}], "x": {number}}}'
    response = gw.raw(body.encode(), path="/rr/v1")
    assert response.status_code in (200, 400), response.text


@pytest.mark.parametrize("text", ["\\\\ud800", "\\ud83d\\ude00", "\\\\\\\\ud800", "\\u0000"])
def test_statement_5_what_only_looks_like_a_lone_surrogate_is_fine(gw: Running, prompt: str, text: str) -> None:
    """Statement 5: an escaped backslash before "ud800" and a proper pair are ordinary text."""
    body = f'{{"model": "test-model", "messages": [{{"role": "user", "content": "{prompt} {text}"}}]}}'
    assert outcome(gw.raw(body.encode(), path="/rr/v1")) == "miss"


# Statement 6

CRAFTED = """
auth:
  keys:
    - {key: rf-crafted-0, tenant: org_1, user: "2345", permissions: [a, b]}
    - {key: rf-crafted-1, tenant: org_12, user: "345", permissions: [ab]}
    - {key: rf-crafted-2, tenant: org_12345, user: x, permissions: []}
    - {key: rf-crafted-3, tenant: "t|u", user: v, permissions: ["a:b"]}
    - {key: rf-crafted-4, tenant: t, user: "u|v", permissions: [a, ":b"]}
    - {key: rf-crafted-5, tenant: "t:u", user: v, permissions: ["a|b"]}
    - {key: rf-crafted-6, tenant: t, user: "u:v", permissions: ["a:b", c]}
    - {key: rf-crafted-7, tenant: "t/u", user: v, permissions: ["a:b:c"]}
    - {key: rf-crafted-8, tenant: t, user: "u/v", permissions: []}
    - {key: rf-crafted-9, tenant: '["t","u"]', user: v, permissions: [v]}
    - {key: rf-crafted-10, tenant: '["t"', user: '"u"]v', permissions: []}
    - {key: rf-crafted-11, tenant: T, user: "u|v", permissions: [a, "b:"]}
    - {key: rf-test-admin-key, tenant: ops, user: root, role: admin}
endpoints:
  e: {mode: request_response, share: user}
  em: {mode: request_response, share: user}
  p: {mode: request_response, share: permissions}
  t: {mode: request_response, share: tenant}
"""


def test_statement_6_crafted_names_do_not_run_into_each_other(up: Upstream) -> None:
    """Statement 6: tenants, users, permissions, endpoints and models whose plain concatenation is equal keep apart."""
    backends = f'backends: {{fake: {{kind: remote, base_url: "{up.url}"}}}}\nmodels: {{"*": fake}}\n'
    with running(f'{backends}store: {{url: "memory://"}}\n{CRAFTED}') as gw:
        with upstream_calls(up, 12):
            assert {outcome(gw.chat("a", key=f"rf-crafted-{i}", path="/e/v1")) for i in range(12)} == {"miss"}
        with upstream_calls(up, 12):
            assert {outcome(gw.chat("a", key=f"rf-crafted-{i}", path="/p/v1")) for i in range(12)} == {"miss"}
        with upstream_calls(up, 2):
            outcome(gw.chat("b", key="rf-crafted-0", path="/e/v1", model="mtest"))
            assert outcome(gw.chat("b", key="rf-crafted-0", path="/em/v1", model="test")) == "miss"
        with upstream_calls(up, 2):  # a user scope and a tenant scope of the same name
            outcome(gw.chat("c", key="rf-crafted-9", path="/e/v1"))
            assert outcome(gw.chat("c", key="rf-crafted-9", path="/t/v1")) == "miss"
        listed = gw.admin("GET", "/admin/entries", key=ADMIN).json()["entries"]
    assert len({e["key"] for e in listed}) == len(listed) == 28


# Statement 8

PINNED = "b088dd636b9d40aba0193906983e0d32e5ba505e065e6f983595f4bbea97e571"

COMPUTE = """
from cache.scope import Scope
from gateway.normalize import canonical, request_key
body = {
    "unknown": {"b": [1, True, None, "é"], "a": "\\u2028"}, "model": "gpt-test", "temperature": 0.7, "seed": 2**60 + 1,
    "messages": [{"role": "system", "content": "Be brief."}, {"content": "Grüße \\U0001f600", "role": "user"}],
    "stream": True, "user": "u1", "n": 1,
}
scope = Scope.of("permissions", tenant="acme", user="alice", permissions=frozenset({"hr", "eng", "finance", "a", "b"}))
key = request_key(
    scope=scope, endpoint="chat_assistant", settings=bytes(32), api="chat", model="gpt-test", backend="openai",
    revision="remote:https://api.example.com/v1",
    headers=[("openai-beta", "x=1"), ("anthropic-version", "2023-06-01"), ("?", "api-version=1")],
    body=canonical("chat", body),
)
print(key.hex())
"""


@pytest.mark.parametrize("seed", ["0", "1", "4294967295", "random"])
def test_statement_8_the_key_of_a_fixed_request_is_pinned(seed: str) -> None:
    """Statement 8: in any process and under any PYTHONHASHSEED the key equals the pinned vector."""
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", COMPUTE], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == PINNED
