"""One browser, and a gateway that answers by meaning too, for each module."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import chromium
from tests.support.gateway import Running, config_text, running
from tests.support.semantic import by_wording
from tests.support.upstream import Upstream

CHIEF, WEBAPP = "rf-test-chief-key", "rf-test-webapp-key"
MORE = f"""
    - {{key: {CHIEF}, tenant: acme, user: chief, role: tenant_admin}}
    - {{key: {WEBAPP}, tenant: acme, user: webapp, delegate: true}}
"""
PRICES = "prices: {test-model: {input: 1000.0, output: 2000.0}}\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    """A new one for each test, so that its figures begin at nothing."""
    text = config_text(up.url, extra=PRICES).replace("\nendpoints:", f"{MORE}\nendpoints:", 1)
    embedder = by_wording()
    with running(text, embedders=lambda config: embedder) as gateway:
        yield gateway
