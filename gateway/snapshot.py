"""One immutable view of the configuration, compiled for use. A request takes one and keeps it from beginning to end."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from types import MappingProxyType
from zoneinfo import ZoneInfo

from backends.base import Backend
from cache.framing import digest
from cache.freshness import Life
from gateway.auth import Authenticator
from gateway.config import Config, Retriever, backend_for
from gateway.config import Endpoint as EndpointConfig
from gateway.errors import ApiError, shorten
from gateway.principal import OPEN, Principal
from gateway.retrieval.managed import Managed
from gateway.retrieval.template import template_of

no_retrievers: Mapping[str, Managed] = MappingProxyType({})
MAX_ROUTES = 1024
"""Names of models whose backend is remembered; clients invent names."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A named route's policy. `life` and `short_life` (of answers to prompts about now) are None where the exact tier
    is off; `tenants` (None: all) and `permissions` (all of them) are what it takes to use it; `settings` is the digest
    of those of its settings that can change an answer."""

    name: str
    config: EndpointConfig
    life: Life | None
    short_life: Life | None
    tenants: frozenset[str] | None
    permissions: frozenset[str]
    settings: bytes

    @classmethod
    def of(cls, name: str, config: EndpointConfig, retrievers: Mapping[str, Retriever]) -> "Endpoint":
        life = _life(config)
        tenants = [config.allow.tenants]
        if config.retrieval is not None:
            # Whoever may not see the documents may not ask about them.
            tenants.append(retrievers[config.retrieval.retriever].tenants)
        named = [t for t in tenants if t]
        return cls(
            name,
            config,
            life,
            life and replace(life, ttl=min(life.ttl, config.volatile_ttl)),
            frozenset.intersection(*named) if named else None,
            config.allow.permissions,
            digest("refrain.settings.1", [config.normalize.encode(), *_retrieval(config)]),
        )

    def admit(self, principal: Principal) -> None:
        """Raises ApiError 403 for who may not use this endpoint."""
        if principal is OPEN or (
            (self.tenants is None or principal.tenant in self.tenants) and self.permissions <= principal.permissions
        ):
            return
        message = f"You may not use the endpoint {shorten(self.name)!r}."
        raise ApiError(403, message, code="endpoint_not_allowed")


def _retrieval(config: EndpointConfig) -> list[bytes]:
    """What says how an answer is made from documents; which those are is in the key beside it."""
    retrieval = config.retrieval
    # The retriever's name is in the names of the documents, by which they are shown to the model, cited, and purged.
    return [] if retrieval is None else [b"documents", retrieval.retriever.encode(), template_of(retrieval).encode()]


def _life(config: EndpointConfig) -> Life | None:
    exact = config.cache.exact
    if exact is None:
        return None
    zone = ZoneInfo(config.time_zone) if config.time_zone is not None else UTC
    return Life(exact.ttl, exact.stale_if_error, exact.stale_while_revalidate, config.valid, zone)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`generation` rises with every configuration applied; what was learnt under another one is not trusted."""

    config: Config
    generation: int
    auth: Authenticator
    endpoints: Mapping[str, Endpoint]
    backends: Mapping[str, Backend] = field(repr=False)
    retrievers: Mapping[str, Managed] = field(repr=False)
    _routes: dict[str, str] = field(default_factory=dict, repr=False, compare=False)  # model -> backend, as found

    @classmethod
    def of(
        cls,
        config: Config,
        generation: int,
        backends: Mapping[str, Backend],
        auth: Authenticator,
        retrievers: Mapping[str, Managed] = no_retrievers,
    ) -> "Snapshot":
        endpoints = {name: Endpoint.of(name, e, config.retrievers) for name, e in config.endpoints.items()}
        return cls(config, generation, auth, endpoints, backends, retrievers)

    def endpoint(self, name: str) -> Endpoint:
        """Raises ApiError 404."""
        found = self.endpoints.get(name)
        if found is None:
            message = (
                f"There is no endpoint {shorten(name)!r} here. Endpoints are configured by name; /v1 is `default`."
            )
            raise ApiError(404, message, code="endpoint_not_found")
        return found

    def route(self, endpoint: Endpoint, model: str) -> Backend:
        """The backend that answers for this model on this endpoint. Raises ApiError 404."""
        name = endpoint.config.backend or self._routes.get(model)
        if name is None:
            name = backend_for(self.config, model)
            if name is not None and len(self._routes) < MAX_ROUTES:
                self._routes[model] = name
        if name is None:
            message = f"No backend is configured for the model {shorten(model)!r}."
            raise ApiError(404, message, code="model_not_found", param="model")
        return self.backends[name]
