"""Limits of a principal: requests, tokens and USD in a period.

- A window begins with the first request, or the first charge, after the last one has ended, and is over at an exact
  instant, so that `Retry-After` can be exact too. Two windows may meet, so a period of that length can see up to twice
  the count.
- Requests are counted before anything else is done for them; tokens and USD when an upstream call has ended, once, to
  whoever leads it. So a hit counts as a request only, and what is in the air when a limit is reached is still answered.
- A request that is refused is not counted.
- Usage belongs to the principal (tenant and user), not to the key: two keys that are limited over the same period have
  one allowance, and whoever a delegating key speaks for uses that key's. What a key does not limit it does not count.

The counting is the `limits` library's; only its store of windows is ours. The library's own keeps time by itself,
starts a thread for nearly every count, and forgets everything at a restart.
"""

from collections.abc import Callable, Iterable
from math import ceil, inf

from limits import RateLimitItemPerSecond
from limits.storage import Storage
from limits.strategies import FixedWindowRateLimiter

from cache.framing import digest
from gateway.config import Limits, Rate
from gateway.errors import ApiError
from gateway.heads import Header
from gateway.principal import Principal

MICRO = 1_000_000
"""USD are counted in millionths."""
LONG_WAIT = 60.0
"""Seconds beyond which SDKs do not wait for `Retry-After`, but try again at once: they are told not to."""

WORDS = {"requests": "requests", "tokens": "tokens", "usd": "USD"}


class Windows(Storage):
    """Counts by name, each until its window ends; `clock` is wall-clock seconds. When the clock is set back, no window
    becomes longer than its period."""

    STORAGE_SCHEME = None

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[str, tuple[int, float, float]] = {}  # count, end, period

    def rows(self) -> list[tuple[str, int, float]]:
        """(name, count, end) of the windows that have not ended; the others are forgotten."""
        now = self._clock()
        self._windows = {name: window for name, window in self._windows.items() if window[1] > now}
        return [(name, count, end) for name, (count, end, _) in self._windows.items()]

    def restore(self, rows: Iterable[tuple[str, int, float]]) -> None:
        """Go on where an earlier process has ended."""
        self._windows.update((name, (count, end, inf)) for name, count, end in rows)

    def limit(self, key: str, period: float) -> None:
        """Whose window may be how long at most."""
        if key in self._windows:
            count, end, _ = self._windows[key]
            self._windows[key] = (count, end, period)

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        now = self._clock()
        count, end = self._window(key, now)
        if end <= now:
            count, end = 0, now + expiry
        self._windows[key] = (count + amount, end, expiry)
        return count + amount

    def get(self, key: str) -> int:
        now = self._clock()
        count, end = self._window(key, now)
        return count if end > now else 0

    def get_expiry(self, key: str) -> float:
        now = self._clock()
        return max(now, self._window(key, now)[1])

    def _window(self, key: str, now: float) -> tuple[int, float]:
        count, end, period = self._windows.get(key, (0, 0.0, inf))
        if end > now + period:
            end = now + period
            self._windows[key] = (count, end, period)
        return count, end

    def clear(self, key: str) -> None:
        self._windows.pop(key, None)

    def reset(self) -> int:
        count = len(self._windows)
        self._windows.clear()
        return count

    def check(self) -> bool:
        return True

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError


class _Limit(RateLimitItemPerSecond):
    """One limit of one principal. What was used stays used when the limit's amount is changed."""

    __slots__ = ("key", "kind")

    def __init__(self, kind: str, principal: Principal, rate: Rate) -> None:
        amount = ceil(rate.count * MICRO) if kind == "usd" else int(rate.count)
        super().__init__(amount, rate.seconds)
        self.kind = kind
        names = (kind, principal.tenant, principal.user, str(rate.seconds))
        # A digest, since a name may hold whatever separates names.
        self.key = digest("refrain.limit.1", [name.encode() for name in names]).hex()

    def key_for(self, *identifiers: bytes | str | int | float) -> str:
        return self.key

    def shown(self, count: float) -> str:
        return f"{count / MICRO:.6f}".rstrip("0").rstrip(".") if self.kind == "usd" else str(int(count))


