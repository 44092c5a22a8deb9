"""A request understood: its key, its form, what goes upstream. The snapshot is a real one; nothing is sent here."""

import json
import re
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.base import Call
from gateway.ask import Ask, understand
from gateway.config.load import parse_config
from gateway.errors import ApiError
from gateway.fleet import build
from gateway.identity import Identity
from gateway.principal import Principal
from gateway.snapshot import Snapshot
from tests.gateway.values import attempt, few, json_values, some

CONFIG = parse_config(
    """
auth: {required: false}
store: {url: "memory://"}
backends:
  one: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
  two: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
models: {"gpt-*": one, "llama-*": two}
endpoints:
  default: {}
  pinned: {backend: two}
  personal: {share: user}
  careful: {sampled: bypass}
  uncached: {cache: {exact: off}}
  tolerant: {normalize: text}
  prefix_user: {prefix_scope: user}
  prefix_public: {prefix_scope: public}
""",
    {},
)
SNAPSHOT = Snapshot.of(
    CONFIG,
    1,
    {name: build(name, CONFIG.backends[name]) for name in ("one", "two")},
    Identity(time.time).authenticator(CONFIG.auth),
)
ALICE = Principal("acme", "alice", frozenset({"hr"}))
BODY: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": "Hello?"}]}


def ask(
    body: Any = None,
    *,
    raw: bytes | None = None,
    api: Any = "chat",
    endpoint: str = "default",
    principal: Principal = ALICE,
    query: str = "",
    headers: dict[bytes, bytes] | None = None,
    **fields: Any,
) -> Ask:
    if raw is None:
        raw = json.dumps({**(BODY if body is None else body), **fields}).encode()
    return understand(api, raw, headers or {}, query, SNAPSHOT.endpoint(endpoint), principal, SNAPSHOT)


def refusal(*args: Any, **kwargs: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(*args, **kwargs)
    return caught.value


# What is refused


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": ["gpt-x"]}, "model"),
        ({"model": "gpt-" + "x" * 300}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello?"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [{"role": "user"}, "Hello?"]}, "messages[1]"),
        ({"messages": [None]}, "messages[0]"),
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": "2"}, "n"),
        ({"cache": "no"}, "cache"),
    ],
)
def test_a_field_that_we_rely_on_is_checked_and_named(fields: Any, param: str) -> None:
    error = refusal(**fields)
    assert (error.status, error.param, error.type) == (400, param, "invalid_request_error")


def test_completions_need_a_prompt_and_no_messages() -> None:
    assert refusal(api="completions").param == "prompt"
    assert ask({"model": "gpt-x", "prompt": None}, api="completions").api == "completions"
    assert ask({"model": "gpt-x", "prompt": ["a", [1, 2]]}, api="completions").model == "gpt-x"


def test_a_model_without_a_backend_is_a_404() -> None:
    error = refusal(model="claude-x")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")


@some
@given(st.fixed_dictionaries({"model": st.just("gpt-x"), "messages": json_values()}, optional={
    name: json_values()
    for name in ["n", "stream", "stream_options", "cache", "modalities", "tools", "store", "temperature", "max_tokens"]
}))  # fmt: skip
@example({**BODY, "modalities": 5})
def test_any_body_is_understood_or_refused(body: Any) -> None:
    found = attempt(lambda: ask(body))
    if isinstance(found, ApiError):
        assert found.status == 400
    else:
        assert len(found.key) == 32
        for stream in (False, True):
            assert isinstance(json.loads(found.call(stream=stream).body), dict)


# Routes, forms, bypasses


