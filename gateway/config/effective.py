"""What `refrain check` shows: the configuration with its defaults filled in, and what to know about it."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from cache.stores import SQLITE
from gateway.config.backends import LocalBackend, RemoteBackend
from gateway.config.fields import Section, is_loopback
from gateway.config.models import Config
from gateway.config.not_yet import NOT_YET

# Below this a key may be found by trying, which a plain digest does not slow down.
_SHORT_KEY = 20

_NOT_YET = {tuple(path.split(".")): text for path, text in NOT_YET.items()}


def effective(config: Config) -> dict[str, Any]:
    """Plain data as the file could have it, with secrets masked."""
    return config.model_dump(mode="json")


def notes(config: Config) -> list[str]:
    """One line for each thing that was set but does nothing yet, or that deserves a second thought."""
    return [
        *_not_yet(config, ()),
        *_batch(config),
        *_queues(config),
        *_prefixes(config),
        *_short_keys(config),
        *_plain_keys(config),
        *_open_to_all(config),
    ]


def _not_yet(value: object, path: tuple[str, ...]) -> Iterator[str]:
    if text := next((text for pattern, text in _NOT_YET.items() if _matches(path, pattern)), None):
        yield f"{'.'.join(path)}: {text}"
        return
    if isinstance(value, Section):
        for name, field in type(value).model_fields.items():
            chosen = getattr(value, name)
            default = field.get_default(call_default_factory=True)
            # None is "off" or "not there": what a feature that has not come does anyway. So are plain defaults.
            idle = chosen is None or (chosen == default and not isinstance(chosen, Section))
            if name in value.model_fields_set and not idle:
                yield from _not_yet(chosen, (*path, name))
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _not_yet(entry, (*path, name))
    elif isinstance(value, tuple):
        for index, entry in enumerate(value):
            yield from _not_yet(entry, (*path, str(index)))


def _matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    return len(path) == len(pattern) and all(want in ("*", step) for step, want in zip(path, pattern, strict=True))


def _batch(config: Config) -> Iterator[str]:
    if (config.store.durable_url or config.store.url).startswith(SQLITE):
        return
    for name, endpoint in config.endpoints.items():
        if endpoint.mode == "batch":
            yield f"endpoints.{name}.mode: without a store on the disk nothing can wait, so calls are answered at once"


def _queues(config: Config) -> Iterator[str]:
    for name, backend in config.backends.items():
        if (
            isinstance(backend, RemoteBackend)
            and backend.max_running is None
            and "max_queue" in backend.model_fields_set
        ):
            yield f"backends.{name}.max_queue: without `max_running` nothing waits"


def _short_keys(config: Config) -> Iterator[str]:
    for index, key in enumerate(config.auth.keys):
        if key.key is not None and len(key.key.get_secret_value()) < _SHORT_KEY:
            yield f"auth.keys.{index}.key: shorter than {_SHORT_KEY} characters; `refrain keys new` makes a good one"


def _plain_keys(config: Config) -> Iterator[str]:
    jwt = config.auth.jwt
    if jwt is not None and (url := urlsplit(jwt.jwks_url)).scheme == "http" and not is_loopback(url.hostname or ""):
        yield "auth.jwt.jwks_url: without https, whoever is on the way can put in keys of their own and sign tokens"


def _prefixes(config: Config) -> Iterator[str]:
    remote = [name for name, backend in config.backends.items() if not isinstance(backend, LocalBackend)]
    for name, endpoint in config.endpoints.items():
        if remote and endpoint.prefix_scope != "tenant":
            yield f"endpoints.{name}.prefix_scope: {', '.join(remote)} does not heed it yet, only a local engine does"


def _open_to_all(config: Config) -> Iterator[str]:
    """With several tenants, what is not bound to some of them is open to all of them: perhaps not what was meant."""
    tenants = sorted({key.tenant for key in config.auth.keys if key.role != "admin"})
    if len(tenants) < 2 and config.auth.jwt is None:
        return
    who = "every tenant of the identity provider" if config.auth.jwt is not None else ", ".join(tenants)
    for name, retriever in config.retrievers.items():
        if not retriever.tenants:
            yield f"retrievers.{name}.tenants: not set, so its documents are for all tenants ({who})"
    if unbound := [name for name, endpoint in config.endpoints.items() if not endpoint.allow.tenants]:
        yield f"endpoints: {', '.join(unbound)}: `allow.tenants` is not set, so all tenants may use them ({who})"
    for name, endpoint in config.endpoints.items():
        if endpoint.share == "public":
            yield f"endpoints.{name}.share: public, so one tenant may get an answer that another one's request has made"
        if endpoint.prefix_scope == "public":
            what = "the time of an answer tells a tenant whether another one's prompts begin like its own"
            yield f"endpoints.{name}.prefix_scope: public, so {what}"
