"""Limits: windows, what is counted in them, and what a refusal says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Limits
from gateway.limits import Meter, Meters
from gateway.principal import Principal
from tests.contract.stores import Clock

ALICE = Principal("acme", "alice")


def meter(meters: Meters, principal: Principal = ALICE, **limits: str) -> Meter:
    made = meters.meter(principal, Limits.model_validate(limits))
    assert made is not None
    return made


def heads(m: Meter) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in m.headers()}


def test_without_limits_there_is_no_meter() -> None:
    assert Meters(Clock()).meter(ALICE, Limits()) is None


def test_so_many_requests_until_the_window_ends() -> None:
    clock = Clock()
    m = meter(Meters(clock), requests="3/min")
    assert heads(m)["x-ratelimit-remaining-requests"] == "3"
    assert [m.take() for _ in range(5)] == [True, True, True, False, False]
    assert heads(m) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    clock.time += 59.999
    assert not m.take()
    assert m.refusal().headers["retry-after"] == "1"
    clock.time += 0.001
    assert [m.take() for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("limits", "elapsed", "after", "ms", "retry"),
    [
        ({"requests": "1/s"}, 0.25, "1", "750", None),
        ({"requests": "1/min"}, 0.5, "60", "59500", None),
        ({"requests": "1/min"}, 60 - 1 / 1024, "1", "1", None),
        ({"requests": "1/hour"}, 0, "3600", "3600000", "false"),
        ({"requests": "1/day"}, 86_400 - 8, "8", "8000", None),
    ],
)
def test_retry_after_is_when_the_next_one_is_let_in(
    limits: dict[str, str], elapsed: float, after: str, ms: str, retry: str | None
) -> None:
    clock = Clock()
    m = meter(Meters(clock), ALICE, **limits)
    assert m.take()
    clock.time += elapsed
    assert not m.take()
    error = m.refusal()
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert error.headers["retry-after"] == after
    assert error.headers["retry-after-ms"] == ms
    assert error.headers.get("x-should-retry") == retry
    clock.time += int(ms) / 1000
    assert m.take()


def test_tokens_and_money_are_counted_when_they_are_known() -> None:
    clock = Clock()
    m = meter(Meters(clock), tokens="100/min", usd="0.5/day")
    assert m.take()
    m.charge(99, 0.2)
    assert m.take()  # one is left
    m.charge(500, 0.1)
    assert not m.take()
    assert heads(m)["x-ratelimit-remaining-tokens"] == "0"
    assert heads(m)["x-ratelimit-remaining-usd"] == "0.2"
    assert m.refusal().type == "tokens"
    clock.time += 60
    assert m.take()
    m.charge(1, 0.2)
    assert not m.take()
    error = m.refusal()
    assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota")
    assert error.headers["retry-after"] == str(86_400 - 60)
    assert "0.5 USD" in error.message


def test_the_limit_that_lasts_longest_is_the_one_that_is_told() -> None:
    m = meter(Meters(Clock()), requests="1/s", usd="1/hour")
    assert m.take()
    m.charge(0, 1.5)
    assert m.refusal().headers["retry-after"] == "3600"


def test_a_refused_request_is_not_counted() -> None:
    clock = Clock()
    m = meter(Meters(clock), requests="10/min", tokens="5/s")
    m.charge(5, 0)
    assert not any(m.take() for _ in range(50))
    assert heads(m)["x-ratelimit-remaining-requests"] == "10"


def test_usage_is_the_principals() -> None:
    meters = Meters(Clock())
    first, second = meter(meters, requests="2/min"), meter(meters, requests="3/min")
    assert [first.take(), second.take(), second.take(), second.take()] == [True, True, True, False]
    assert not first.take()
    for other in (Principal("acme", "bob"), Principal("globex", "alice"), Principal("acm", "ealice")):
        assert meter(meters, other, requests="1/min").take()
    # What separates the two names is nothing that a name can hold.
    assert meter(meters, Principal("a/b", "c"), requests="1/min").take()
    assert meter(meters, Principal("a", "b/c"), requests="1/min").take()


def test_usage_outlives_the_process() -> None:
    clock = Clock()
    before = Meters(clock)
    short, long = meter(before, requests="1/s"), meter(before, Principal("acme", "bob"), usd="1/day")
    assert short.take()
    long.charge(0, 1)
    clock.time += 2
    rows = before.windows.rows()
    assert len(rows) == 1, "a window that has ended is nothing to keep"
    after = Meters(clock)
    after.windows.restore(rows)
    assert not meter(after, Principal("acme", "bob"), usd="1/day").take()
    assert meter(after, requests="1/s").take()


def test_a_clock_that_is_set_back_forgives_nothing_and_locks_nobody_out() -> None:
    clock = Clock()
    m = meter(Meters(clock), requests="2/min")
    assert [m.take(), m.take()] == [True, True]
    clock.time -= 86_400
    assert not m.take()
    assert float(m.refusal().headers["retry-after"]) <= 60
    clock.time += 60
    assert m.take()


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 40)), max_size=60),
    st.integers(1, 5),
    st.integers(1, 100),
)
def test_no_window_sees_more_than_its_count(steps: list[tuple[float, int]], requests: int, tokens: int) -> None:
    """Requests never; tokens by no more than the calls that were let in while there were some left."""
    clock = Clock()
    m = meter(Meters(clock), requests=f"{requests}/s", tokens=f"{tokens}/s")
    let_in: list[float] = []
    for wait, cost in steps:
        clock.time += wait
        used_up = heads(m)
        if m.take():
            assert used_up["x-ratelimit-remaining-requests"] != "0"
            assert used_up["x-ratelimit-remaining-tokens"] != "0"
            let_in.append(clock.time)
            m.charge(cost, 0)
        else:
            seconds = int(m.refusal().headers["retry-after-ms"]) / 1000
            assert 0 < seconds <= 1
    # Two windows may meet, so any second sees at most two of them.
    for at in let_in:
        assert sum(at <= other < at + 1 for other in let_in) <= 2 * requests
