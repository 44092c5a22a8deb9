"""What every test has."""

import os

import pytest

# No test may fetch a model; those that need one have it from a package.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
