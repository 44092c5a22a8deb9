"""Plain calls on an endpoint in `batch` mode: answered later, or while the client waits."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.batch.records import ENDED
from tests.support.batches import MODEL, Json, Lane, counts, lane, lane_config, text_in
from tests.support.gateway import ALICE, BOB, Running, config_text, running
from tests.support.traffic import ENVELOPE, decision, error_of, fixed, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Script, Seen, Upstream, numbered

pytestmark = pytest.mark.slow

LIMITED = "rf-test-limited-key"
KEYS = f"    - {{key: {LIMITED}, tenant: acme, user: lee, limits: {{requests: 1/hour}}}}\n"
EXTRA = """
  nightly: {mode: batch}
  careful_nightly: {mode: batch, cache: {exact: off, semantic: off}}
"""
NIGHTLY = "/nightly/v1"
WAITS = {"prefer": "wait=20"}


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(lane_config(up, tmp_path_factory.mktemp("lane"), keys=KEYS, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture
def alice(gw: Running) -> Iterator[Lane]:
    with lane(gw, endpoint="nightly") as found:
        yield found


def ask(gw: Running, prompt: str, **more: Any) -> httpx.Response:
    return gw.chat(prompt, path=NIGHTLY, **more)


def late(seconds: float) -> Script:
    def script(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.first_pause = seconds
        return reply

    return script


def accepted(response: httpx.Response) -> Json:
    """The batch that it has become."""
    assert response.status_code == 202, f"{response.status_code} {response.text[:300]}"
    batch = dict(response.json())
    assert (batch["object"], batch["status"]) == ("batch", "validating")
    assert response.headers["location"] == f"{NIGHTLY}/batches/{batch['id']}"
    return batch


def test_it_becomes_a_batch(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        messages: Any = [{"role": "user", "content": prompt}]
        raw: Any = alice.client.chat.completions.with_raw_response.create(model=MODEL, messages=messages)
        batch = alice.ended(accepted(raw.http_response)["id"])
        assert (batch.status, counts(batch), batch.model) == ("completed", (1, 1, 0), MODEL)
        at = gw.client.get(raw.headers["location"], headers={"authorization": f"Bearer {ALICE}"})
        assert at.json()["id"] == batch.id
        answer = alice.answers(batch)[raw.headers["x-request-id"]]
        again = ask(gw, prompt)
    assert outcome(again) == "exact"
    assert text_of(again) == text_in(answer) == f"This is answer number {up.calls}."
    assert raw.headers["x-refrain-cache"] == "miss"
    assert decision(gw, raw.http_response)["status"] == 202
    assert [found.id for found in alice.client.batches.list(limit=1).data] == [batch.id]


def test_it_is_its_owners(gw: Running, alice: Lane, prompt: str) -> None:
    batch = accepted(ask(gw, prompt))
    with lane(gw, endpoint="nightly", key=BOB) as bob, pytest.raises(openai.NotFoundError):
        bob.get(batch["id"])
    alice.ended(batch["id"])


@pytest.mark.parametrize("prefer", ["wait=20", "respond-async, wait=20", 'Wait="20"', "wait = 20; x=1, y"])
def test_whoever_waits_has_the_answer(gw: Running, up: Upstream, prompt: str, prefer: str) -> None:
    with upstream_calls(up, 1):
        for expected in ("miss", "exact"):
            response = ask(gw, prompt, headers={"prefer": prefer})
            assert outcome(response) == expected
            assert text_of(response) == f"This is answer number {up.calls}."
            assert response.json()["usage"]["total_tokens"] == 18


@pytest.mark.parametrize("prefer", ["wait", "wait=soon", "wait=-1", "wait=1.5", "wait=0", "handling=lenient"])
def test_a_preference_that_says_no_time_is_none(gw: Running, alice: Lane, prompt: str, prefer: str) -> None:
    alice.ended(accepted(ask(gw, prompt, headers={"prefer": prefer}))["id"])


def test_a_stream_for_whoever_waits(alice: Lane, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        for usage in (False, True):
            pieces = list(
                alice.client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": prompt}],
                    stream=True,
                    stream_options={"include_usage": usage},
                    extra_headers=WAITS,
                )
            )
            text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
            assert text == f"This is answer number {up.calls}."
            assert (pieces[-1].usage is not None) == usage


def test_a_stream_for_nobody_is_no_stream(gw: Running, alice: Lane, prompt: str) -> None:
    batch = alice.ended(accepted(ask(gw, prompt, stream=True, stream_options={"include_usage": True}))["id"])
    assert counts(batch) == (1, 1, 0)
    assert outcome(ask(gw, prompt, stream=True)) == "exact"


def test_legacy_completions(alice: Lane, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        for _ in range(2):
            answer = alice.client.completions.create(model=MODEL, prompt=prompt, extra_headers=WAITS)
            assert answer.choices[0].text == f"text number {up.calls}"


def test_embeddings_are_answered_at_once(alice: Lane, prompt: str) -> None:
    assert alice.client.embeddings.create(model=MODEL, input=prompt).data[0].embedding


# Errors


def test_what_is_wrong_is_told_at_once(gw: Running, alice: Lane) -> None:
    before = [batch.id for batch in alice.client.batches.list(limit=1).data]
    assert error_of(ask(gw, "?", n=0), 400)["param"] == "n"
    assert error_of(ask(gw, "?", headers={"cache-control": "only-if-cached"}), 504)["code"] == "not_cached"
    assert error_of(ask(gw, "?", key="rf-wrong"), 401)
    assert [batch.id for batch in alice.client.batches.list(limit=1).data] == before


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_an_error_of_the_backend_reaches_whoever_waits(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    error = b'{"error": {"message": "Too long.", "type": "invalid_request_error", "param": "messages", "code": "long"}}'
    up.script = fixed(Reply([error], status=400))
    with upstream_calls(up, 1):
        response = ask(gw, prompt, headers=WAITS, stream=stream)
    found = error_of(response, 400)
    assert found == {"message": "Too long.", "type": "invalid_request_error", "param": "messages", "code": "long"}
    assert response.headers["x-should-retry"] == "false"


def test_an_error_of_the_backend_lies_in_the_error_file(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    up.script = fixed(Reply([b'{"error": {"message": "Too long."}}'], status=400))
    response = ask(gw, prompt)
    batch = alice.ended(accepted(response)["id"])
    failure = alice.failures(batch)[response.headers["x-request-id"]]["response"]
    assert (failure["status_code"], failure["body"]["error"].keys()) == (400, ENVELOPE)


# Waiting


def test_a_wait_that_is_too_short(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    """The batch goes on."""

    up.script = late(1.5)
    with upstream_calls(up, 1):
        begun = time.monotonic()
        response = ask(gw, prompt, headers={"prefer": "wait=1"})
        assert 0.9 < time.monotonic() - begun < 1.5
        assert response.status_code == 202
        assert response.json()["id"] == response.headers["location"].rsplit("/", 1)[1]
        batch = alice.ended(response.json()["id"])
        assert text_of(ask(gw, prompt)) == text_in(alice.answers(batch)[response.headers["x-request-id"]])


def test_a_client_that_leaves_while_it_waits(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    up.script = late(0.7)
    with upstream_calls(up, 1):
        with httpx.Client(base_url=gw.url, timeout=0.3, trust_env=False) as hasty, pytest.raises(httpx.ReadTimeout):
            Running(gw.url, gw.clock, hasty).chat(prompt, path=NIGHTLY, headers=WAITS)
        until(lambda: alice.client.batches.list(limit=1).data[0].status in ENDED)
        assert counts(alice.client.batches.list(limit=1).data[0]) == (1, 1, 0)
        assert outcome(ask(gw, prompt)) == "exact"


def test_identical_calls_run_once(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    up.script = late(0.5)
    with upstream_calls(up, 1):
        ids = [accepted(ask(gw, prompt))["id"] for _ in range(5)]
        texts = {text_in(answer) for id in ids for answer in alice.answers(alice.ended(id)).values()}
    assert texts == {f"This is answer number {up.calls}."}


# As any request


def test_its_directives_hold(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 2):
        assert outcome(ask(gw, prompt, headers=WAITS, cache={"no-store": True})) == "bypass"
        assert outcome(ask(gw, prompt, headers={**WAITS, "x-refrain-tags": "plain"})) == "miss"
    assert gw.admin("POST", "/admin/purge", json={"tags": ["plain"]}).json() == {"purged": 1}


def test_what_else_is_in_its_key_is_kept(gw: Running, up: Upstream, prompt: str) -> None:
    """So that the answer is found by the next one like it."""
    more: Any = {"headers": {**WAITS, "openai-beta": "yes", "authorization": f"Bearer {ALICE}"}}
    more["params"] = {"api-version": "1"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
    with upstream_calls(up, 1):
        for expected in ("miss", "exact"):
            assert outcome(gw.client.post(f"{NIGHTLY}/chat/completions", json=body, **more)) == expected
    assert (up.seen[-1].headers["openai-beta"], up.seen[-1].query) == ("yes", "api-version=1")


def test_numbers_go_out_as_they_came(gw: Running, up: Upstream, prompt: str) -> None:
    body = '{"model": "%s", "novel": 1.0000000000000000000001, "messages": [{"role": "user", "content": "%s"}]}'
    with upstream_calls(up, 1):
        response = gw.raw((body % (MODEL, prompt)).encode(), path=NIGHTLY, **WAITS)
    assert outcome(response) == "miss"
    assert b"1.0000000000000000000001" in up.seen[-1].raw


def test_it_counts_as_one_request(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        assert outcome(ask(gw, prompt, key=LIMITED, headers={"prefer": "wait=3"})) == "miss"
    assert error_of(ask(gw, prompt, key=LIMITED), 429)["code"] == "rate_limit_exceeded"


def test_an_endpoint_without_caches(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 2):
        for _ in range(2):
            assert outcome(gw.chat(prompt, path="/careful_nightly/v1", headers=WAITS)) == "bypass"


def test_without_a_disk_it_is_answered_at_once(up: Upstream, tmp_path: Path) -> None:
    with running(config_text(up.url, extra=EXTRA)) as gw, upstream_calls(up, 1):
        assert [outcome(ask(gw, "At once?")) for _ in range(2)] == ["miss", "exact"]
        assert outcome(ask(gw, "At once?", stream=True)) == "exact"
