"""Requests that wait for their turn, and those whose time runs out: what their clients get, and what is charged."""

import json
from typing import Any

import pytest

from gateway.config.load import parse_config
from gateway.fleet import Managed
from gateway.gate import Gate, Limits
from gateway.snapshot import Snapshot
from tests.gateway.flying import ALICE, BOB, Client, Hub, code_of, ended, passes, pieces, settled
from tests.gateway.scripted import END, OPEN
from tests.gateway.timeless import timeless
from tests.support.live import FORMS, TOKENS

ANSWER = [*pieces(), END]
"""What follows the head, which a scripted call has from the beginning."""
KINDS = pytest.mark.parametrize("form", list(FORMS))
CONFIG = parse_config(
    f"""
auth: {{keys: [{{key: {ALICE}, tenant: acme, user: alice}}, {{key: {BOB}, tenant: acme, user: bob}}]}}
backends: {{fake: {{kind: remote, base_url: "http://127.0.0.1:9/v1"}}}}
models: {{"*": fake}}
endpoints:
  default: {{mode: stream, share: tenant}}
  lasting: {{mode: stream, share: tenant, finish: true}}
  soon: {{mode: stream, share: tenant, deadline: 5s}}
  nightly: {{mode: stream, share: tenant, priority: batch}}
  stale: {{mode: stream, share: tenant, cache: {{exact: {{ttl: 60s, stale_if_error: 1h}}}}}}
prices: {{test-model: {{input: 1.0, output: 2.0}}}}
""",
    {},
)


class Gated(Hub):
    """With a gate in front of its backend."""

    def __init__(self, running: int | None = 1, *, waiting: int = 8) -> None:
        super().__init__(config=CONFIG)
        self.gate = Gate("fake", Limits(running, 1, waiting))
        self.managed = Managed(self.backend, self.gate)

    def snapshot(self) -> Snapshot:
        auth = self.identity.authenticator(self.config.auth)
        return Snapshot.of(self.config, self.generation, {"fake": self.managed}, auth)


def within(seconds: float) -> dict[str, Any]:
    """What an official client says that waits for so long."""
    return {"headers": {"x-stainless-read-timeout": f"{seconds:g}"}}


def record(hub: Hub, client: Client) -> dict[str, Any]:
    found = hub.recorder.ring.find(client.headers["x-request-id"])
    assert found is not None
    return found.as_dict()


async def occupied(hub: Gated) -> Client:
    """Somebody else's call has the only place."""
    client = hub.client("json", "Somebody else's?")
    await passes()
    assert hub.gate.running["interactive"] == 1
    return client


# Waiting


@KINDS
@timeless
async def test_a_call_waits_for_its_turn_and_the_wait_is_a_phase(form: str) -> None:
    hub = Gated()
    first = await occupied(hub)
    second = hub.client(form)
    await passes()
    assert len(hub.calls) == 1
    hub.calls[0].put(*ANSWER)
    await ended(first)
    await hub.backend.called(2)
    hub.calls[1].put(*ANSWER)
    await ended(second)
    assert code_of(first) == code_of(second) == "ok"
    assert "queue" not in record(hub, first)["phases"]
    phases = record(hub, second)["phases"]
    assert phases["queue"] > 0
    assert sum(phases[name] for name in ("queue", "upstream")) <= record(hub, second)["ms"]
    assert (await settled(hub))["consumed"] == 2 * TOKENS


@timeless
async def test_a_place_is_kept_until_the_answer_is_over() -> None:
    hub = Gated()
    first, second = hub.client("sse", "One?"), hub.client("sse", "Two?")
    await passes()
    hub.calls[0].put(*ANSWER[:-1])
    await passes()
    assert b"two" in first.content
    assert len(hub.calls) == 1
    hub.calls[0].put(END)
    await ended(first)
    await hub.backend.called(2)
    hub.calls[1].put(ConnectionError("what nobody has thought of"))
    await ended(second)
    assert code_of(second) == "internal_error"
    await settled(hub)
    assert hub.gate.running["interactive"] == 0


