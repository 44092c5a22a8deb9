"""Flights whose backend fails, where another one may be asked: who is called, what everybody gets, under which key it
is kept, and that nothing is charged twice or left over."""

import json
from typing import Any

import pytest

from backends.base import BackendTimeout, ConnectFailed, ReplyBroken, ReplyTooLarge
from gateway.gate import Limits
from tests.contract.stores import START
from tests.gateway.fallbacks import FAILED, REJECTED, Backends, asked, whole
from tests.gateway.flying import Client, code_of, ended, passes, pieces, request, settled
from tests.gateway.scripted import END, OPEN
from tests.gateway.test_flight_failures import AFTER, BEFORE
from tests.gateway.timeless import timeless
from tests.support.live import FORMS, TOKENS
from tests.support.upstream import chat_answer

KINDS = pytest.mark.parametrize("form", list(FORMS))


def outcomes(*clients: Client) -> list[str]:
    return [client.headers["x-refrain-cache"] for client in clients]


async def answered(hub: Backends, form: str = "json", prompt: str = "Hello?", **more: Any) -> Client:
    client = hub.client(form, prompt, **more)
    await ended(client)
    assert code_of(client) == "ok"
    return client


# When another one is asked


@pytest.mark.parametrize("how", list(BEFORE))
@KINDS
@timeless
async def test_what_fails_before_anything_has_come_is_asked_elsewhere(form: str, how: str) -> None:
    hub = Backends()
    hub.says("one", BEFORE[how])
    client = await answered(hub, form)
    assert b"two" in client.content
    assert hub.counts() == (1, 1, 0)
    said = hub.record(client)
    assert (said["outcome"], said["status"], said["error"], said["backend"]) == ("miss", 200, None, "two")
    (failed,) = asked(said)
    assert failed[0] == "one"
    assert dict(hub.recorder.observed.failures) == {failed: 1}
    assert dict(hub.recorder.observed.fallbacks) == {("one", "two"): 1}
    assert list(said["phases"])[-2:] == ["first_byte", "upstream"]
    assert "fallback" in said["phases"]
    outer = [span["ms"] for span in said["spans"] if "within" not in span]
    assert sum(outer) == pytest.approx(said["ms"], abs=0.01)
    books = await settled(hub)
    assert books["served"] == TOKENS
    assert books["consumed"] == TOKENS + books["unserved"]


@pytest.mark.parametrize("status", [401, 403, 405, 429, 307, 500, 529])
@timeless
async def test_a_refusal_that_is_not_the_requests_fault_is_one(status: int) -> None:
    hub = Backends()
    hub.says("one", [(status, "application/json"), b"{}", END])
    await answered(hub)
    assert hub.counts() == (1, 1, 0)


@pytest.mark.parametrize("status", [400, 404, 409, 413, 415, 422])
@KINDS
@timeless
async def test_what_is_the_requests_own_fault_is_not_asked_elsewhere(form: str, status: int) -> None:
    hub = Backends()
    hub.says("one", [(status, "application/json"), b'{"error": {"message": "no", "code": "theirs"}}', END])
    client = hub.client(form)
    await ended(client)
    assert (client.status, code_of(client)) == (status, "theirs")
    assert hub.counts() == (1, 0, 0)
    assert hub.record(client)["failures"] == []
    await settled(hub)


@timeless
async def test_nor_is_an_answer_that_was_too_large() -> None:
    hub = Backends()
    hub.says("one", [(200, "application/json"), ReplyTooLarge("It is too large.")])
    client = hub.client("json", endpoint="rr")
    await ended(client)
    assert code_of(client) == "backend_reply_too_large"
    assert hub.counts() == (1, 0, 0)


@pytest.mark.parametrize("how", list(AFTER))
@KINDS
@timeless
async def test_an_answer_that_has_begun_goes_on_nowhere_else(form: str, how: str) -> None:
    hub = Backends()
    hub.says("one", [OPEN, *pieces()[:2], *AFTER[how]])
    client = hub.client(form)
    await ended(client)
    assert code_of(client) != "ok"
    assert hub.counts() == (1, 0, 0)
    said = hub.record(client)
    assert (said["backend"], said["failures"]) == ("one", [])
    await settled(hub)


@timeless
async def test_a_whole_answer_that_broke_off_has_reached_nobody_and_is_asked_elsewhere() -> None:
    hub = Backends()
    hub.says("one", [(200, "application/json"), b'{"id": ', ReplyBroken("It broke off.")])
    await answered(hub, endpoint="rr")
    assert hub.counts() == (1, 1, 0)
    books = await settled(hub)
    assert books["unserved"] > 0  # the first backend has read the prompt


