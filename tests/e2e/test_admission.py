"""More requests than a backend may have at once, through real sockets: who goes first, who waits, who is refused."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.exposition import total, value
from tests.support.gateway import ALICE, BOB, EVE, KEYS, Running, running
from tests.support.live import Caller, call, first_byte_held, gate, settled
from tests.support.traffic import byte_identical, decision, error_of, outcome, until, upstream_calls
from tests.support.upstream import Reply, Upstream, numbered
from tests.support.vectors import embed

pytestmark = pytest.mark.slow

FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])


def config(url: str, *, one: int = 1) -> str:
    return f"""
backends:
  one: {{kind: remote, base_url: "{url}", max_running: {one}, max_queue: 3}}
  four: {{kind: remote, base_url: "{url}", max_running: 4, max_queue: 200}}
  known: {{kind: remote, base_url: "{url}", max_running: 1}}
models: {{"*": one}}
store: {{url: "memory://"}}
{KEYS}
endpoints:
  default: {{mode: stream}}
  rr: {{mode: request_response}}
  nightly: {{mode: request_response, priority: batch}}
  four: {{mode: request_response, backend: four}}
  four_nightly: {{mode: request_response, backend: four, priority: batch}}
  known: {{mode: request_response, backend: known}}
  soon: {{mode: stream, deadline: 300ms}}
"""


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config(up.url)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test nothing runs or waits, and the sums are in balance."""
    yield
    settled(gw)
    for backend in ("one", "four", "known"):
        for priority in ("interactive", "batch"):
            assert counts(gw, backend, priority) == (0, 0)


def counts(gw: Running, backend: str = "one", priority: str = "interactive") -> tuple[int, int]:
    """How many calls run and wait."""
    text = gw.admin("GET", "/metrics").text
    running, waiting = (
        value(text, f"refrain_backend_{name}", backend=backend, priority=priority) for name in ("running", "waiting")
    )
    return int(running), int(waiting)


def refused(gw: Running) -> float:
    """How many calls the first backend was not sent because too many waited."""
    labels = {"backend": "one", "priority": "interactive", "code": "backend_overloaded"}
    return total(gw.admin("GET", "/metrics").text, "refrain_backend_refused_total", **labels)


def waits(gw: Running, calls: int, backend: str = "one", priority: str = "interactive") -> None:
    until(lambda: counts(gw, backend, priority)[1] == calls)


@contextmanager
def occupied(gw: Running, up: Upstream, prompt: str, path: str = "/v1", key: str = BOB) -> Iterator[None]:
    """Inside, the upstream answers no call that is made; one has been, by somebody else."""
    before = up.calls
    with gate() as go:
        up.script = first_byte_held(go)
        first = call(gw, f"{prompt} Somebody else's.", path=path, key=key)
        until(lambda: up.calls == before + 1)
        yield
        go.set()
    assert first.result().status_code == 200


def one_after_the_other(gw: Running, prompts: list[tuple[str, str]], **more: Any) -> list[Caller]:
    """A call for each (prompt, key), each once the one before waits."""
    callers = []
    for number, (prompt, key) in enumerate(prompts, 1):
        callers.append(call(gw, prompt, key=key, **more))
        waits(gw, number)
    return callers


def asked(up: Upstream, last: int) -> list[str]:
    """What the last so many calls asked for."""
    return [seen.body["messages"][0]["content"] for seen in up.seen[-last:]]


# The queue


@FORMS
@MODES
def test_beyond_the_queue_a_request_is_refused(gw: Running, up: Upstream, prompt: str, path: str, stream: bool) -> None:
    calls = up.calls
    with occupied(gw, up, prompt):
        waiting = one_after_the_other(gw, [(f"{prompt} {n}", ALICE) for n in range(3)])
        assert counts(gw) == (1, 3)
        before = refused(gw)
        response = gw.chat(f"{prompt} too much", path=path, stream=stream)
        error = error_of(response, 429)
        assert (error["code"], error["type"]) == ("backend_overloaded", "rate_limit_exceeded")
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert 0 < int(response.headers["retry-after-ms"]) <= 60_000
        assert decision(gw, response)["error"] == "backend_overloaded"
        assert decision(gw, response)["tokens"]["consumed"] == 0
        assert refused(gw) == before + 1
        assert gw.client.get("/v1/models", headers={"authorization": f"Bearer {ALICE}"}).status_code == 200
    for caller in waiting:
        assert caller.result().status_code == 200
    assert up.calls == calls + 4


def test_users_take_turns_and_a_full_queue_is_nobodys_alone(gw: Running, up: Upstream, prompt: str) -> None:
    with occupied(gw, up, prompt):
        alices = one_after_the_other(gw, [(f"{prompt} Alice {n}", ALICE) for n in range(3)])
        eves = call(gw, f"{prompt} Eve", key=EVE)
        assert error_of(alices[2].result(), 429)["code"] == "backend_overloaded"
        assert counts(gw) == (1, 3)
    for caller in (*alices[:2], eves):
        assert caller.result().status_code == 200
    assert asked(up, 3) == [f"{prompt} Alice 0", f"{prompt} Eve", f"{prompt} Alice 1"]