@KINDS
@timeless
async def test_a_client_that_leaves_while_it_waits_is_charged_nothing(form: str) -> None:
    hub = Gated()
    first = await occupied(hub)
    second = hub.client(form)
    await passes()
    assert hub.gate.waiting["interactive"] == 1
    second.leave()
    await passes()
    assert hub.gate.waiting["interactive"] == 0
    hub.calls[0].put(*ANSWER)
    await ended(first, second)
    assert len(hub.calls) == 1
    assert (await settled(hub))["consumed"] == TOKENS


@timeless
async def test_an_answer_that_is_to_be_finished_keeps_its_place_in_the_queue() -> None:
    hub = Gated()
    first = await occupied(hub)
    second = hub.client("sse", endpoint="lasting")
    await passes()
    second.leave()
    await passes()
    assert hub.gate.waiting["interactive"] == 1
    hub.calls[0].put(*ANSWER)
    await hub.backend.called(2)
    hub.calls[1].put(*ANSWER)
    await ended(first, second)
    assert (await settled(hub))["consumed"] == 2 * TOKENS


@KINDS
@timeless
async def test_beyond_the_queue_everybody_who_waits_for_that_call_is_told_when_to_come_back(form: str) -> None:
    hub = Gated(waiting=1)
    first, second = await occupied(hub), hub.client("json", "A?")
    await passes()
    refused = [hub.client(form, "B?"), hub.client(form, "B?")]
    await ended(*refused)
    for client in refused:
        assert (client.status, code_of(client)) == (429, "backend_overloaded")
        assert (client.headers["retry-after"], client.headers["retry-after-ms"]) == ("1", "1000")
        assert json.loads(client.content)["error"]["type"] == "rate_limit_exceeded"
    hub.calls[0].put(*ANSWER)
    await hub.backend.called(2)
    hub.calls[1].put(*ANSWER)
    await ended(first, second)
    assert (await settled(hub))["consumed"] == 2 * TOKENS


@timeless
async def test_users_take_turns() -> None:
    hub = Gated()
    clients = [await occupied(hub)]
    for number in range(3):
        clients.append(hub.client("json", f"Alice {number}?"))
        await passes()
    clients.append(hub.client("json", "Bob?", key=BOB))
    await passes()
    for number in range(5):
        await hub.backend.called(number + 1)
        hub.calls[number].put(*ANSWER)
    await ended(*clients)
    asked = [json.loads(made.call.body)["messages"][0]["content"] for made in hub.calls[1:]]
    assert asked == ["Alice 0?", "Bob?", "Alice 1?", "Alice 2?"]


# Classes


@timeless
async def test_an_interactive_request_goes_before_those_of_a_batch_endpoint() -> None:
    hub = Gated()
    clients = [await occupied(hub)]
    for prompt, endpoint in (("Batch?", "nightly"), ("Chat?", "default")):
        clients.append(hub.client("json", prompt, endpoint=endpoint))
        await passes()
    for number in range(3):
        await hub.backend.called(number + 1)
        hub.calls[number].put(*ANSWER)
    await ended(*clients)
    made = [(json.loads(call.call.body)["messages"][0]["content"], call.call.priority) for call in hub.calls[1:]]
    assert made == [("Chat?", "interactive"), ("Batch?", "batch")]


@pytest.mark.parametrize("endpoint", ["default", "nightly"])
@timeless
async def test_what_the_batch_lane_asks_for_is_of_the_batch_class_and_joined_by_its_own_only(endpoint: str) -> None:
    hub = Gated(running=None)
    listeners = []
    for batch in (True, True, False):
        visit, ask = hub.visit(endpoint=endpoint)
        visit.batch = batch
        listeners.append(hub.flights.board(visit, ask))
        await passes()
    flights = [listener.flight for listener in listeners]
    assert flights[0] is flights[1]
    assert (flights[0] is flights[2]) == (endpoint == "nightly")
    assert hub.calls[0].call.priority == "batch"
    await hub.flights.aclose()


# Deadlines


