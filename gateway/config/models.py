"""The configuration as a whole: one immutable value, valid by construction.

What the file leaves out is filled in before the fields are read (`_fill`), what must agree across sections is checked
after (`gateway.config.checks`); so every Config that exists may be served.
"""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from gateway.config import checks
from gateway.config.access import Auth
from gateway.config.backends import Backend
from gateway.config.endpoints import Endpoint
from gateway.config.fields import (
    BaseUrl,
    Count,
    FrozenMap,
    Name,
    Secret,
    Section,
    Size,
    StoreUrl,
    Text,
    Usd,
    Whole,
    is_loopback,
    no_entries,
)
from gateway.config.problems import refusal
from gateway.config.retrievers import Retriever


class Server(Section):
    host: Text = "127.0.0.1"
    port: Annotated[Whole, Field(ge=0, le=65_535)] = 8080
    workers: Annotated[Whole, Field(ge=1, le=1_024)] = 1
    max_body: Size = 10 * 2**20
    admin_port: Annotated[Whole, Field(ge=1, le=65_535)] | None = None


class Store(Section):
    url: StoreUrl = Field(default="sqlite:///.refrain/cache.db", repr=False)
    max_bytes: Size = 2 * 2**30
    memory: Size = 256 * 2**20
    max_entry: Size = 2**20
    durable_url: StoreUrl | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _entry_fits(self) -> "Store":
        if self.max_entry > self.memory or self.max_entry > self.max_bytes:
            raise refusal([(("max_entry",), "must be at most `memory` and at most `max_bytes`")])
        return self


class Embedder(Section):
    """A sentence-transformers model, or with `base_url` a model of an OpenAI-style server. `hourly_cost` are the USD
    for an hour of look-ups."""

    model: Text = "all-MiniLM-L6-v2"
    base_url: BaseUrl | None = None
    api_key: Secret | None = None
    hourly_cost: Usd | None = None


class Price(Section):
    """USD per million tokens; `cached_input` are those of a prompt that the provider had cached."""

    input: Usd
    output: Usd
    cached_input: Usd | None = None


class Decisions(Section):
    ring: Count = 100_000
    log: Path | None = None


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error:
        raise ValueError("must be a regular expression") from None
    return value


class RequestLog(Section):
    path: Path
    redact: tuple[Annotated[str, AfterValidator(_regex)], ...] = ()


class Config(Section):
    server: Server = Server()
    auth: Auth
    store: Store = Store()
    embedder: Embedder = Embedder()
    backends: FrozenMap[Name, Backend]
    models: FrozenMap[Text, str] = Field(default_factory=no_entries)
    retrievers: FrozenMap[Name, Retriever] = Field(default_factory=no_entries)
    endpoints: FrozenMap[Name, Endpoint]
    prices: FrozenMap[Text, Price] = Field(default_factory=no_entries)
    decisions: Decisions = Decisions()
    request_log: RequestLog | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Defaults that depend on what else is there."""
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        backends, endpoints = data.get("backends", {}), data.get("endpoints", {})
        if isinstance(backends, dict):
            filled["backends"] = backends if "local" in backends else {**backends, "local": {"kind": "local"}}
            if "models" not in data and len(backends) <= 1:
                filled["models"] = {"*": next(iter(backends), "local")}
        if isinstance(endpoints, dict):
            filled["endpoints"] = endpoints if "default" in endpoints else {"default": {}, **endpoints}
        if "auth" not in data:
            server = data.get("server", {})
            host = server.get("host", "127.0.0.1") if isinstance(server, dict) else None
            filled["auth"] = {"required": not (isinstance(host, str) and is_loopback(host))}
        return filled

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        if found := checks.disagreements(self):
            raise refusal(found)
        return self


def backend_for(config: Config, model: str) -> str | None:
    """The backend that serves `model`: the first glob of `models` that matches, without regard to case."""
    wanted = model.lower()
    return next((name for glob, name in config.models.items() if fnmatchcase(wanted, glob.lower())), None)
