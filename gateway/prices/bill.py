"""What one upstream call takes: tokens, time and money; for the books, and for those who learn from it."""

from dataclasses import dataclass, field
from time import perf_counter

from cache.entry import Cost, Usage
from gateway.ask import Ask
from gateway.cacheability import asked_choices, most_tokens
from gateway.latency.models import LatencyModels
from gateway.ledger.sums import Charge
from gateway.metrics.observed import Observed
from gateway.prices.call import call_price, charges_by_token
from gateway.prices.hardware import Hardware
from gateway.upstream import Json, cached_of, usage_of
from gateway.visit import Visit


@dataclass(frozen=True, slots=True)
class Learners:
    """Who learns from every call."""

    latency: LatencyModels = field(default_factory=LatencyModels)
    observed: Observed = field(default_factory=Observed)
    hardware: Hardware = field(default_factory=Hardware)


class Bill:
    """Of a call that is made now, or when its turn comes (backends.base.Turn). `usage` and `cost` are what it has
    taken, once that is settled (`estimated`: by our own count, as the backend has not said), and `cached` the part of
    the prompt that the backend had, if it has said so. `heard` are the tokens that were seen to arrive, about;
    `waiting`: it has not been sent yet."""

    def __init__(self, learners: Learners, visit: Visit, ask: Ask, sent: int) -> None:
        """`sent`: bytes of the body."""
        self._learners = learners
        self._visit = visit
        self._ask = ask
        self._sent = sent
        self._first_ms: float | None = None  # from the call to the first event of a stream
        self.begun = perf_counter()
        self.waiting = False
        self.heard = 0
        self.usage = Usage()
        self.cost = Cost()
        self.cached: int | None = None
        self.estimated = False
        visit.decision.predicted_ms = learners.latency.expect(ask.backend.name, ask.model, sent, most_tokens(ask.body))
        # Last, since what has begun has to end.
        self._machine = learners.hardware.machine(ask.backend.name)
        self._mark = self._machine.begin()

    @property
    def deadline(self) -> float | None:
        return self._visit.deadline

    @property
    def patient(self) -> bool:
        return self._visit.batch

    def waits(self) -> None:
        """It is not sent yet: until `begins` it takes nothing."""
        self.waiting = True
        self._machine.end()

    def begins(self) -> None:
        self.waiting = False
        self.begun = self._visit.phase("queue", self.begun)
        self._mark = self._machine.begin()

    @property
    def settled(self) -> bool:
        return self.cost.ms > 0

    def first(self) -> None:
        """The first events of a stream are there."""
        if self._first_ms is None:
            self._first_ms = self._ms()

    def settle(self, answer: Json, *, left: bool = False) -> None:
        """Note what the call took; `left`: nobody waited for the end of it. One that was never sent took nothing."""
        if self.waiting:
            return
        self.usage, self.cached = usage_of(answer), cached_of(answer)
        # A backend reports its usage last, so whoever leaves before that would have everything for nothing. An event
        # is about a token, and a token about four bytes of a prompt.
        self.estimated = not self.usage.total and bool(self.heard or left)
        if self.estimated:
            self.usage = Usage(len(self._ask.raw) // 4, self.heard)
        ms = self._ms()
        usd = call_price(
            self._visit.snapshot.config,
            self._learners.hardware,
            self._ask.backend.name,
            self._ask.model,
            self.usage,
            cached=self.cached or 0,
            ms=ms,
            mark=self._mark,
        )
        self.cost = Cost(ms, usd)

    def end(self) -> None:
        """The call is over, however it ended."""
        if not self.waiting:
            self._machine.end()

    def teach(self) -> None:
        """Let others learn from a call that went well; what it waited in a queue is not the model's doing."""
        ask, usage = self._ask, self.usage
        output = usage.output / asked_choices(ask.body)
        self._learners.observed.call(ask.backend.name, ask.model, self.cost.ms, first_ms=self._first_ms, output=output)
        if self.estimated:
            return
        queued = self._visit.decision.phases.get("upstream_queue", 0.0)
        self._learners.latency.learn(
            ask.backend.name,
            ask.model,
            input=usage.input,
            cached=self.cached or 0,
            output=output,
            first_ms=None if self._first_ms is None else self._first_ms - queued,
            ms=self.cost.ms - queued,
            size=self._sent,
        )

    def charge(self) -> Charge:
        """For the books."""
        tokens = self.usage.total
        by_token = charges_by_token(self._visit.snapshot.config, self._ask.backend.name)
        estimated = tokens if self.estimated else 0
        return Charge(tokens, self.cost.ms, self.cost.usd, by_token, estimated, self.cached, self.usage.input)

    def _ms(self) -> float:
        return (perf_counter() - self.begun) * 1000
