"""One immutable view of the configuration, compiled for use. A request takes one and keeps it from beginning to end."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.base import Backend
from cache.framing import digest
from cache.freshness import Life
from gateway.auth import Authenticator
from gateway.config import Config, backend_for
from gateway.config import Endpoint as EndpointConfig
from gateway.errors import ApiError, shorten

MAX_ROUTES = 1024
"""Names of models whose backend is remembered; clients invent names."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A named route's policy. `settings` is the digest of those of its settings that can change an answer."""

    name: str
    config: EndpointConfig
    life: Life | None  # None: the exact tier is off
    settings: bytes

    @classmethod
    def of(cls, name: str, config: EndpointConfig) -> "Endpoint":
        exact = config.cache.exact
        life = None if exact is None else Life(exact.ttl, exact.stale_if_error, exact.stale_while_revalidate)
        return cls(name, config, life, digest("refrain.settings.1", [config.normalize.encode()]))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`generation` rises with every configuration applied; what was learnt under another one is not trusted."""

    config: Config
    generation: int
    auth: Authenticator
    endpoints: Mapping[str, Endpoint]
    backends: Mapping[str, Backend] = field(repr=False)
    _routes: dict[str, str] = field(default_factory=dict, repr=False, compare=False)  # model -> backend, as found

    @classmethod
    def of(cls, config: Config, generation: int, backends: Mapping[str, Backend]) -> "Snapshot":
        endpoints = {name: Endpoint.of(name, e) for name, e in config.endpoints.items()}
        return cls(config, generation, Authenticator.of(config.auth), endpoints, backends)

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
