"""Sums per tenant since the start: requests by outcome, tokens, USD.

Kept apart: served (in answers that clients got), consumed (by upstream calls), unserved (consumed, but nobody got
it), saved (served without an upstream call), billable (what the tenant is to pay for: consumed). For every sum
served + unserved = consumed + saved.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from gateway.decisions import Decision

SUMS = ("served", "unserved", "consumed", "billable", "saved")


class Account:
    """The sums of one tenant."""

    __slots__ = ("requests", "tokens", "usd")

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.usd: defaultdict[str, float] = defaultdict(float)


class Ledger:
    def __init__(self) -> None:
        self._accounts: defaultdict[str, Account] = defaultdict(Account)

    def book(self, d: Decision) -> None:
        account = self._accounts[d.tenant]
        account.requests[d.outcome or "error"] += 1
        if d.saved:
            account.tokens["served"] += d.served
            account.tokens["saved"] += d.saved
            if d.usd_saved:
                account.usd["served"] += d.usd_saved
                account.usd["saved"] += d.usd_saved
        elif d.consumed:
            tokens, usd = account.tokens, account.usd
            tokens["served"] += d.served
            tokens["unserved"] += d.unserved
            tokens["consumed"] += d.consumed
            tokens["billable"] += d.consumed
            if d.usd:
                usd["unserved" if d.unserved else "served"] += d.usd
                usd["consumed"] += d.usd
                usd["billable"] += d.usd

    def stats(self, tenant: str | None = None) -> dict[str, Any]:
        """Sums of one tenant, or of all (None)."""
        accounts: Iterable[Account] = self._accounts.values()
        if tenant is not None:
            accounts = [self._accounts[tenant]] if tenant in self._accounts else []
        total = Account()
        for account in accounts:
            total.requests += account.requests
            total.tokens += account.tokens
            for name, value in account.usd.items():
                total.usd[name] += value
        return {
            "requests": dict(total.requests),
            "tokens": {name: total.tokens[name] for name in SUMS},
            "usd": {name: total.usd.get(name, 0.0) for name in SUMS},
        }
