"""Own hardware, which is paid for by the hour: what a call on it costs, and how much of the time it works.

An hour's cost is shared by the answers that are made in it (gateway.prices.hourly). So the calls that run side by side
share what the time costs, and all of them what idle time does: the cost is divided by the utilization, which is the
configured one, else the measured one.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter

from gateway.prices.hourly import per_thousand

WINDOW = 60
"""Minutes over which utilization is measured."""
SETTLED = 600.0
"""Seconds of watching before the measured utilization is used; until then it counts as 1."""
FLOOR = 0.1
"""The least utilization that is used: beyond that an idle machine would make single answers absurdly dear."""

DecodeSpeed = Callable[[str, str], float | None]
"""Of a backend's name and a model: tokens a second that one call is written in, None while that is not known."""


class Machine:
    """One backend's hardware. `mono` is a clock that nobody sets, in seconds."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._running = 0
        self._shared = 0.0  # seconds, each divided by the calls that ran in it
        self._begun = self._seen = mono()
        self._busy: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # seconds by minute

    def begin(self) -> float:
        """A call begins; gives the mark that `took` needs."""
        self._pass()
        self._running += 1
        return self._shared

    def took(self, mark: float) -> float:
        """Seconds since the mark, each divided by the calls that ran in it. Of all calls they add up to the time in
        which the machine worked."""
        self._pass()
        return self._shared - mark

    def end(self) -> None:
        self._pass()
        self._running -= 1

    def utilization(self) -> float | None:
        """The part of the last hour, or of the time since the start, in which calls ran; None in the first minute."""
        self._pass()
        watched = min(self._seen - self._begun, WINDOW * 60.0)
        if watched < 60:
            return None
        since = self._seen - watched
        return min(1.0, sum(seconds for minute, seconds in self._busy if (minute + 1) * 60 > since) / watched)

    @property
    def settled(self) -> bool:
        return self._seen - self._begun >= SETTLED

    def _pass(self) -> None:
        before, self._seen = self._seen, self._mono()
        if not self._running:
            return
        self._shared += (self._seen - before) / self._running
        at = max(before, self._seen - WINDOW * 60.0)
        while at < self._seen:
            minute = int(at // 60)
            until = min(self._seen, (minute + 1) * 60.0)
            if self._busy and self._busy[-1][0] == minute:
                self._busy[-1] = (minute, self._busy[-1][1] + until - at)
            else:
                self._busy.append((minute, until - at))
            at = until


class Hardware:
    """All backends' machines, by name."""

    def __init__(self, mono: Callable[[], float] = perf_counter, decode_tps: DecodeSpeed = lambda *_: None) -> None:
        self._mono = mono
        self._machines: dict[str, Machine] = {}
        self._decode_tps = decode_tps

    def machine(self, backend: str) -> Machine:
        machine = self._machines.get(backend)
        if machine is None:
            machine = self._machines[backend] = Machine(self._mono)
        return machine

    def utilization(self, backend: str, configured: float | None) -> dict[str, float | None]:
        """The configured one (None: it is not set), the measured one (None: not known yet), and what prices are worked
        out with."""
        machine = self.machine(backend)
        measured = machine.utilization()
        return {"configured": configured, "measured": measured, "used": utilization_used(machine, configured)}

    def cost(
        self, backend: str, model: str, mark: float, *, ms: float, output: int, hourly: float, utilization: float | None
    ) -> float:
        """USD of a call that began at the machine's `mark` and has taken `ms`; `utilization` is the configured one."""
        machine = self.machine(backend)
        return call_on_own(
            hourly,
            seconds=ms / 1000,
            shared=machine.took(mark),
            output=output,
            decode_tps=self._decode_tps(backend, model) if output else None,
            utilization=utilization_used(machine, utilization),
        )


def utilization_used(machine: Machine, configured: float | None) -> float:
    """What prices are worked out with (0..1)."""
    if configured is not None:
        return configured
    measured = machine.utilization()
    return 1.0 if measured is None or not machine.settled else max(FLOOR, measured)


def call_on_own(
    hourly: float, *, seconds: float, shared: float, output: int, decode_tps: float | None, utilization: float
) -> float:
    """USD of a call that took `seconds`, of which `shared` are left when each is divided by the calls that ran in it.
    By the tokens of its answer where the speed is known, else by the time."""
    if output and decode_tps and shared > 0:
        side_by_side = max(1.0, seconds / shared)
        return per_thousand(hourly, decode_tps * side_by_side, utilization, output) / 1000
    return hourly * shared / 3600 / utilization
