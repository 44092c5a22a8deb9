"""How flights end: well, because all have left, because the backend fails, because the gateway stops. Whatever comes,
everybody is told, the call is charged once, and nothing is left over."""

from typing import Any

import pytest

from backends.base import BackendStarting, BackendTimeout, ConnectFailed, ReplyBroken
from tests.gateway.flying import DONE, Hub, code_of, crowd, ended, passes, pieces, settled
from tests.gateway.scripted import END, OPEN
from tests.gateway.timeless import timeless
from tests.support.live import FORMS, TOKENS

Json = dict[str, Any]
WHOLE = [OPEN, *pieces(), END]
ERROR_EVENT = b'data: {"error": {"message": "overloaded", "code": "overloaded"}}\n\n'
BEFORE: dict[str, list[Any]] = {
    "refused": [ConnectFailed("No connection.")],
    "starting": [BackendStarting("It is starting.", 3.0)],
    "silent": [BackendTimeout("No head.", "first_byte")],
    "5xx": [(503, "application/json"), b"{}", END],
    "no event": [OPEN, END],
    "cut": [OPEN, ReplyBroken("It broke off.")],
    "half an event": [OPEN, pieces()[0][:50], ReplyBroken("It broke off.")],
    "garbage": [OPEN, b"data: <html>\n\n"],
    "error event": [OPEN, ERROR_EVENT],
    "only the end marker": [OPEN, DONE, END],
    "an error with a good status": [(200, "application/json"), b'{"error": {"message": "x"}}', END],
}
AFTER: dict[str, list[Any]] = {
    "cut": [ReplyBroken("It broke off.")],
    "silent": [BackendTimeout("It stopped.", "between_chunks")],
    "garbage": [b"data: <html>\n\n"],
    "error event": [ERROR_EVENT],
    "end": [END],
    "end marker too early": [DONE, END],
}


def quiet() -> Hub:
    """Its backend does nothing of itself."""
    hub = Hub()
    hub.backend.script = lambda number: []
    return hub


# Before the first event


@pytest.mark.parametrize("how", list(BEFORE))
@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_one_waiter_takes_over_from_a_leader_whose_call_failed(form: str, how: str) -> None:
    hub = quiet()
    hub.backend.script = lambda number: [] if number == 1 else WHOLE
    clients = await crowd(hub, [form, "json", "sse", "sse+usage"])
    hub.calls[0].put(*BEFORE[how])
    await ended(*clients)
    assert len(hub.calls) == 2
    codes = [code_of(client) for client in clients]
    assert codes[0] != "ok"
    assert clients[0].status >= 500
    assert codes[1:] == ["ok"] * 3
    assert [c.headers["x-refrain-cache"] for c in clients] == ["miss", "miss", "joined", "joined"]
    books = await settled(hub)
    assert (books["consumed"], books["served"], books["saved"]) == (TOKENS, 3 * TOKENS, 2 * TOKENS)


@pytest.mark.parametrize("first", list(BEFORE))
@pytest.mark.parametrize("second", ["refused", "5xx", "cut", "429"])
@timeless
async def test_a_second_failure_goes_to_all(first: str, second: str) -> None:
    hub = quiet()
    failures = [BEFORE[first], [(429, "application/json"), b"{}", END] if second == "429" else BEFORE[second]]
    hub.backend.script = lambda number: [] if number == 1 else failures[number - 1]
    clients = await crowd(hub, ["sse", "json", "sse", "sse+usage"])
    hub.calls[0].put(*failures[0])
    await ended(*clients)
    assert len(hub.calls) == 2
    assert {client.status for client in clients[1:]} == {429 if second == "429" else 503 if second == "5xx" else 502}
    assert len({code_of(client) for client in clients[1:]}) == 1
    await settled(hub)


@pytest.mark.parametrize("how", list(BEFORE))
@timeless
async def test_nobody_takes_over_where_nobody_waits(how: str) -> None:
    hub = quiet()
    hub.backend.script = lambda number: BEFORE[how]
    client = hub.client("sse")
    await ended(client)
    assert len(hub.calls) == 1
    assert client.status >= 500
    await settled(hub)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422, 429, 307])
@timeless
async def test_what_another_call_would_not_mend_goes_to_all_at_once(status: int) -> None:
    """The request's own fault, or that of the gateway's credentials."""
    hub = quiet()
    clients = await crowd(hub, ["sse", "json", "sse+usage"])
    hub.calls[0].put((status, "application/json"), b'{"error": {"message": "no", "code": "theirs"}}', END)
    await ended(*clients)
    code = {401: "backend_auth_failed", 403: "backend_auth_failed", 405: "backend_error", 307: "backend_error"}
    expected = (502, code[status]) if status in code else (status, "theirs")
    assert [(client.status, code_of(client)) for client in clients] == [expected] * 3
    assert len(hub.calls) == 1
    await settled(hub)