def test_a_client_that_leaves_makes_room_and_is_charged_nothing(gw: Running, up: Upstream, prompt: str) -> None:
    with occupied(gw, up, prompt):
        before = gw.admin("GET", "/admin/stats").json()["tokens"]["consumed"]
        callers = one_after_the_other(gw, [(f"{prompt} {n}", ALICE) for n in range(3)])
        callers[1].leave()
        waits(gw, 2)
        callers[1] = call(gw, f"{prompt} another")
        waits(gw, 3)
        assert gw.admin("GET", "/admin/stats").json()["tokens"]["consumed"] == before
    for caller in callers:
        assert caller.result().status_code == 200
    assert asked(up, 4) == [f"{prompt} Somebody else's.", f"{prompt} 0", f"{prompt} 2", f"{prompt} another"]


def test_identical_requests_wait_as_one(gw: Running, up: Upstream, prompt: str) -> None:
    before = up.calls
    with occupied(gw, up, prompt):
        callers = [call(gw, prompt, stream=number % 2 == 0) for number in range(6)]
        waits(gw, 1)
        until(lambda: gw.admin("GET", "/metrics").text.count("refrain_flight_listeners 7.0"))
    assert sorted(caller.result().headers["x-refrain-cache"] for caller in callers) == ["joined"] * 5 + ["miss"]
    assert up.calls == before + 2


def test_embeddings_wait_in_the_same_queue(gw: Running, up: Upstream, prompt: str) -> None:
    with ThreadPoolExecutor() as pool:
        with occupied(gw, up, prompt):
            vectors = pool.submit(embed, gw, prompt)
            waits(gw, 1)
            late = embed(gw, f"{prompt} late", headers={"x-stainless-read-timeout": "0.2"})
            assert error_of(late, 504)["code"] == "deadline_exceeded"
            assert counts(gw) == (1, 1)
            up.script = numbered
        assert outcome(vectors.result()) == "miss"
    assert decision(gw, vectors.result())["phases"]["queue"] > 100


@pytest.mark.slow
def test_a_burst_is_answered_four_at_a_time(gw: Running, up: Upstream, prompt: str) -> None:
    async def burst() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        head = {"authorization": f"Bearer {ALICE}"}
        async with httpx.AsyncClient(
            base_url=gw.url, limits=limits, timeout=60, trust_env=False, headers=head
        ) as client:

            async def ask(number: int) -> httpx.Response:
                body = {"model": "m", "messages": [{"role": "user", "content": f"{prompt} {number}"}]}
                return await client.post("/four/v1/chat/completions", json=body)

            tasks = [asyncio.ensure_future(ask(number)) for number in range(200)]
            await asyncio.to_thread(waits, gw, 196, "four")
            assert counts(gw, "four") == (4, 196)
            assert up.calls == before + 4
            go.set()
            return list(await asyncio.gather(*tasks))

    before = up.calls
    with gate() as go:
        up.script = first_byte_held(go)
        responses = asyncio.run(burst())
    assert [response.status_code for response in responses] == [200] * 200
    assert up.calls == before + 200
    assert len({response.json()["choices"][0]["message"]["content"] for response in responses}) == 200


def test_an_official_client_comes_back_when_it_is_told_to(gw: Running, up: Upstream, prompt: str) -> None:
    with (
        openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=5, timeout=20) as client,
        ThreadPoolExecutor() as pool,
    ):
        with occupied(gw, up, prompt, key=EVE):
            callers = one_after_the_other(gw, [(f"{prompt} {n}", ALICE) for n in range(3)])
            before = refused(gw)
            ask = partial(client.chat.completions.create, model="m", messages=[{"role": "user", "content": prompt}])
            answer = pool.submit(ask)
            until(lambda: refused(gw) > before)
        assert answer.result().choices[0].message.content
    for caller in callers:
        assert caller.result().status_code == 200


# Classes


def test_interactive_requests_go_before_those_of_a_batch_endpoint(gw: Running, up: Upstream, prompt: str) -> None:
    with occupied(gw, up, prompt):
        batch = [call(gw, f"{prompt} batch {number}", path="/nightly/v1", stream=False) for number in range(3)]
        waits(gw, 3, priority="batch")
        chat = call(gw, f"{prompt} chat")
        waits(gw, 1)
    for caller in (chat, *batch):
        assert caller.result().status_code == 200
    order = asked(up, 4)
    assert order[0] == f"{prompt} chat"
    assert sorted(order[1:]) == [f"{prompt} batch {number}" for number in range(3)]


def test_the_queue_of_batch_endpoints_is_bounded_too(gw: Running, up: Upstream, prompt: str) -> None:
    with occupied(gw, up, prompt):
        waiting = [call(gw, f"{prompt} batch {n}", path="/nightly/v1", stream=False) for n in range(3)]
        waits(gw, 3, priority="batch")
        late = gw.chat(f"{prompt} late", path="/nightly/v1")
        assert error_of(late, 429)["code"] == "backend_overloaded"
        assert int(late.headers["retry-after"]) >= 1
    assert [caller.result().status_code for caller in waiting] == [200] * 3


