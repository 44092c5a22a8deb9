"""What can happen: requests, in all their spellings, and all that is done between them."""

import json
from dataclasses import dataclass
from typing import Any

from tests.scopes.questions import EARLIER, WORDINGS, Wording
from tests.scopes.world import Brief, World

FORMS: dict[str, dict[str, Any]] = {
    "json": {},
    "sse": {"stream": True},
    "sse+usage": {"stream": True, "stream_options": {"include_usage": True}},
}
SPELLINGS = 6


@dataclass(frozen=True, repr=False)
class Control(Brief):
    """What a request asks of the cache; `tier`: of this one only; `in_body`: in the `cache` object, as far as that can
    say it."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: int | None = None
    max_stale: int | None = None
    ttl: int | None = None
    tags: frozenset[str] = frozenset()
    tier: str | None = None
    in_body: bool = False

    def body(self) -> dict[str, Any]:
        if not self.in_body:
            return {}
        found = {"no-cache": self.no_cache or None, "no-store": self.no_store or None}
        said = {k: v for k, v in {**found, "s-maxage": self.max_age, "ttl": self.ttl}.items() if v is not None}
        return {"cache": said} if said else {}

    def headers(self) -> dict[str, str]:
        words = ["only-if-cached"] if self.only_if_cached else []
        words += [f"max-stale={self.max_stale}"] if self.max_stale is not None else []
        out = {}
        if not self.in_body:
            words += ["no-cache"] if self.no_cache else []
            words += ["no-store"] if self.no_store else []
            words += [f"max-age={self.max_age}"] if self.max_age is not None else []
            out = {"x-refrain-ttl": f"{self.ttl}s"} if self.ttl is not None else {}
        if words:
            out["cache-control"] = ", ".join(words)
        if self.tags:
            out["x-refrain-tags"] = ",".join(sorted(self.tags))
        if self.tier is not None:
            out["x-refrain-tier"] = self.tier
        return out


PLAIN = Control()


@dataclass(frozen=True, repr=False)
class Ask(Brief):
    """One request. `prompt` is which of WORDINGS, `earlier` which of EARLIER comes before it; `behalf` is whom it
    speaks for: a user, and permissions with blanks between them."""

    token: str
    endpoint: str
    prompt: int
    model: str = "small"
    temperature: float | None = None
    form: str = "json"
    spelling: int = 0
    control: Control = PLAIN
    earlier: int = 0
    behalf: tuple[str, str] | None = None
    api_key: bool = False
    leaves: bool = False

    @property
    def path(self) -> str:
        return f"{'' if self.endpoint == 'default' else f'/{self.endpoint}'}/v1/chat/completions"

    @property
    def meaning(self) -> tuple[object, ...]:
        """Equal for requests that say the same, however they are spelled."""
        return (self.model, self.earlier, self.prompt, self.temperature)

    @property
    def sense(self) -> tuple[object, ...]:
        """Equal for requests that ask the same in the same circumstances, in whatever words."""
        return (self.model, self.earlier, self.wording.asks, self.temperature)

    @property
    def wording(self) -> Wording:
        return WORDINGS[self.prompt]

    def headers(self) -> list[tuple[bytes, bytes]]:
        named = {"content-type": "application/json", **self.control.headers()}
        named |= {"x-api-key": self.token} if self.api_key else {"authorization": f"Bearer {self.token}"}
        if self.behalf is not None:
            user, permissions = self.behalf
            named["x-refrain-on-behalf"] = f"user={user}; permissions={permissions.replace(' ', ',')}"
        return [(name.encode(), value.encode()) for name, value in named.items()]

    def body(self) -> bytes:
        text = self.wording.text
        content: Any = [{"type": "text", "text": text}] if self.spelling == 2 else text
        messages = [*EARLIER[self.earlier], {"role": "user", "content": content}]
        body: dict[str, Any] = {"model": self.model, "messages": messages}
        body |= FORMS[self.form]
        if self.temperature is not None:
            body["temperature"] = self.temperature
        body |= self.control.body()
        if self.spelling == 1:
            return json.dumps(body, sort_keys=True, indent=1).encode()
        if self.spelling == 3:
            body |= {"stop": None, "n": 1, "user": "somebody else"}
        elif self.spelling == 4:
            body |= {"metadata": {"tenant": "another"}, "service_tier": "auto"}
        elif self.spelling == 5:
            return json.dumps(body).replace(text, f"\\u{ord(text[0]):04x}{text[1:]}").encode()
        return json.dumps(body).encode()


@dataclass(frozen=True, repr=False)
class Burst(Brief):
    """Requests at the same time. `fates`: what becomes of the upstream calls, in their order, the last of all others;
    `hold`: where they wait until a Release ("before" the first byte, in the "middle"; "no")."""

    asks: tuple[Ask, ...]
    fates: tuple[str, ...] = ("good",)
    hold: str = "no"


@dataclass(frozen=True)
class Release:
    """Everything that waits goes on."""


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True, repr=False)
class Purge(Brief):
    """`of`: by the key of the so many-th last answer, beside the criteria."""

    token: str
    criteria: tuple[tuple[str, str], ...] = ()
    of: int | None = None
    soft: bool = False
    dry_run: bool = False


@dataclass(frozen=True, repr=False)
class Feedback(Brief):
    """About the so many-th last answer of another question, if there is one, or of any."""

    token: str
    of: int
    correct: bool = False


@dataclass(frozen=True)
class Revoke:
    token: str


@dataclass(frozen=True)
class Look:
    """A tenant's admin looks at entries and decisions."""

    token: str


@dataclass(frozen=True)
class Reload:
    world: World
    what: str

    def __repr__(self) -> str:
        return f"Reload({self.what})"


@dataclass(frozen=True)
class Tamper:
    """Somebody exchanges the values of two rows in the store's file."""


Step = Burst | Release | Wait | Purge | Feedback | Revoke | Look | Reload | Tamper
