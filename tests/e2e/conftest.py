"""A scripted upstream and a gateway on real sockets, one pair for each module."""

import itertools
from collections.abc import Iterator

import pytest

from tests.support.gateway import Running, config_text, running
from tests.support.upstream import Upstream, numbered, upstream

_number = itertools.count(1)

# More endpoints than the support has, and a price.
EXTRA = """
  textual: {mode: request_response, normalize: text}
  lasting: {mode: request_response, cache: {exact: {ttl: 60s, stale_if_error: 1h}}}
  twin: {mode: request_response, share: tenant}
prices: {priced-model: {input: 1.0, output: 2.0}}
"""


@pytest.fixture(scope="module")
def up() -> Iterator[Upstream]:
    with upstream() as app:
        yield app


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test changed about the upstream's script and the gateway's clock ends with it."""
    up = request.getfixturevalue("up") if "up" in request.fixturenames else None
    gw = request.getfixturevalue("gw") if "gw" in request.fixturenames else None
    yield
    if up is not None:
        up.script = numbered
    if gw is not None:
        gw.clock.frozen, gw.clock.offset = None, 0.0


@pytest.fixture
def prompt() -> str:
    """A prompt that no other test uses, so that tests share no entries."""
    return f"Prompt number {next(_number)}?"
