"""The prefix tier: the real model behind the gateway starts a prompt from what it has computed of an earlier one, as
far as the endpoint's `prefix_scope` allows, and says how much that was."""

import itertools
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from gateway.prefixes import prefix_salt
from tests.support.engines import MODEL, local_gateway
from tests.support.gateway import ALICE, BOB, EVE, Running

# An engine starts in 10 s, and on a busy machine in a minute.
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

ENDPOINTS = """
  mine: {prefix_scope: user}
  ours: {prefix_scope: tenant, mode: request_response}
  everybodys: {prefix_scope: public}
"""
_number = itertools.count(1)


@pytest.fixture(scope="module")
def gw() -> Iterator[Running]:
    with local_gateway(ENDPOINTS) as gateway:
        yield gateway


@pytest.fixture
def manual() -> str:
    """A long system prompt that no other test uses, from its first words on."""
    number = next(_number)
    return f"This is manual number {number}. " + " ".join(f"Rule {i}: be brief, kind and exact." for i in range(20))


def ask(gw: Running, key: str, manual: str, question: str, endpoint: str = "", **more: Any) -> ChatCompletion:
    base = f"{gw.url}/{endpoint}/v1" if endpoint else f"{gw.url}/v1"
    with openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=100) as client:
        return client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "system", "content": manual}, {"role": "user", "content": question}],
            temperature=0,
            max_tokens=4,
            **more,
        )


def cached(answer: ChatCompletion) -> int:
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    found = answer.usage.prompt_tokens_details.cached_tokens
    assert found is not None
    return found


def last_decision(gw: Running) -> dict[str, Any]:
    found = gw.admin("GET", "/admin/decisions", params={"limit": 1}).json()["decisions"]
    return dict(found[0])


@pytest.mark.parametrize("endpoint", ["", "ours"], ids=["stream", "request_response"])
def test_a_miss_whose_prefix_is_warm(gw: Running, manual: str, endpoint: str) -> None:
    cold = ask(gw, ALICE, manual, "What is the capital of France?", endpoint)
    assert cached(cold) == 0
    decision = last_decision(gw)
    assert decision["tokens"]["cached"] == 0
    assert decision["tiers"][-1] == {"tier": "prefix", "result": "miss", "tokens": 0}

    warm = ask(gw, ALICE, manual, "What is the capital of Spain?", endpoint)
    assert warm.usage is not None
    assert 100 < cached(warm) < warm.usage.prompt_tokens
    decision = last_decision(gw)
    assert decision["outcome"] == "miss"
    assert decision["tokens"]["cached"] == cached(warm)
    assert decision["tokens"]["consumed"] == warm.usage.total_tokens
    assert decision["tiers"][-1] == {"tier": "prefix", "result": "hit", "tokens": cached(warm)}
    phases = decision["phases"]
    assert 0 <= phases["upstream_queue"] < phases["first_byte"]
    assert 0 < phases["upstream_prefill"] < phases["upstream"]


def test_what_is_reused_says_what_it_took_when_it_was_made(gw: Running, manual: str) -> None:
    ask(gw, ALICE, manual, "What is the capital of France?")
    # It ends by itself after a word: an answer that is cut off is not kept.
    warm, hit = (ask(gw, ALICE, manual, "What is the capital of Spain?", stop=[" "]) for _ in range(2))
    assert cached(warm) > 100
    assert hit.usage == warm.usage
    decision = last_decision(gw)
    assert decision["outcome"] == "exact"
    assert "cached" not in decision["tokens"]
    assert [tier["tier"] for tier in decision["tiers"]] == ["exact"]


def test_the_usage_of_a_stream_says_it_too(gw: Running, manual: str) -> None:
    ask(gw, ALICE, manual, "What is the capital of France?")
    with openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0, timeout=100) as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "system", "content": manual}, {"role": "user", "content": "And of Italy?"}],
            temperature=0,
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        with stream:
            *_, last = stream
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert (last.usage.prompt_tokens_details.cached_tokens or 0) > 100


SHARING = [
    # (endpoint, who asks after Alice, whether it finds what she has computed)
    ("", BOB, True),
    ("", EVE, False),
    ("mine", ALICE, True),
    ("mine", BOB, False),
    ("mine", EVE, False),
    ("everybodys", BOB, True),
    ("everybodys", EVE, True),
]


@pytest.mark.parametrize(("endpoint", "key", "shared"), SHARING)
def test_who_shares_prefixes_with_whom(gw: Running, manual: str, endpoint: str, key: str, shared: bool) -> None:
    assert cached(ask(gw, ALICE, manual, "What is the capital of France?", endpoint)) == 0
    found = cached(ask(gw, key, manual, "What is the capital of Spain?", endpoint))
    assert found > 100 if shared else found == 0


def test_endpoints_of_one_tenant_share_when_their_scope_is_the_same(gw: Running, manual: str) -> None:
    ask(gw, ALICE, manual, "What is the capital of France?")
    assert cached(ask(gw, ALICE, manual, "What is the capital of France?", "ours")) > 100
    assert cached(ask(gw, ALICE, manual, "What is the capital of France?", "mine")) == 0
    assert cached(ask(gw, ALICE, manual, "What is the capital of France?", "everybodys")) == 0


def test_a_client_cannot_choose_its_partition(gw: Running, manual: str) -> None:
    ask(gw, ALICE, manual, "What is the capital of France?")
    salt = prefix_salt("tenant", "acme", "alice")
    headers = {"x-refrain-prefix-salt": salt, "x-refrain-party": salt}
    assert cached(ask(gw, EVE, manual, "What is the capital of Spain?", extra_headers=headers)) == 0