@pytest.mark.parametrize("leaves", [False, True])
@timeless
async def test_but_not_to_who_has_sent_something_else(leaves: bool) -> None:
    """The backend may have refused a field that makes no difference to the answer, such as `user`."""
    hub = quiet()
    hub.backend.script = lambda number: [] if number == 1 else WHOLE
    asks: list[Json] = [
        {"user": "a"},
        {"user": "a", "stream": True},
        {"user": "b"},
        {"metadata": {"k": "v"}, "user": "a"},
    ]
    clients = []
    for more in asks:
        clients.append(hub.client("json", **more))
        await passes()
    if leaves:
        clients[0].leave()
        await passes()
    hub.calls[0].put((400, "application/json"), b'{"error": {"message": "no", "code": "theirs"}}', END)
    await ended(*clients)
    assert len(hub.calls) == 2
    assert [code_of(client) for client in clients[1:]] == ["theirs", "ok", "ok"]
    assert [c.headers["x-refrain-cache"] for c in clients[2:]] == ["miss", "joined"]
    await settled(hub)


@timeless
async def test_the_oldest_takes_over_also_when_the_leader_has_left() -> None:
    hub = quiet()
    hub.backend.script = lambda number: [] if number == 1 else [OPEN]
    clients = await crowd(hub, ["sse", "sse", "sse"])
    clients[0].leave()
    await passes()
    hub.calls[0].put(*BEFORE["refused"])
    await passes()
    late = hub.client("json")
    await passes()
    hub.calls[1].put(*WHOLE[1:])
    await ended(*clients, late)
    assert [c.headers["x-refrain-cache"] for c in (*clients[1:], late)] == ["miss", "joined", "joined"]
    assert len(hub.calls) == 2
    await settled(hub)


@timeless
async def test_an_heir_that_leaves_leaves_the_flight_to_the_others() -> None:
    hub = quiet()
    hub.backend.script = lambda number: [] if number == 1 else [OPEN]
    clients = await crowd(hub, ["sse", "sse", "json"])
    hub.calls[0].put(*BEFORE["refused"])
    await passes()
    clients[1].leave()
    await passes()
    assert not hub.calls[1].closed
    hub.calls[1].put(*WHOLE[1:])
    await ended(*clients)
    assert code_of(clients[2]) == "ok"
    books = await settled(hub)
    assert (books["consumed"], books["unserved"], books["served"]) == (TOKENS, TOKENS, TOKENS)


@timeless
async def test_an_event_that_only_some_see_is_the_first_event_all_the_same() -> None:
    """The leader did not ask for usage and sees nothing of it; the other has it, so no second call may go on there."""
    hub = quiet()
    leader, other = await crowd(hub, ["sse", "sse+usage"])
    usage = pieces()[-2]
    hub.calls[0].put(OPEN, usage)
    await passes()
    assert other.content.count(b"data: ") == 1
    hub.calls[0].put(ReplyBroken("It broke off."))
    await passes()
    assert len(hub.calls) == 1
    await ended(leader, other)
    assert {code_of(leader), code_of(other)} == {"backend_reply_broken"}
    await settled(hub)


# After the first event


@pytest.mark.parametrize("how", list(AFTER))
@pytest.mark.parametrize("events_before", [1, 3])
@timeless
async def test_a_failure_in_the_middle_goes_to_all(how: str, events_before: int) -> None:
    hub = quiet()
    clients = await crowd(hub, ["sse", "json", "sse+usage"])
    hub.calls[0].put(OPEN, *pieces()[:events_before])
    await passes()
    late = hub.client("sse")
    await passes()
    hub.calls[0].put(*AFTER[how])
    await ended(*clients, late)
    assert len(hub.calls) == 1
    assert [client.status for client in (*clients, late)] == [200, 502 if how != "silent" else 504, 200, 200]
    assert len({code_of(client) for client in (*clients, late)}) == 1
    for client in (clients[0], clients[2], late):
        assert DONE not in client.content
        assert client.content.count(b"data: ") == events_before + 1
    books = await settled(hub)
    assert books["served"] == 0
    assert {d.stored for d in hub.recorder.ring} == {False}


@pytest.mark.parametrize("how", ["cut", "silent", "garbage", "error event", "leaves"])
@timeless
async def test_what_a_broken_call_is_known_to_have_taken_is_booked(how: str) -> None:
    """The usage had come when it broke off, or when its client had enough: the backend has counted those tokens."""
    hub = quiet()
    (client,) = await crowd(hub, ["sse"])
    hub.calls[0].put(OPEN, *pieces()[:-1])
    await passes()
    if how == "leaves":
        client.leave()
    else:
        hub.calls[0].put(*AFTER[how])
    await ended(client)
    books = await settled(hub)
    assert (books["consumed"], books["unserved"], books["served"]) == (TOKENS, TOKENS, 0)
    assert {d.stored for d in hub.recorder.ring} == {False}


@timeless
async def test_a_defect_is_an_error_to_all_that_says_nothing() -> None:
    hub = quiet()
    clients = await crowd(hub, ["sse", "json"])
    hub.calls[0].put(RuntimeError("sk-upstream-secret"))
    await ended(*clients)
    assert [(client.status, code_of(client)) for client in clients] == [(500, "internal_error")] * 2
    assert not any(b"secret" in client.content for client in clients)
    await settled(hub)