@timeless
async def test_a_fallback_that_breaks_off_in_its_answer_ends_it() -> None:
    hub = Backends()
    hub.says("two", [OPEN, *pieces()[:2], ReplyBroken("It broke off.")])
    client = hub.client("sse", endpoint="long")
    await ended(client)
    assert code_of(client) == "backend_reply_broken"
    assert hub.counts() == (1, 1, 0)
    said = hub.record(client)
    assert (said["backend"], asked(said)) == ("two", [("one", "backend_error")])
    await settled(hub)


# Chains


@pytest.mark.parametrize("how", ["5xx", "400", "404"])
@timeless
async def test_the_chain_goes_on_whatever_a_fallback_finds_wrong(how: str) -> None:
    hub = Backends()
    hub.says("two", FAILED if how == "5xx" else [(int(how), "application/json"), b"{}", END])
    client = await answered(hub, endpoint="long")
    assert b"three" in client.content
    assert hub.counts() == (1, 1, 1)
    assert [name for name, _ in asked(hub.record(client))] == ["one", "two"]
    assert dict(hub.recorder.observed.fallbacks) == {("one", "two"): 1, ("two", "three"): 1}
    await settled(hub)


@timeless
async def test_when_all_fail_the_client_hears_of_its_own_backend() -> None:
    hub = Backends()
    hub.says("one", [ConnectFailed("No connection.")])
    hub.says("two", REJECTED)
    hub.says("three", FAILED)
    client = hub.client("sse", endpoint="long")
    await ended(client)
    assert (client.status, code_of(client)) == (502, "backend_unreachable")
    said = hub.record(client)
    assert (said["backend"], said["error"], said["outcome"]) == ("one", "backend_unreachable", "miss")
    assert asked(said) == [("one", "backend_unreachable"), ("two", "theirs"), ("three", "backend_error")]
    assert (await settled(hub))["consumed"] == 0


@timeless
async def test_one_who_waits_tries_the_chain_once_more_and_then_all_are_told() -> None:
    hub = Backends()
    hub.says("two", FAILED)
    hub.says("one", [])
    clients = [hub.client("sse") for _ in range(4)]
    await passes()
    hub.made("one")[0].put(*FAILED)
    await hub.backend.called(2)
    hub.made("one")[1].put(*FAILED)
    await ended(*clients)
    assert {code_of(client) for client in clients} == {"backend_error"}
    assert outcomes(*clients) == ["miss", "miss", "joined", "joined"]
    assert hub.counts() == (2, 2, 0)
    await settled(hub)


@timeless
async def test_an_heir_begins_with_its_own_backend() -> None:
    hub = Backends()
    hub.says("one", [])
    hub.says("two", FAILED)
    clients = [hub.client("json") for _ in range(3)]
    await passes()
    hub.made("one")[0].put(*FAILED)
    await hub.backend.called(2)
    hub.made("one")[1].put(*whole("of one"))
    await ended(*clients)
    assert [code_of(client) for client in clients] == ["backend_error", "ok", "ok"]
    heir = hub.record(clients[1])
    assert (heir["backend"], heir["failures"], heir["stored"]) == ("one", [], True)
    assert outcomes(await answered(hub)) == ["exact"]
    await settled(hub)


@timeless
async def test_a_call_that_was_refused_before_it_was_made_is_made_elsewhere() -> None:
    """Too many wait for the first backend; of a deadline that cannot be met the same holds."""
    hub = Backends(gate=Limits(1, 1, 1))
    hub.says("one", [])
    others = [hub.client("json", "Somebody else's?"), hub.client("json", "And another one's?")]
    await passes()
    said = hub.record(await answered(hub))
    assert (said["backend"], asked(said)) == ("two", [("one", "backend_overloaded")])
    assert said["tokens"]["consumed"] == TOKENS
    for number in range(2):
        await hub.backend.called(number + 1)
        hub.made("one")[number].put(*whole("of one"))
    await ended(*others)
    await settled(hub)


@timeless
async def test_a_large_request_goes_on_too_and_is_found_again() -> None:
    """Its key is worked out in a thread."""
    hub = Backends()
    prompt = "Hello? " * 100_000
    assert outcomes(await answered(hub, prompt=prompt), await answered(hub, prompt=prompt)) == ["miss", "exact"]
    assert hub.counts() == (2, 1, 0)
    await settled(hub)


