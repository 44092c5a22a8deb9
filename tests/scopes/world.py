"""Who may ask, and of which endpoints: the settings of one small gateway."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from random import Random
from typing import Any

ADMIN = "rf-scopes-admin-key"
WRONG = "rf-scopes-wrong-key"

# People who are the same once their names are run together, with nothing or with a colon between them.
CONFUSABLE = (
    (("org_1", "2345", ""), ("org_12", "345", "")),
    (("org_1", "ann", "hr"), ("org_1", "annhr", "")),
    (("org_1", "ann", "fin hr"), ("org_1", "ann", "finhr")),
    (("a:b", "c", "hr"), ("a", "b:c", "hr")),
    (("org_1", "", "2 hr"), ("org_12", "", "hr")),
)
TENANTS = ("org_1", "org_12", "a:b", "Ünïcode_Ltd.")
USERS = ("ann", "2345", "o'b; --", "ann@example.com")
PERMISSIONS = ("", "hr", "fin", "fin hr", "finhr")
TTLS = (10.0, 30.0, 60.0)
LIKE_TTLS = (5.0, 20.0, 60.0)


class Brief:
    """A dataclass whose repr leaves out what is as usual."""

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                named = "" if field.default is MISSING else f"{field.name}="
                shown.append(
                    named + (f"{{{' '.join(sorted(value))}}}" if isinstance(value, frozenset) else repr(value))
                )
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Person(Brief):
    tenant: str
    user: str
    permissions: frozenset[str]


@dataclass(frozen=True, repr=False)
class Key(Brief):
    token: str
    person: Person
    role: str = "member"
    delegate: bool = False

    def settings(self) -> dict[str, Any]:
        person = {
            "tenant": self.person.tenant,
            "user": self.person.user,
            "permissions": sorted(self.person.permissions),
        }
        return {"key": self.token, **person, "role": self.role, "delegate": self.delegate}


@dataclass(frozen=True, repr=False)
class Policy(Brief):
    """An endpoint. `ttl` None: nothing is kept; `like`: how long an answer may serve other questions that mean the
    same, None: never; empty `tenants` and `permissions`: everybody may use it."""

    share: str
    mode: str = "stream"
    ttl: float | None = 60.0
    like: float | None = None
    revalidate: float = 0.0
    if_error: float = 0.0
    bypass_sampled: bool = False
    finish: bool = False
    tenants: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()

    def settings(self) -> dict[str, Any]:
        life = {"ttl": self.ttl, "stale_while_revalidate": self.revalidate, "stale_if_error": self.if_error}
        like = self.like_ttl
        # At one place the cosine is 1, more than any two wordings have: so high that a guard's objection is enough.
        semantic = "off" if like is None else {"ttl": f"{like:g}s", "threshold": 0.95}
        exact = "off" if self.ttl is None else {name: f"{seconds:g}s" for name, seconds in life.items() if seconds}
        return {
            "mode": self.mode,
            "share": self.share,
            "sampled": "bypass" if self.bypass_sampled else "reuse",
            "finish": self.finish,
            "allow": {"tenants": sorted(self.tenants), "permissions": sorted(self.permissions)},
            "cache": {"exact": exact, "semantic": semantic},
        }

    @property
    def like_ttl(self) -> float | None:
        """What `like` comes to: what is not kept serves nobody, and a public endpoint's answers no other question."""
        return None if self.ttl is None or self.share == "public" else self.like


@dataclass(frozen=True)
class World:
    keys: tuple[Key, ...]
    endpoints: Mapping[str, Policy]

    def key(self, token: str) -> Key | None:
        return next((key for key in self.keys if key.token == token), None)

    @property
    def reuses_like(self) -> bool:
        """May any answer serve other questions than its own?"""
        return any(policy.like_ttl is not None for policy in self.endpoints.values())

    def settings(self, store: Mapping[str, Any]) -> dict[str, Any]:
        """As a configuration file has it."""
        return {
            "auth": {"keys": [key.settings() for key in self.keys]},
            "backends": {"fake": {"kind": "remote", "base_url": "http://127.0.0.1:9/v1"}},
            "models": {"*": "fake"},
            "store": dict(store),
            "endpoints": {name: policy.settings() for name, policy in self.endpoints.items()},
        }


def new_world(random: Random) -> World:
    people = _people(random)
    keys = [Key(f"rf-scopes-key-{n}", person) for n, person in enumerate(people)]
    keys.append(Key("rf-scopes-second-key", people[0]))
    keys.append(Key("rf-scopes-app-key", _person(people[0].tenant, "app", "hr"), delegate=True))
    keys.append(Key("rf-scopes-tenant-admin", _person(random.choice(people).tenant, "boss", "hr"), "tenant_admin"))
    keys.append(Key(ADMIN, _person("ops", "root", ""), "admin"))
    names = ("default", "b", "c")[: random.choice((1, 2, 2, 3))]
    return World(tuple(keys), {name: _policy(random, people) for name in names})


def changed(random: Random, world: World, token: str, name: str) -> tuple[World, str]:
    """The world after a change of this key or this endpoint, and which change."""
    key = world.key(token)
    if key is None or token == ADMIN or random.random() < 0.5:
        policy = _policy(random, [key.person for key in world.keys])
        part = random.choice(("share", "ttl", "like", "all"))
        if part == "share":
            policy = replace(world.endpoints[name], share=policy.share)
        elif part == "ttl":
            policy = replace(world.endpoints[name], ttl=policy.ttl)
        elif part == "like":
            policy = replace(world.endpoints[name], like=policy.like)
        return replace(world, endpoints={**world.endpoints, name: policy}), f"endpoint {name}: {policy}"
    others = [other for other in world.keys if other is not key]
    if random.random() < 0.4:
        return replace(world, keys=tuple(others)), f"key {key.token} removed"
    person = replace(key.person, permissions=frozenset(random.choice(PERMISSIONS).split()))
    if random.random() < 0.3:
        person = replace(person, user=random.choice(USERS))
    return replace(world, keys=(*others, replace(key, person=person))), f"key {key.token} is now {person}"


def _people(random: Random) -> list[Person]:
    first, second = random.choice(CONFUSABLE)
    user = random.choice(USERS)
    people = [_person(tenant, name or user, words) for tenant, name, words in (first, second)]
    tenants = (people[0].tenant, random.choice(TENANTS))
    users = (people[0].user, *random.sample(USERS, 2))
    permissions = (" ".join(sorted(people[0].permissions)), random.choice(PERMISSIONS))
    for _ in range(random.randint(2, 4)):
        people.append(_person(random.choice(tenants), random.choice(users), random.choice(permissions)))
    return people


def _person(tenant: str, user: str, permissions: str) -> Person:
    return Person(tenant, user, frozenset(permissions.split()))


def _policy(random: Random, people: list[Person]) -> Policy:
    def sometimes(chance: float) -> bool:
        return random.random() < chance

    someone = random.choice(people)
    return Policy(
        share=random.choice(("user", "permissions", "tenant", "public")),
        mode=random.choice(("stream", "request_response")),
        ttl=None if sometimes(0.06) else random.choice(TTLS),
        like=None if sometimes(0.15) else random.choice(LIKE_TTLS),
        revalidate=20.0 if sometimes(0.3) else 0.0,
        if_error=40.0 if sometimes(0.3) else 0.0,
        bypass_sampled=sometimes(0.1),
        finish=sometimes(0.2),
        tenants=frozenset({someone.tenant}) if sometimes(0.07) else frozenset(),
        permissions=someone.permissions if sometimes(0.07) else frozenset(),
    )