@pytest.mark.parametrize("said", [[], [OPEN]], ids=["nothing", "a head"])
@KINDS
@timeless
async def test_a_call_that_does_not_answer_in_time_is_given_up(form: str, said: list[Any]) -> None:
    hub = Gated()
    hub.backend.script = lambda number: said
    client = hub.client(form, endpoint="soon")
    await passes(4.5)
    assert not client.complete
    await passes(1)
    assert (client.status, code_of(client)) == (504, "deadline_exceeded")
    assert client.headers["x-should-retry"] == "false"
    assert hub.calls[0].closed
    assert hub.gate.running["interactive"] == 0
    assert (await settled(hub))["consumed"] > 0  # the backend has read the prompt


@KINDS
@timeless
async def test_a_deadline_that_passes_in_the_queue_costs_nothing_and_may_be_tried_again(form: str) -> None:
    hub = Gated()
    first = await occupied(hub)
    second = hub.client(form, **within(5))
    await passes(6)
    assert (second.status, code_of(second)) == (504, "deadline_exceeded")
    assert "x-should-retry" not in second.headers
    assert hub.gate.waiting["interactive"] == 0
    hub.calls[0].put(*ANSWER)
    await ended(first)
    assert (await settled(hub))["consumed"] == TOKENS


@pytest.mark.parametrize("early", ["the leader", "who joined"])
@KINDS
@timeless
async def test_each_who_waits_for_a_call_has_its_own_deadline(form: str, early: str) -> None:
    hub = Gated()
    leader = hub.client(form, **within(5 if early == "the leader" else 50))
    await passes()
    joiner = hub.client(form, **within(50 if early == "the leader" else 5))
    await passes(6)
    late, patient = (leader, joiner) if early == "the leader" else (joiner, leader)
    assert (late.status, code_of(late)) == (504, "deadline_exceeded")
    assert len(hub.calls) == 1
    assert not hub.calls[0].closed
    hub.calls[0].put(*ANSWER)
    await ended(patient)
    assert code_of(patient) == "ok"
    assert (await settled(hub))["consumed"] == TOKENS


@timeless
async def test_an_answer_that_has_begun_goes_on() -> None:
    hub = Gated()
    client = hub.client("sse", endpoint="soon")
    await passes()
    hub.calls[0].put(*ANSWER[:3])
    await passes(10)
    hub.calls[0].put(*ANSWER[3:])
    await ended(client)
    assert code_of(client) == "ok"


@timeless
async def test_a_whole_answer_begins_when_it_is_whole() -> None:
    hub = Gated()
    client = hub.client("json", endpoint="soon")
    await passes()
    hub.calls[0].put(*ANSWER[:3])
    await passes(6)
    assert (client.status, code_of(client)) == (504, "deadline_exceeded")
    assert hub.calls[0].closed


@timeless
async def test_an_answer_that_is_to_be_finished_is_there_for_the_next_try() -> None:
    hub = Gated()
    client = hub.client("json", endpoint="lasting", **within(5))
    await passes(6)
    assert code_of(client) == "deadline_exceeded"
    hub.calls[0].put(*ANSWER)
    await passes()
    assert hub.flights.count == 0
    again = hub.client("json", endpoint="lasting", **within(5))
    await ended(again)
    assert (again.headers["x-refrain-cache"], code_of(again)) == ("exact", "ok")


@timeless
async def test_a_hit_never_looks_at_deadlines() -> None:
    hub = Gated()
    hub.backend.script = lambda number: [OPEN, *ANSWER]
    await ended(hub.client("json"))
    hub.backend.script = lambda number: []
    blocker = await occupied(hub)
    hit = hub.client("json", **within(0.000001))
    await ended(hit)
    assert (hit.headers["x-refrain-cache"], code_of(hit)) == ("exact", "ok")
    blocker.leave()
    await passes()


@timeless
async def test_a_stale_answer_stands_in_for_one_that_is_late() -> None:
    hub = Gated()
    hub.backend.script = lambda number: [OPEN, *ANSWER] if number == 1 else []
    await ended(hub.client("json", endpoint="stale"))
    hub.clock.time += 120
    late = hub.client("json", endpoint="stale", **within(5))
    await passes(6)
    assert (late.headers["x-refrain-cache"], code_of(late)) == ("stale", "ok")