def test_nobody_waits_for_the_turn_of_an_identical_request_of_the_batch_class(
    gw: Running, up: Upstream, prompt: str
) -> None:
    with ThreadPoolExecutor() as pool:
        with occupied(gw, up, prompt):
            batch = pool.submit(embed, gw, prompt, path="/nightly/v1")
            waits(gw, 1, priority="batch")
            interactive = pool.submit(embed, gw, prompt)
            waits(gw, 1)
            up.script = numbered
        assert [outcome(interactive.result()), outcome(batch.result())] == ["miss", "miss"]


def test_batch_requests_leave_half_of_the_backend_to_others(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as go:
        up.script = first_byte_held(go)
        batch = [call(gw, f"{prompt} batch {number}", path="/four_nightly/v1", stream=False) for number in range(4)]
        until(lambda: counts(gw, "four", "batch") == (2, 2))
        chats = [call(gw, f"{prompt} chat {number}", path="/four/v1", stream=False) for number in range(2)]
        until(lambda: counts(gw, "four") == (2, 0))
        assert counts(gw, "four", "batch") == (2, 2)
        go.set()
        for caller in (*batch, *chats):
            assert caller.result().status_code == 200


# Deadlines


@FORMS
def test_a_call_that_is_late_is_given_up(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    cancelled = up.cancelled
    with gate() as go:
        up.script = first_byte_held(go)
        response = gw.chat(prompt, path="/soon/v1", stream=stream)
        assert error_of(response, 504)["code"] == "deadline_exceeded"
        assert response.headers["x-should-retry"] == "false"
        assert 290 <= decision(gw, response)["ms"] < 3_000
        until(lambda: up.cancelled == cancelled + 1)


@FORMS
def test_a_request_that_waits_too_long_may_try_again(up: Upstream, prompt: str, stream: bool) -> None:
    """A new gateway: it is not known yet what a call takes."""
    with running(config(up.url)) as gw, upstream_calls(up, 1), occupied(gw, up, prompt):
        response = gw.chat(prompt, stream=stream, headers={"x-stainless-read-timeout": "0.2"})
        assert error_of(response, 504)["code"] == "deadline_exceeded"
        assert "x-should-retry" not in response.headers
        assert decision(gw, response)["tokens"]["consumed"] == 0
        waits(gw, 0)


@FORMS
def test_what_cannot_be_in_time_is_refused_at_once(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    reply = numbered

    def slow(seen: Any, number: int) -> Reply:
        made = reply(seen, number)
        made.first_pause = 0.4
        return made

    up.script = slow
    assert gw.chat(prompt, path="/known/v1").status_code == 200  # so that it is known what a call takes
    with occupied(gw, up, prompt, "/known/v1"):
        response = gw.chat(
            f"{prompt} late", path="/known/v1", stream=stream, headers={"x-stainless-read-timeout": "0.1"}
        )
        assert error_of(response, 503)["code"] == "deadline_too_short"
        assert response.headers["retry-after"] == "1"
        assert 0 < int(response.headers["retry-after-ms"]) < 1_000
        assert decision(gw, response)["ms"] < 300
        assert "known" in response.json()["error"]["message"]


@pytest.mark.parametrize("said", ["0", "-1", "nan", "1e-9", "0.1, 0.1", "x" * 2_000])
def test_nonsense_for_a_deadline_is_not_heeded(gw: Running, up: Upstream, prompt: str, said: str) -> None:
    assert outcome(gw.chat(prompt, headers={"x-stainless-read-timeout": said})) == "miss"


def test_a_hit_comes_whatever_the_deadline_and_the_short_way(gw: Running, up: Upstream, prompt: str) -> None:
    hurry = {"x-stainless-read-timeout": "0.000001"}
    assert outcome(gw.chat(prompt)) == "miss"
    with occupied(gw, up, prompt):
        hit = gw.chat(prompt, headers=hurry)
        assert outcome(hit) == "exact"
        assert byte_identical(gw, hit)
        the_long_way = gw.chat(prompt, headers={**hurry, "cache-control": "max-age=600"})
        assert outcome(the_long_way) == "exact"
        assert not byte_identical(gw, the_long_way)


# Reloads


def test_a_new_limit_holds_at_once(up: Upstream, prompt: str, tmp_path: Path) -> None:
    path = tmp_path / "refrain.yaml"
    with running(config(up.url), path=path) as gateway:
        with occupied(gateway, up, prompt):
            callers = one_after_the_other(gateway, [(f"{prompt} {n}", ALICE) for n in range(3)])
            path.write_text(config(up.url, one=3))
            until(lambda: counts(gateway) == (3, 1))
        for caller in callers:
            assert caller.result().status_code == 200
        settled(gateway)
