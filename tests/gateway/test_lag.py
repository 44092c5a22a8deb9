"""The event loop's lag, measured on a real loop that is really held up."""

import asyncio
import time

from gateway.metrics.lag import EVERY, RECENT, Lag


async def measured(lag: Lag, times: int) -> None:
    """Wait until so many measurements have been made."""
    until = time.monotonic() + 20
    while sum(lag.seconds.counts) < times:
        assert time.monotonic() < until
        await asyncio.sleep(EVERY / 4)


async def test_a_loop_that_is_held_up_is_late_by_as_much() -> None:
    lag = Lag()
    assert lag.ms == 0.0
    lag.start()
    try:
        await measured(lag, 1)
        before = lag.seconds.total
        time.sleep(EVERY + 0.4)  # noqa: ASYNC251 (that is what it is to find)
        await measured(lag, 2)
    finally:
        lag.stop()
    assert 400 <= lag.ms <= 10_000  # due within EVERY of the block's begin, so at least the rest of the block late
    assert lag.seconds.total - before >= 0.4


async def test_what_is_long_ago_is_forgotten() -> None:
    lag = Lag()
    lag.start()
    try:
        time.sleep(EVERY + 0.4)  # noqa: ASYNC251
        await measured(lag, 1)
        worst = lag.ms
        await measured(lag, 1 + RECENT)
    finally:
        lag.stop()
    assert worst >= 400
    assert lag.ms < worst


async def test_it_stops() -> None:
    lag = Lag()
    lag.stop()
    lag.start()
    await measured(lag, 1)
    lag.stop()
    count = sum(lag.seconds.counts)
    await asyncio.sleep(3 * EVERY)
    assert sum(lag.seconds.counts) == count
