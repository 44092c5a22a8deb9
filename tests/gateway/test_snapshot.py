import time

import pytest

from cache.freshness import Life
from gateway.config import Config
from gateway.config.load import parse_config
from gateway.errors import ApiError
from gateway.fleet import build, used_backends
from gateway.identity import Identity
from gateway.snapshot import Snapshot

CONFIG = parse_config(
    """
auth: {keys: [{key: rf-alice-key-0123456789, tenant: acme, user: alice}]}
backends:
  one: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
  two: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
  idle: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
models: {"GPT-4o*": two, "gpt-*": one, "exact-name": two}
endpoints:
  default: {}
  short: {cache: {exact: {ttl: 60s}}}
  stale: {cache: {exact: {ttl: 60s, stale_while_revalidate: 5s, stale_if_error: 1h}}}
  uncached: {cache: {exact: off}}
  tolerant: {normalize: text}
  pinned: {backend: two}
""",
    {},
)


def snapshot(config: Config = CONFIG) -> Snapshot:
    backends = {name: build(name, config.backends[name]) for name in used_backends(config)}
    return Snapshot.of(config, 7, backends, Identity(time.time).authenticator(config.auth))


SNAPSHOT = snapshot()


def test_endpoints_are_compiled() -> None:
    assert SNAPSHOT.generation == 7
    assert SNAPSHOT.endpoint("short").life == Life(60, 0)
    assert SNAPSHOT.endpoint("stale").life == Life(60, if_error=3600, revalidate=5)
    assert SNAPSHOT.endpoint("uncached").life is None
    assert SNAPSHOT.endpoint("default").name == "default"


def test_settings_that_change_an_answer_have_another_digest() -> None:
    digests = {name: endpoint.settings for name, endpoint in SNAPSHOT.endpoints.items()}
    assert digests["tolerant"] != digests["default"]
    # How long an answer lives does not change it: another TTL must not empty the cache.
    assert digests["short"] == digests["stale"] == digests["uncached"] == digests["default"]


@pytest.mark.parametrize("name", ["", "nobody", "DEFAULT", "default ", "x" * 5000, "a\nb", "../admin"])
def test_an_unknown_endpoint_is_a_404_that_repeats_little(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        SNAPSHOT.endpoint(name)
    assert (caught.value.status, caught.value.code) == (404, "endpoint_not_found")
    assert len(caught.value.message) < 250
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        ("gpt-4", "one"),
        ("GPT-4", "one"),
        ("gpt-4o-mini", "two"),
        ("gpt-4O", "two"),
        ("EXACT-name", "two"),
        ("gpt-", "one"),
    ],
)
def test_the_first_glob_that_matches_wins_without_regard_to_case(model: str, backend: str) -> None:
    assert SNAPSHOT.route(SNAPSHOT.endpoint("default"), model).name == backend


@pytest.mark.parametrize(
    "model", ["claude", "", "xgpt-4", "exact-name-2", "*", "[g]pt-4", "exact?name", "\n", "x" * 300]
)
def test_a_model_that_nothing_matches_is_a_404(model: str) -> None:
    with pytest.raises(ApiError) as caught:
        SNAPSHOT.route(SNAPSHOT.endpoint("default"), model)
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


def test_an_endpoint_with_a_backend_takes_every_model_there() -> None:
    assert SNAPSHOT.route(SNAPSHOT.endpoint("pinned"), "claude").name == "two"


def test_every_route_that_the_configuration_allows_has_a_backend() -> None:
    assert set(used_backends(CONFIG)) == {"one", "two"} == SNAPSHOT.backends.keys()


def test_a_backend_that_stands_in_for_another_is_started_too() -> None:
    endpoint = CONFIG.endpoints["pinned"].model_copy(update={"fallback": ("spare", "one")})
    assert set(used_backends(CONFIG.model_copy(update={"endpoints": {"pinned": endpoint}}))) == {"one", "two", "spare"}


def test_a_snapshot_cannot_be_changed_and_shows_no_key() -> None:
    with pytest.raises(AttributeError):
        SNAPSHOT.generation = 8  # type: ignore[misc]  # this is what the test is about
    with pytest.raises(TypeError):
        SNAPSHOT.config.endpoints["new"] = SNAPSHOT.config.endpoints["default"]  # type: ignore[index]
    assert "rf-alice" not in repr(SNAPSHOT)