@timeless
async def test_the_gateway_stops_while_the_key_of_a_large_request_is_worked_out() -> None:
    hub = Backends()
    hub.says("one", [(200, "application/json"), b"{", ReplyBroken("It broke off.")])
    prompt = "Hello? " * 100_000
    client = hub.client("json", prompt, endpoint="rr")
    await hub.backend.called(1)
    while not hub.made("one")[0].closed:
        await passes(0)
    await hub.flights.aclose()
    await ended(client)
    assert code_of(client) == "gateway_stopping"
    assert hub.counts() == (1, 0, 0)
    assert (await settled(hub))["consumed"] == len(json.dumps(request(prompt, "json"))) // 4  # charged once


# Deadlines, and clients that leave


@KINDS
@timeless
async def test_when_the_deadline_has_passed_nobody_else_is_asked(form: str) -> None:
    hub = Backends()
    hub.says("one", [])
    client = hub.client(form, endpoint="soon")
    await passes(6)
    assert (client.status, code_of(client)) == (504, "deadline_exceeded")
    assert hub.counts() == (1, 0, 0)
    await settled(hub)


@KINDS
@timeless
async def test_the_deadline_holds_for_the_fallback_too(form: str) -> None:
    hub = Backends()
    hub.says("one", [])
    hub.says("two", [])
    client = hub.client(form, endpoint="soon")
    await passes(3)
    hub.made("one")[0].put(BackendTimeout("No head.", "first_byte"))
    await passes(3)
    assert (client.status, code_of(client)) == (504, "deadline_exceeded")
    assert hub.made("two")[0].closed
    await settled(hub)


@timeless
async def test_clients_leave_while_the_fallback_is_asked() -> None:
    hub = Backends()
    hub.says("two", [])
    leader, other = hub.client("sse"), hub.client("sse")
    await passes()
    assert hub.counts() == (1, 1, 0)
    leader.leave()
    await passes()
    assert not hub.made("two")[0].closed
    other.leave()
    await passes()
    assert hub.made("two")[0].closed
    await ended(leader, other)
    await settled(hub)


# Flights


@timeless
async def test_everybody_on_the_flight_gets_the_answer_of_the_fallback() -> None:
    hub = Backends()
    hub.says("one", [])
    hub.says("two", [])
    clients = [hub.client(form) for form in ("sse", "json", "sse+usage")]
    await passes()
    hub.made("one")[0].put(*FAILED)
    await hub.backends["two"].called(1)
    clients.append(hub.client("sse"))
    await passes()
    hub.made("two")[0].put(*whole("of two"))
    await ended(*clients)
    assert {code_of(client) for client in clients} == {"ok"}
    assert outcomes(*clients) == ["miss", "joined", "joined", "joined"]
    assert hub.counts() == (1, 1, 0)
    said = [hub.record(client) for client in clients]
    assert [(d["backend"], asked(d)) for d in said] == [("two", [("one", "backend_error")])] * 4
    assert len({d["key"] for d in said}) == 1
    books = await settled(hub)
    assert (books["consumed"], books["served"], books["saved"]) == (TOKENS, 4 * TOKENS, 3 * TOKENS)


@timeless
async def test_it_is_kept_under_the_key_of_the_fallback_alone() -> None:
    hub = Backends()
    visit, ask = hub.visit()
    there = ask.on(visit.snapshot.backends["two"])
    client = await answered(hub)
    assert await hub.cache.get(ask.key) is None
    slot = await hub.cache.get(there.key)
    assert slot is not None
    assert (slot.entry.backend, slot.entry.key) == ("two", there.key)
    said = hub.record(client)
    assert (said["key"], said["stored"]) == (there.key.hex(), True)
    await settled(hub)


@timeless
async def test_what_cannot_be_kept_of_it_says_nothing_of_the_first_backend() -> None:
    hub = Backends()
    cut = [{**chat_answer("of two")["choices"][0], "finish_reason": "length"}]
    hub.says("two", whole("of two", choices=cut))
    client = await answered(hub)
    assert hub.record(client)["not_stored"] == "finish_reason_length"
    hub.says("one", [])
    clients = [hub.client("json"), hub.client("json")]
    await passes()
    hub.made("one")[1].put(*whole("of one"))
    await ended(*clients)
    assert outcomes(*clients) == ["miss", "joined"]
    await settled(hub)


# What a fallback has answered before


