"""What is added up of decisions, and the histogram that percentiles are read from."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, attrgetter
from typing import Any, Self

from gateway.decisions import Decision
from gateway.hits import Facts

SECONDS = (
    *(0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.0007),
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    *(10.0, 15.0, 20.0, 30.0, 50.0, 70.0),
    *(100.0, 150.0, 200.0, 300.0),
)
"""Upper bounds of the buckets in which times are counted: six for each power of ten, from 0.1 ms to 5 minutes."""
_MS = tuple(s * 1000 for s in SECONDS)

COUNTS = (
    *("requests", "errors", "served", "unserved", "consumed", "billable", "saved", "cached", "prompt", "estimated"),
    *("input", "output"),
)
AMOUNTS = ("usd", "usd_billable", "usd_saved", "usd_unserved", "usd_overhead", "ms", "first_ms", "ms_saved")
NUMBERS = (*COUNTS, *AMOUNTS)
numbers = attrgetter(*NUMBERS)
"""Of Sums: the values of NUMBERS, as a tuple."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one call took: tokens, of those the ones that nobody has reported (`estimated`), those of the `prompt`, and
    of the prompt the part that the backend had (`cached`, None: it has not said); milliseconds; USD (None: no price
    known). `by_token`: a provider charges for its tokens; `overhead`: it is the cache's own work, and no answer's."""

    tokens: int = 0
    ms: float = 0.0
    usd: float | None = None
    by_token: bool = False
    estimated: int = 0
    cached: int | None = None
    prompt: int = 0
    overhead: bool = False

    @property
    def billable(self) -> int:
        return self.tokens if self.by_token else 0

    @property
    def usd_billable(self) -> float | None:
        return self.usd if self.by_token else None

    @property
    def usd_overhead(self) -> float | None:
        return self.usd if self.overhead else None


class Sums:
    """Plain numbers: this is written to on every hit. Tokens are whole; `usd` is what was consumed; `ms` are whole
    times, `first_ms` those to the first byte of an answer, and `ms_saved` what upstream calls would have taken.
    `buckets` counts requests by their whole time and `first_buckets` answers by the time to their first byte; both
    have one more than SECONDS, for what is slower."""

    __slots__ = (*NUMBERS, "buckets", "first_buckets")
    requests: int
    errors: int
    served: int
    unserved: int
    consumed: int
    billable: int
    saved: int
    cached: int
    prompt: int
    estimated: int
    input: int
    output: int
    usd: float
    usd_billable: float
    usd_saved: float
    usd_unserved: float
    usd_overhead: float
    ms: float
    first_ms: float
    ms_saved: float

    def __init__(self) -> None:
        self.requests = self.errors = self.served = self.unserved = self.consumed = self.billable = self.saved = 0
        self.cached = self.prompt = self.estimated = self.input = self.output = 0
        self.usd = self.usd_billable = self.usd_saved = self.usd_unserved = self.usd_overhead = 0.0
        self.ms = self.first_ms = self.ms_saved = 0.0
        self.buckets = [0] * (len(SECONDS) + 1)
        self.first_buckets = [0] * (len(SECONDS) + 1)

    def add(self, d: Decision) -> None:
        """A request that has ended."""
        self.requests += 1
        self.ms += d.ms
        place = bisect_left(_MS, d.ms)
        self.buckets[place] += 1
        self.served += d.served
        self.saved += d.saved
        self.input += d.input
        self.output += d.output
        self.usd_saved += d.usd_saved or 0.0
        self.ms_saved += d.ms_saved or 0.0
        if d.first_ms is not None:
            self.first_ms += d.first_ms
            self.first_buckets[bisect_left(_MS, d.first_ms)] += 1
        elif d.error is None:  # the short way: the first byte is the last one
            self.first_ms += d.ms
            self.first_buckets[place] += 1
        if d.error is not None:
            self.errors += 1
        if d.consumed or d.usd:  # on a hit there is neither
            self.consumed += d.consumed
            self.unserved += d.unserved
            self.billable += d.billable
            self.cached += d.cached or 0
            self.prompt += d.prompt
            self.estimated += d.estimated
            usd = d.usd or 0.0
            self.usd += usd
            self.usd_unserved += usd - d.usd_used
            self.usd_billable += d.usd_billable or 0.0
            self.usd_overhead += d.usd_overhead or 0.0

    def add_hit(self, facts: Facts, ms: float) -> None:
        """A hit of the short way, where the first byte is the last one."""
        place = bisect_left(_MS, ms)
        self.requests += 1
        self.ms += ms
        self.first_ms += ms
        self.buckets[place] += 1
        self.first_buckets[place] += 1
        self.served += facts.total
        self.saved += facts.total
        self.input += facts.input
        self.output += facts.output
        self.usd_saved += facts.usd or 0.0
        self.ms_saved += facts.ms

    def charge(self, charge: Charge) -> None:
        """A call for a request that has been added already: nobody got anything of it."""
        usd = charge.usd or 0.0
        self.consumed += charge.tokens
        self.unserved += charge.tokens
        self.billable += charge.billable
        self.cached += charge.cached or 0
        self.prompt += charge.prompt
        self.estimated += charge.estimated
        self.usd += usd
        self.usd_unserved += usd
        self.usd_billable += charge.usd_billable or 0.0
        self.usd_overhead += charge.usd_overhead or 0.0

    def merge(self, other: "Sums") -> None:
        for name, value in zip(NUMBERS, numbers(other), strict=True):
            if value:  # most are 0
                setattr(self, name, getattr(self, name) + value)
        self.buckets = list(map(add, self.buckets, other.buckets))
        self.first_buckets = list(map(add, self.first_buckets, other.first_buckets))

    def copy(self) -> "Sums":
        new = Sums.__new__(Sums)
        for name, value in zip(NUMBERS, numbers(self), strict=True):
            setattr(new, name, value)
        new.buckets, new.first_buckets = self.buckets.copy(), self.first_buckets.copy()
        return new

    def row(self) -> tuple[Any, ...]:
        """NUMBERS, then both histograms."""
        return (*numbers(self), *self.buckets, *self.first_buckets)

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """What `row` has given."""
        sums = cls()
        for name, value in zip(NUMBERS, row, strict=False):
            if value:
                setattr(sums, name, value)
        middle = len(NUMBERS) + len(SECONDS) + 1
        sums.buckets, sums.first_buckets = list(row[len(NUMBERS) : middle]), list(row[middle:])
        return sums


def percentile(buckets: Sequence[int], q: float) -> float | None:
    """The time in ms that the share `q` (0..1) of those counted did not exceed, interpolated within its bucket; None
    where nothing was counted. What is slower than all bounds is taken for as slow as the last one."""
    total = sum(buckets)
    if not total:
        return None
    rank, below = q * total, 0
    for number, count in enumerate(buckets[:-1]):
        if count and below + count >= rank:
            low = _MS[number - 1] if number else 0.0
            return low + (_MS[number] - low) * max(0.0, rank - below) / count
        below += count
    return _MS[-1]
