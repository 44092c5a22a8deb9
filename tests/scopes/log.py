"""What has happened: requests, upstream calls and purges, each with its place in the order of all that happens.

Order is told by `Log.tick`; only lives and ages are told by the clock. Where it cannot be known here what the gateway
knew (for whom a call is made when its first leader has failed), a purge counts only if it has met all who can be meant.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from math import inf

from tests.scopes.questions import place_of
from tests.scopes.steps import Ask, Purge
from tests.scopes.world import Key, Person, Policy

Scope = tuple[object, ...]
FAILURES = ("error", "refused", "broken")


@dataclass(eq=False)
class Asked:
    """A request, what held when it came, and what it was answered. `person` None: nobody who may ask;
    `place` is where its answer lives: those with the same may share one; `context`: those with the same ask the same
    in the same circumstances, so that the answer to one may serve the other."""

    ask: Ask
    person: Person | None
    policy: Policy
    began: int
    at: float
    ended: int = 0
    ended_at: float = 0.0
    head_at: float = 0.0
    status: int = 0
    outcome: str = ""
    age: int | None = None
    serials: frozenset[int] = frozenset()
    calls: int = 0
    scope: Scope = field(init=False)
    place: tuple[object, ...] = field(init=False)
    context: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.scope = scope_of(self.policy, self.person) if self.person is not None else ()
        self.place = (self.ask.endpoint, self.scope, self.ask.meaning)
        self.context = (self.ask.endpoint, self.scope, self.ask.sense)

    @property
    def bypasses(self) -> bool:
        """No cache has a part in it: neither is it answered from one, nor is its answer kept."""
        control, sampled = self.ask.control, self.ask.temperature != 0
        off = self.policy.ttl is None or (self.policy.bypass_sampled and sampled)
        return off or control.no_store or (control.tier == "semantic" and self.policy.like_ttl is None)

    @property
    def alone(self) -> bool:
        """Nobody else may get the answer that is made for it."""
        return self.bypasses or self.ask.control.ttl == 0


@dataclass(eq=False)
class Made:
    """An upstream call. `asked` is the request in whose course it was made, `others` are those it may have been made
    for instead; `fate` is what becomes of it (plan.FATES); `whole`: when the answer was all there."""

    serial: int
    asked: Asked
    others: tuple[Asked, ...]
    began: int
    at: float
    fate: str
    whole: int | None = None
    ended: int | None = None

    @property
    def good(self) -> bool:
        """It makes an answer that may be kept."""
        return self.fate == "good"

    @property
    def makers(self) -> tuple[Asked, ...]:
        return (self.asked, *self.others)


@dataclass(eq=False)
class Purged:
    """A purge that was carried out; `tenant`: within that one only; `place` where it was by key."""

    purge: Purge
    tenant: str | None
    place: tuple[object, ...] | None
    began: int
    at: float
    ended: int = 0


@dataclass(frozen=True)
class Reported:
    """The answer kept at one place was wrong for the question of another; on record by then."""

    asked: tuple[object, ...]
    served: tuple[object, ...]
    by: int


@dataclass
class Log:
    """All that has happened. `opportunities` are answers to what had been answered before for another scope or
    endpoint, so that a leak would have shown; `likes` are those to a question that had been answered before in other
    words and other circumstances; `expiries` are those made anew since an older one's life was over."""

    asked: list[Asked] = field(default_factory=list)
    made: dict[int, Made] = field(default_factory=dict)
    purged: list[Purged] = field(default_factory=list)
    reported: set[Reported] = field(default_factory=set)
    opportunities: int = 0
    likes: int = 0
    expiries: int = 0
    _ticks: "count[int]" = field(default_factory=lambda: count(1))

    def tick(self) -> int:
        return next(self._ticks)

    def failed(self, asked: Asked) -> bool:
        """Has a call that could be this request's failed in its time?"""
        return any(
            made.fate in FAILURES and made.asked.place == asked.place and _in_the_air(made, asked)
            for made in self.made.values()
        )

    def end(self, made: Made, policy: Policy, *, like: bool = False) -> float:
        """When its life ends, under this policy too; `like`: for other questions. A refreshed answer lives as long as
        the endpoint says."""
        asked_for = made.asked.ask.control.ttl if self.refreshes(made) is None else None
        ttls = (made.asked.policy.ttl, policy.ttl, asked_for, policy.like_ttl if like else None)
        return made.at + min((ttl for ttl in ttls if ttl is not None), default=inf)

    def refreshes(self, made: Made) -> Made | None:
        """The older answer that its request was given while this call was made beside it."""
        asked = made.asked
        if asked.outcome not in ("exact", "stale") or len(asked.serials) != 1 or made.serial in asked.serials:
            return None
        return self.made[next(iter(asked.serials))]

    def tags(self, made: Made) -> frozenset[str]:
        """A refreshed answer keeps the tags that it had."""
        older = self.refreshes(made)
        return made.asked.ask.control.tags if older is None else self.tags(older)

    def purges_of(self, made: Made, before: int, *, like: bool) -> Iterable[Purged]:
        """Those that have certainly met the answer, and were over by then; `like`: it has served another question."""
        since = (p for p in self.purged if made.began < p.began and p.ended < before)
        return (p for p in since if all(self._matches(p, made, maker, like) for maker in made.makers))

    def _matches(self, purged: Purged, made: Made, maker: Asked, like: bool) -> bool:
        person = maker.person
        assert person is not None
        if purged.tenant not in (None, person.tenant) or purged.place not in (None, maker.place):
            return False
        for name, value in purged.purge.criteria:
            match name:
                case "tags":
                    holds = value in self.tags(made)
                case "older_than":
                    holds = made.at < purged.at - float(value.removesuffix("s"))
                case "documents":
                    holds = False
                case "like":
                    # It meets only what can be found so, and is there already.
                    there = made.whole is not None and made.whole < purged.began
                    holds = like and there and maker.ask.wording.place == place_of(value)
                case _:
                    of_maker = {"tenant": person.tenant, "user": person.user}
                    holds = value == {**of_maker, "endpoint": maker.ask.endpoint, "model": maker.ask.model}[name]
            if not holds:
                return False
        return True


def who(key: Key | None, behalf: tuple[str, str] | None) -> Person | None:
    """Whom a request is from: the key's holder, or, only with a key that may delegate, whoever it speaks for: of the
    key's own tenant, with those of the permissions that the key has too."""
    if key is None:
        return None
    if behalf is None or not key.delegate:
        return key.person
    user, permissions = behalf
    return Person(key.person.tenant, user, key.person.permissions & frozenset(permissions.split()))


def scope_of(policy: Policy, person: Person) -> Scope:
    """The group of people that may share an answer."""
    match policy.share:
        case "user":
            return ("user", person.tenant, person.user, person.permissions)
        case "permissions":
            return ("permissions", person.tenant, person.permissions)
        case "tenant":
            return ("tenant", person.tenant)
    return ("public",)


def may_use(policy: Policy, person: Person) -> bool:
    return (not policy.tenants or person.tenant in policy.tenants) and policy.permissions <= person.permissions


def _in_the_air(made: Made, asked: Asked) -> bool:
    ended = made.ended if made.ended is not None else inf
    return made.began < asked.ended and ended > asked.began