class Meter:
    """The limits of one principal. Belongs to the event loop's thread, so that no count comes in between."""

    def __init__(self, limiter: FixedWindowRateLimiter, limits: list[_Limit], clock: Callable[[], float]) -> None:
        self._limiter = limiter
        self._limits = limits
        self._clock = clock

    def take(self, spare: float = 0.0) -> bool:
        """Count one request, if it is within the limits and leaves this share of each to others."""
        limiter = self._limiter
        for limit in self._limits:
            if not limiter.test(limit, cost=1 + int(limit.amount * spare)):
                return False
        for limit in self._limits:
            if limit.kind == "requests":
                limiter.hit(limit)
        return True

    def wait(self, spare: float = 0.0) -> float:
        """Seconds after which `take` may be tried again that has just failed."""
        limiter = self._limiter
        full = [limit for limit in self._limits if not limiter.test(limit, cost=1 + int(limit.amount * spare))]
        ends = [limiter.get_window_stats(limit)[0] for limit in full]
        return max(0.001, max(ends, default=0.0) - self._clock())

    def charge(self, tokens: int, usd: float) -> None:
        """What an upstream call has taken."""
        for limit in self._limits:
            cost = {"tokens": tokens, "usd": ceil(usd * MICRO)}.get(limit.kind, 0)
            if cost:
                self._limiter.hit(limit, cost=cost)

    def headers(self) -> list[Header]:
        """OpenAI's rate-limit headers, for each limit that there is."""
        found: list[Header] = []
        now = self._clock()
        for limit in self._limits:
            reset, remaining = self._limiter.get_window_stats(limit)
            values = (limit.shown(limit.amount), limit.shown(remaining), _duration(max(0.0, reset - now)))
            for name, value in zip(("limit", "remaining", "reset"), values, strict=True):
                found.append((f"x-ratelimit-{name}-{limit.kind}".encode(), value.encode()))
        return found

    def shown(self) -> dict[str, str]:
        """The limits, in words."""
        return {x.kind: f"{x.shown(x.amount)}/{_duration(x.get_expiry())}" for x in self._limits}

    def refusal(self) -> ApiError:
        """Of all limits that are used up, the one that lasts the longest decides."""
        used_up = [limit for limit in self._limits if not self._limiter.test(limit)]
        limit = max(used_up or self._limits, key=lambda limit: self._limiter.get_window_stats(limit)[0])
        wait = max(0.001, self._limiter.get_window_stats(limit)[0] - self._clock())
        headers = {"retry-after": str(ceil(wait)), "retry-after-ms": str(ceil(wait * 1000))}
        if wait > LONG_WAIT:
            headers["x-should-retry"] = "false"
        money = limit.kind == "usd"
        text = (
            f"The limit of {limit.shown(limit.amount)} {WORDS[limit.kind]} in {_duration(limit.get_expiry())} is used "
            f"up. Try again in {_duration(wait)}."
        )
        code = "insufficient_quota" if money else "rate_limit_exceeded"
        return ApiError(429, text, code=code, type=code if money else limit.kind, headers=headers)


class Meters:
    """Makes the meters of one gateway; what they have counted lies in `windows`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.windows = Windows(clock)
        self._limiter = FixedWindowRateLimiter(self.windows)
        self._clock = clock

    def meter(self, principal: Principal, limits: Limits) -> Meter | None:
        """None where nothing is limited."""
        rates = (("requests", limits.requests), ("tokens", limits.tokens), ("usd", limits.usd))
        found = [_Limit(kind, principal, rate) for kind, rate in rates if rate is not None]
        for limit in found:
            self.windows.limit(limit.key, limit.get_expiry())
        return Meter(self._limiter, found, self._clock) if found else None


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 6m0s, 8.64s, 17ms."""
    ms = round(seconds * 1000)
    if 0 < ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.2f}".rstrip("0").rstrip(".") + "s"
    whole = ceil(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return (f"{hours}h" if hours else "") + f"{minutes}m{rest}s"
