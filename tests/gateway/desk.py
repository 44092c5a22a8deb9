"""Who checks tokens, with a real provider and clocks in the test's hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.config import Jwt
from gateway.errors import ApiError
from gateway.jwks import SigningKeys
from gateway.principal import Principal
from gateway.tokens import MAX_TOKEN, Tokens, Verified, looks_like_jwt
from tests.support.gateway import Clock
from tests.support.issuer import AUDIENCE, Issuer
from tests.support.traffic import until

NOW = 1_800_000_000.0


class Mono:
    """A monotonic clock that a test sets ahead."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def reading(idp: Issuer, mono: Mono, query: str = "") -> AsyncIterator[SigningKeys]:
    keys = SigningKeys(idp.jwks_url + query, mono=mono)
    try:
        await keys.start()
        yield keys
    finally:
        await keys.aclose()


async def happens(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(until, condition)


class Desk:
    """A provider, its keys as they are known here, and who checks tokens with them."""

    def __init__(self, idp: Issuer, **claims: str) -> None:
        self.idp = idp
        self.mono = Mono()
        self.clock = Clock(frozen=NOW)
        self.keys = SigningKeys(idp.jwks_url, mono=self.mono)
        names = {"tenant": "org_id", **claims}
        config = Jwt.model_validate({"jwks_url": idp.jwks_url, "issuer": idp.url, "audience": AUDIENCE, **names})
        self.tokens = Tokens(config, self.keys, self.clock)

    async def verify(self, token: bytes) -> Verified:
        assert len(token) > MAX_TOKEN or looks_like_jwt(token)
        return await self.tokens.verify(token)

    async def principal(self, **changes: Any) -> Principal:
        return (await self.verify(self.idp.token(NOW, **changes))).principal

    async def refused(self, token: bytes, status: int = 401) -> str:
        """What is said against it."""
        with pytest.raises(ApiError) as caught:
            await self.tokens.verify(token)
        error = caught.value
        assert error.status == status
        if status == 401:
            assert error.code == "invalid_token"
            assert error.type == "authentication_error"
            assert error.headers == {"www-authenticate": 'Bearer error="invalid_token"', "x-should-retry": "false"}
        return error.message

    async def refused_for(self, **changes: Any) -> str:
        return await self.refused(self.idp.token(NOW, **changes))


@asynccontextmanager
async def open_desk(idp: Issuer, **claims: str) -> AsyncIterator[Desk]:
    made = Desk(idp, **claims)
    try:
        await made.keys.start()
        yield made
    finally:
        await made.keys.aclose()