@KINDS
@timeless
async def test_while_the_first_backend_is_down_the_second_request_is_a_hit(form: str) -> None:
    hub = Backends()
    first = await answered(hub, form)
    hub.clock.time = START + 60
    second = await answered(hub, form)
    assert outcomes(first, second) == ["miss", "exact"]
    assert second.headers["age"] == "60"
    assert hub.counts() == (2, 1, 0)  # the first backend may be back
    said = hub.record(second)
    assert (said["backend"], asked(said), said["key"]) == ("two", [("one", "backend_error")], hub.record(first)["key"])
    assert [(t["tier"], t["result"], t["why"]) for t in said["tiers"]] == [("exact", "hit", "fallback")]
    assert said["why"] is None
    books = await settled(hub)
    assert (books["consumed"], books["served"], books["saved"]) == (TOKENS, 2 * TOKENS, TOKENS)


@timeless
async def test_a_first_backend_that_is_back_is_asked_and_its_answer_wins() -> None:
    hub = Backends()
    await answered(hub)
    hub.says("one", whole("of one"))
    client = await answered(hub)
    assert (outcomes(client), hub.record(client)["backend"]) == (["miss"], "one")
    assert hub.record(client)["why"]["code"] == "backend"  # the nearest entry is the fallback's
    assert b"one" in (await answered(hub)).content
    assert hub.counts() == (2, 1, 0)
    await settled(hub)


@timeless
async def test_all_who_wait_get_the_hit() -> None:
    hub = Backends()
    await answered(hub)
    hub.says("one", [])
    clients = [hub.client(form) for form in FORMS]
    await passes()
    hub.made("one")[1].put(*FAILED)
    await ended(*clients)
    assert {code_of(client) for client in clients} == {"ok"}
    assert outcomes(*clients) == ["exact"] * 3
    assert hub.counts() == (2, 1, 0)
    await settled(hub)


@pytest.mark.parametrize(
    "headers",
    [{"cache-control": "no-cache"}, {"cache-control": "max-age=10"}, {"x-refrain-tier": "semantic"}],
    ids=["no-cache", "max-age", "another tier"],
)
@timeless
async def test_who_may_not_have_it_is_answered_anew(headers: dict[str, str]) -> None:
    hub = Backends()
    await answered(hub)
    hub.clock.time = START + 60
    client = await answered(hub, headers=headers)
    assert outcomes(client) == ["miss"]
    assert hub.counts() == (2, 2, 0)
    await settled(hub)


@timeless
async def test_one_who_waits_and_wants_a_younger_one_gets_it_for_all() -> None:
    hub = Backends()
    await answered(hub)
    hub.clock.time = START + 60
    hub.says("one", [])
    clients = [hub.client("json"), hub.client("json", headers={"cache-control": "max-age=10"})]
    await passes()
    hub.made("one")[1].put(*FAILED)
    await ended(*clients)
    assert outcomes(*clients) == ["miss", "joined"]
    assert hub.counts() == (2, 2, 0)
    await settled(hub)


@timeless
async def test_an_answer_past_its_life_is_not_reused() -> None:
    hub = Backends()
    await answered(hub, endpoint="old")
    hub.clock.time = START + 61
    assert outcomes(await answered(hub, endpoint="old")) == ["miss"]
    assert hub.counts() == (2, 2, 0)


@timeless
async def test_where_no_cache_may_be_used_the_fallback_is_asked_each_time() -> None:
    hub = Backends()
    for _ in range(2):
        assert outcomes(await answered(hub, endpoint="uncached")) == ["bypass"]
    assert hub.counts() == (2, 2, 0)
    await settled(hub)


# Beside stale answers


@timeless
async def test_a_refresh_is_the_first_backends_business() -> None:
    hub = Backends()
    hub.says("one", whole("of one"))
    await answered(hub, endpoint="soft")
    await passes(1)
    hub.clock.time = START + 61
    hub.says("one", FAILED)
    client = await answered(hub, endpoint="soft")
    await passes(1)
    assert outcomes(client) == ["stale"]
    assert hub.counts() == (2, 0, 0)
    await settled(hub)


@pytest.mark.parametrize("second", ["answers", "fails"])
@timeless
async def test_a_stale_answer_stands_in_only_where_the_chain_has_failed(second: str) -> None:
    hub = Backends()
    hub.says("one", whole("of one"))
    first = await answered(hub, endpoint="old")
    hub.clock.time = START + 61
    hub.says("one", FAILED)
    if second == "fails":
        hub.says("two", FAILED)
    client = await answered(hub, endpoint="old")
    assert hub.counts() == (2, 1, 0)
    said = hub.record(client)
    if second == "answers":
        assert (outcomes(client), said["backend"]) == (["miss"], "two")
    else:
        assert (outcomes(client), said["backend"], said["key"]) == (["stale"], "one", hub.record(first)["key"])
        assert [name for name, _ in asked(said)] == ["one", "two"]
    await settled(hub)