def test_the_first_matching_model_or_the_endpoint_chooses_the_backend() -> None:
    assert ask().backend.name == "one"
    assert ask(model="LLAMA-3").backend.name == "two"
    assert ask(endpoint="pinned").backend.name == "two"
    assert ask(endpoint="pinned", model="claude-x").backend.name == "two"


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, "json"),
        ({"stream": False}, "json"),
        ({"stream": None, "stream_options": None}, "json"),
        ({"stream": True}, "sse"),
        ({"stream": True, "stream_options": {}}, "sse"),
        ({"stream": True, "stream_options": {"include_usage": None}}, "sse"),
        ({"stream": True, "stream_options": {"include_usage": False}}, "sse"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "sse+usage"),
    ],
)
def test_the_wire_form_is_the_clients_choice_and_not_in_the_key(fields: Any, form: str) -> None:
    assert ask(**fields).form == form
    assert ask(**fields).key == ask().key


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, None),
        ({"endpoint": "uncached"}, "tier_off"),
        ({"headers": {b"x-refrain-tier": b"prefix"}}, "tier_not_asked"),
        ({"headers": {b"cache-control": b"no-store"}}, "no_store"),
        ({"cache": {"no-store": True}}, "no_store"),
        ({"store": True}, "store_requested"),
        ({"endpoint": "careful"}, "sampled"),
        ({"endpoint": "careful", "temperature": 0.0}, None),
        ({"headers": {b"cache-control": b"no-cache"}}, None),
    ],
)
def test_why_a_request_passes_by_the_cache(arguments: Any, why: str | None) -> None:
    assert ask(**arguments).bypass == why


# The key


def test_no_field_or_header_chooses_a_scope_a_backend_or_a_credential() -> None:
    hostile = {
        b"x-tenant": b"globex",
        b"x-refrain-tenant": b"globex",
        b"x-refrain-on-behalf": b"user=bob",
        b"x-forwarded-user": b"bob",
        b"x-refrain-prefix-salt": b"0" * 32,
        b"x-refrain-party": b"0" * 32,
        b"api-key": b"sk-other",
        b"openai-organization": b"org-other",
        b"host": b"evil.example",
    }
    mine, theirs = ask(), ask(headers=hostile)
    assert (theirs.key, theirs.scope, theirs.backend, theirs.headers) == (mine.key, mine.scope, mine.backend, ())
    assert theirs.call(stream=True) == mine.call(stream=True)
    fields = ("api_base", "base_url", "api_key", "namespace", "salt", "cache_salt", "tenant", "scope", "backend")
    for name in fields:
        steered = ask({**BODY, name: "http://evil.example"})
        assert (steered.scope, steered.backend) == (mine.scope, mine.backend)
        assert steered.call(stream=True).prefix_salt == mine.call(stream=True).prefix_salt
        assert steered.key != mine.key  # an unknown field like any other


def test_the_scope_is_the_principals() -> None:
    bob = Principal("acme", "bob", frozenset({"hr"}))
    assert ask(principal=bob).key == ask().key
    assert ask(principal=bob, endpoint="personal").key != ask(endpoint="personal").key
    assert ask(principal=Principal("globex", "alice", frozenset({"hr"}))).key != ask().key


def test_endpoint_backend_model_and_api_are_in_the_key() -> None:
    completion = {"model": "gpt-x", "messages": BODY["messages"], "prompt": "x"}
    keys = [ask().key, ask(endpoint="personal").key, ask(endpoint="pinned").key, ask(model="gpt-y").key]
    keys += [ask(model="GPT-x").key, ask(completion).key, ask(completion, api="completions").key]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", [b"anthropic-version", b"anthropic-beta", b"openai-beta"])
def test_a_header_that_is_passed_on_is_in_the_key(name: bytes) -> None:
    one, two = (ask(headers={name: value}) for value in (b"1", b"2"))
    assert len({one.key, two.key, ask().key}) == 3
    assert one.headers == one.call(stream=True).headers == ((name.decode(), "1"),)


def test_of_the_query_only_the_api_version_is_passed_on() -> None:
    found = ask(query="api-version=2024-10-21&debug=1&x=api-version=3&api-versions=2")
    assert found.query == found.call(stream=False).query == "api-version=2024-10-21"
    assert found.key != ask().key
    assert ask(query="debug=1&tenant=globex").key == ask().key
    assert len({ask(query=f"api-version={v}").key for v in ("1", "2", "", "1&api-version=2")}) == 4


def test_text_is_normalized_only_where_the_endpoint_says_so() -> None:
    spaced = {**BODY, "messages": [{"role": "user", "content": " Hello? "}]}
    assert ask(spaced).key != ask().key
    assert ask(spaced, endpoint="tolerant").key == ask(endpoint="tolerant").key
    assert b" Hello? " in ask(spaced, endpoint="tolerant").call(stream=False).body


# What an engine of our own is told of who asks


def salts(endpoint: str) -> list[str]:
    """Of two users of one tenant, and of one of another tenant."""
    who = (ALICE, Principal("acme", "bob", frozenset({"hr"})), Principal("globex", "alice"))
    return [ask(principal=principal, endpoint=endpoint).call(stream=True).prefix_salt for principal in who]


