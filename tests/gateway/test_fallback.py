"""The chain itself: who is asked next, what is told when all have failed, and where the lost time goes."""

from typing import Any

import pytest

from gateway.decisions import Decision
from gateway.errors import ApiError
from gateway.fallback import TOO_LARGE, Chain, may_go_elsewhere
from gateway.latency.phases import give_up, spans
from tests.gateway.fallbacks import Backends, visit_of


def error(status: int, code: str = "x", **headers: str) -> ApiError:
    return ApiError(status, f"It was {code}.", code=code, headers={n.replace("_", "-"): v for n, v in headers.items()})


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_failure_of_the_backend_may_go_elsewhere(status: int) -> None:
    assert may_go_elsewhere(error(status))


@pytest.mark.parametrize("status", [400, 404, 409, 413, 415, 422])
def test_a_fault_of_the_request_may_not(status: int) -> None:
    assert not may_go_elsewhere(error(status))


def test_nor_may_an_answer_that_is_too_large() -> None:
    assert not may_go_elsewhere(error(502, TOO_LARGE))


def test_each_is_asked_once_in_the_order_of_the_configuration() -> None:
    chain = Chain(["two", "three"])
    assert [chain.after(name, error(500)) for name in ("one", "two", "three")] == ["two", "three", None]


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ({"one": error(502, "a"), "two": error(500, "b")}, ("one", "a")),
        ({"one": error(502, "a"), "two": error(404, "b")}, ("one", "a")),
        ({"one": error(502, "a"), "two": error(429, "b", retry_after="7"), "three": error(500)}, ("two", "b")),
        ({"one": error(429, "a", retry_after="9"), "two": error(503, "b", retry_after="1")}, ("one", "a")),
    ],
    ids=["its own", "not what another one finds wrong", "who says when to come back", "its own if it says so"],
)
def test_what_the_client_hears(failures: dict[str, ApiError], told: tuple[str, str]) -> None:
    chain, d = Chain(["two", "three"]), Decision("req_1", 0.0, "default", "chat")
    for name, failed in failures.items():
        chain.after(name, failed)
    assert (chain.told.backend, chain.told.error.code) == told
    assert chain.told.error not in failures.values()  # a fresh one: those hold the frames that raised them
    chain.note(d, chain.told.backend)
    assert d.backend == told[0]
    assert d.as_dict()["failures"] == [{"backend": name, "error": failed.code} for name, failed in failures.items()]


async def test_the_backend_of_the_model_is_not_asked_again() -> None:
    """Its endpoint names no backend, so only the request tells that it is one of the chain."""
    _, ask = visit_of(Backends(), endpoint="routed")
    chain = Chain.of(ask)
    assert chain is not None
    assert [chain.after("one", error(500)) for _ in range(2)] == ["three", None]


async def test_without_a_fallback_there_is_no_chain() -> None:
    _, ask = visit_of(Backends(), endpoint="alone")
    assert Chain.of(ask) is None


async def test_a_request_has_a_key_of_its_own_on_each_backend() -> None:
    hub = Backends()
    visit, ask = visit_of(hub)
    there = ask.on(visit.snapshot.backends["two"])
    assert there.key != ask.key
    assert there.backend.name == "two"
    assert there.on(ask.backend) == ask


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"exact": 1.0, "upstream": 30.0}, {"exact": 1.0, "fallback": 30.0}),
        ({"queue": 4.0, "first_byte": 5.0, "upstream_queue": 1.0, "upstream": 30.0}, {"fallback": 34.0}),
        ({"fallback": 30.0, "upstream": 3.0}, {"fallback": 33.0}),
        ({"search": 2.0, "retrieval": 3.0}, {"search": 2.0, "retrieval": 3.0, "fallback": 0.0}),
    ],
    ids=["a call", "with its parts", "a second one", "of what is no call nothing"],
)
def test_time_that_was_lost_is_a_phase_of_its_own(before: dict[str, float], after: dict[str, float]) -> None:
    give_up(before)
    assert before == after


def test_the_call_that_is_made_instead_comes_after_it() -> None:
    phases: dict[str, Any] = {"exact": 1.0, "upstream": 30.0}
    give_up(phases)
    phases |= {"first_byte": 5.0, "upstream": 9.0}
    shown = [(span["name"], span["start"], span["ms"]) for span in spans(phases, 40.0)]
    assert shown == [("exact", 0, 1), ("fallback", 1, 30), ("upstream", 31, 9), ("first_byte", 31, 5), ("other", 40, 0)]
