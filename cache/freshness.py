"""Is this entry fresh? A pure decision: entry, policy, what the request asks, and the time.

The life of an entry ends at the earlier of two instants: the expiry it was stored with and its making plus today's
TTL. It is fresh strictly before that instant, and a hit does not move it. A request may ask for a younger answer;
it may accept a stale one only as far as the policy keeps stale answers.
"""

from dataclasses import dataclass

from cache.entry import Entry


@dataclass(frozen=True, slots=True)
class Life:
    """An endpoint's policy, in seconds: how long answers are fresh, and how long after that they are kept for
    requests that accept a stale one."""

    ttl: float
    keep: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """`usable`: serve it; `stale`: it is past its life; `ttl`: seconds left, negative when stale; `why` if refused."""

    usable: bool
    stale: bool
    ttl: float
    why: str | None = None


def expires_at(entry: Entry, life: Life) -> float:
    """The instant at which the entry stops being fresh under today's policy."""
    return min(entry.expires, entry.created + life.ttl)


def judge(
    entry: Entry, life: Life, now: float, *, max_age: float | None = None, max_stale: float | None = None
) -> Verdict:
    left = expires_at(entry, life) - now
    if max_age is not None and now - entry.created > max_age:
        return Verdict(False, left <= 0, left, "older_than_asked")
    if left > 0:
        return Verdict(True, False, left)
    if max_stale is not None and -left < min(max_stale, life.keep):
        return Verdict(True, True, left)
    return Verdict(False, True, left, "expired")
