"""What looking for similar questions and for documents costs: a provider's embeddings by the token, our own embedder by
the hour."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from cache.entry import Usage
from gateway.config import Config
from gateway.decisions import Decision
from gateway.ledger.sums import Charge
from gateway.prices.catalogue import token_cost
from gateway.prices.hardware import Machine
from gateway.visit import Visit


@dataclass(slots=True)
class _Embedded:
    tokens: int = 0
    estimated: int = 0


_embedded: ContextVar[_Embedded] = ContextVar("embedded")


def embedded(reported: int | None, letters: int) -> None:
    """An embedding server has made vectors of so many letters, and reports so many tokens (None: nothing). They are
    booked on the look-up in whose task, or a task of its own making, that was; without one they are nobody's."""
    spent = _embedded.get(None)
    if spent is not None:
        spent.tokens += letters // 4 if reported is None else reported
        spent.estimated += letters // 4 if reported is None else 0


class SearchCosts:
    """Of what searches with one embedder."""

    def __init__(self) -> None:
        self._machine = Machine(perf_counter)

    def paid_by(self, book: Callable[[Decision, Charge], None]) -> Callable[[Visit], AbstractContextManager[None]]:
        """Charges what is spent inside to a visit at once, also when that has ended before. `book` adds a cost to the
        request that it was made for."""
        return lambda visit: self.charged(visit.snapshot.config, partial(book, visit.decision))

    @contextmanager
    def of(self, visit: Visit) -> Iterator[None]:
        """Note what is spent inside as this visit's, for whoever charges it."""

        def note(charge: Charge) -> None:
            visit.spent = charge

        visit.spent = None
        with self.charged(visit.snapshot.config, note):
            yield

    @contextmanager
    def charged(self, config: Config, charge: Callable[[Charge], None]) -> Iterator[None]:
        """Charge what is spent inside, if anything is, however it ends."""
        spent = _Embedded()
        token = _embedded.set(spent)
        mark = self._machine.begin()
        try:
            yield
        finally:
            shared = self._machine.took(mark)
            self._machine.end()
            _embedded.reset(token)
            if (made := _charge(config, spent, shared)) is not None:
                charge(made)


def _charge(config: Config, spent: _Embedded, shared: float) -> Charge | None:
    """`shared`: seconds, each divided by the look-ups that ran in it."""
    embedder, usd = config.embedder, None
    if embedder.hourly_cost is not None:
        usd = embedder.hourly_cost * shared / 3600
    elif embedder.base_url is not None:
        usd = token_cost(embedder.model, Usage(spent.tokens), prices=config.prices, url=embedder.base_url)
    by_token = embedder.base_url is not None and embedder.hourly_cost is None
    if not spent.tokens and not usd:
        return None
    return Charge(spent.tokens, usd=usd, by_token=by_token, estimated=spent.estimated, overhead=True)
