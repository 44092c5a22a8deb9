"""Is this entry fresh? A pure decision: entry, policy, what the request asks, and the time.

The life of an entry ends at the earliest of three instants: the expiry it was stored with, its making plus today's
TTL, and the end of the day or week in which it was made, where answers are good for no longer. It is fresh strictly
before that instant, and a hit does not move it. After it the answer is stale, and may be used only as RFC 9111 (4.2.4)
and RFC 5861 have it: as far as the request accepts it (`max-stale`), while another is being fetched
(`stale-while-revalidate`), or in place of an error (`stale-if-error`); each up to an exact instant.

Where a stale answer may be served while another is fetched, that fetch may begin a little before the end: entries
that were made together would otherwise all be fetched anew together. Only this soft end is spread out.
"""

from dataclasses import dataclass
from datetime import UTC, tzinfo
from math import inf

from cache.calendar import Period, period_end
from cache.entry import Entry

SPREAD = 0.1
"""The soft end lies at most this share of the life before its end."""
AHEAD = 60.0
"""Seconds by which an entry may seem to be made in the future: the clocks of several machines differ a little. One that
is further ahead was made before a clock was set back, and would live too long by as much."""


@dataclass(frozen=True, slots=True)
class Life:
    """An endpoint's policy, in seconds: how long answers are fresh, and how long after that they may be used in place
    of an error, and while another is fetched. With `period` they are fresh to its end in `zone` at most."""

    ttl: float
    if_error: float = 0.0
    revalidate: float = 0.0
    period: Period | None = None
    zone: tzinfo = UTC

    @property
    def keep(self) -> float:
        """How long after its life an entry is of any use."""
        return max(self.if_error, self.revalidate)

    def end(self, made: float) -> float:
        """When what was made at that instant stops being fresh."""
        return min(made + self.ttl, inf if self.period is None else period_end(made, self.period, self.zone))

    def turned(self, made: float, now: float) -> bool:
        """Has the day or week in which it was made ended?"""
        return self.period is not None and period_end(made, self.period, self.zone) <= now


@dataclass(frozen=True, slots=True)
class Verdict:
    """`usable`: serve it; `stale`: it is past its life; `ttl`: seconds left, negative when stale; `why` if refused;
    `refresh`: fetch another beside it; `on_error`: it may stand in for a backend's error."""

    usable: bool
    stale: bool
    ttl: float
    why: str | None = None
    refresh: bool = False
    on_error: bool = False


def expires_at(entry: Entry, life: Life) -> float:
    """The instant at which the entry stops being fresh under today's policy."""
    return min(entry.expires, life.end(entry.created))


def refresh_at(entry: Entry, life: Life) -> float:
    """The soft end: from this instant on a hit may have another answer fetched. Never after `expires_at`; the same
    for one key every time."""
    end = expires_at(entry, life)
    if life.revalidate <= 0:
        return end
    # Keys are digests, so their first bytes are as good as random.
    share = int.from_bytes(entry.key[:4]) / 2**32
    return end - (end - entry.created) * SPREAD * share


def judge(
    entry: Entry, life: Life, now: float, *, max_age: float | None = None, max_stale: float | None = None
) -> Verdict:
    left = expires_at(entry, life) - now
    if entry.created > now + AHEAD:
        return Verdict(False, False, left, "made_in_future")
    if max_age is not None and now - entry.created > max_age:
        return Verdict(False, left <= 0, left, "older_than_asked")
    if left > 0:
        return Verdict(True, False, left, refresh=now >= refresh_at(entry, life))
    # What the request accepts counts where it says so; else the endpoint's word does.
    accepted = life.revalidate if max_stale is None else min(max_stale, life.keep)
    on_error = -left < life.if_error
    if -left < accepted:
        return Verdict(True, True, left, refresh=-left < life.revalidate, on_error=on_error)
    return Verdict(False, True, left, "expired", on_error=on_error)