def test_prompts_share_prefixes_within_the_scope_of_their_endpoint() -> None:
    alice, bob, other = salts("default")
    assert alice == bob != other
    assert salts("personal") == salts("default")  # who shares answers is another question
    assert len(set(salts("prefix_user"))) == 3
    assert len(set(salts("prefix_public"))) == 1
    everything = {*salts("default"), *salts("prefix_user"), *salts("prefix_public")}
    assert len(everything) == 2 + 3 + 1
    assert all(re.fullmatch("[0-9a-f]{32}", salt) for salt in everything)


def test_names_do_not_run_into_each_other() -> None:
    def named(tenant: str, user: str) -> Call:
        return ask(principal=Principal(tenant, user), endpoint="prefix_user").call(stream=True)

    one, two = named("org_1", "2345"), named("org_12", "345")
    assert one.prefix_salt != two.prefix_salt
    assert one.party != two.party


def test_each_user_is_a_party_whatever_the_scope() -> None:
    calls = [ask(endpoint=e).call(stream=False) for e in ("default", "prefix_user", "prefix_public")]
    assert len({call.party for call in calls}) == 1
    others = [Principal("acme", "bob"), Principal("globex", "alice")]
    parties = {ask(principal=p).call(stream=False).party for p in (ALICE, *others)}
    assert len(parties) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", party) for party in parties)
    assert parties.isdisjoint(salts("prefix_user"))


# What goes upstream


def test_an_ordinary_request_goes_upstream_as_it_came() -> None:
    raw = b'{"messages" : [{"role":"user","content":"\\u00e9\\ud83d\\ude00"}],\n "model":"gpt-x", "temperature": 0.70}'
    call = ask(raw=raw).call(stream=False)
    names = {"prefix_salt": call.prefix_salt, "party": call.party, "tenant": call.tenant}
    assert call == Call("chat/completions", raw, **names)
    assert len(set(names.values())) == 3
    assert ask({"model": "gpt-x", "prompt": "x"}, api="completions").call(stream=False).path == "completions"


def test_the_cache_object_is_never_forwarded() -> None:
    found = ask(cache={"no-cache": True}, stream=True)
    assert not found.plain
    assert ask().plain
    for stream in (False, True):
        assert "cache" not in json.loads(found.call(stream=stream).body)


def test_who_streams_is_ours_to_say_and_other_stream_options_stay() -> None:
    found = ask(stream=True, stream_options={"include_obfuscation": False, "include_usage": False})
    streamed = json.loads(found.call(stream=True).body)
    assert streamed["stream"] is True
    assert streamed["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert json.loads(found.call(stream=False).body) == BODY
    assert json.loads(ask(stream=None).call(stream=False).body) == BODY


NUMBERS = ["9007199254740993", "1.0", "1", "-0.0", "1e2", "1e-400", "1E308", "123456789012345678901234567890", "5e-324"]
NUMBERS += ["0.1234567890123456789012345678901234567890123456789"]


@few
@given(st.lists(st.sampled_from(NUMBERS), min_size=1), st.booleans())
def test_numbers_reach_the_upstream_exactly_as_they_are(numbers: list[str], stream: bool) -> None:
    raw = b'{"model": "gpt-x", "messages": [{}], "stream": false, "x": [%s]}' % ", ".join(numbers).encode()
    sent = json.loads(ask(raw=raw).call(stream=stream).body, parse_float=Decimal)
    assert [Decimal(n) for n in sent["x"]] == [Decimal(n) for n in numbers]
    assert [type(n) for n in sent["x"]] == [type(json.loads(n, parse_float=Decimal)) for n in numbers]


@few
@given(st.dictionaries(st.text(max_size=5).map(lambda name: "x-" + name), json_values(), max_size=4))
def test_unknown_fields_reach_the_upstream_in_their_order(fields: Any) -> None:
    sent = json.loads(ask(stream=True, **fields).call(stream=True).body)
    assert [k for k in sent if k in fields] == list(fields)
    assert {k: sent[k] for k in fields} == fields


def test_prompts_are_not_in_the_repr() -> None:
    assert "Hello?" not in repr(ask())
    assert "Hello?" not in repr(ask().call(stream=True))
