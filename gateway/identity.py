"""What authentication keeps while configurations come and go: revoked keys, the signing keys of the identity provider,
and what the principals have used of their limits."""

import asyncio
from collections.abc import Callable

from gateway.auth import Authenticator, Key
from gateway.config import Auth, Jwt
from gateway.jwks import SigningKeys
from gateway.limits import Meters
from gateway.principal import Principal
from gateway.state import State
from gateway.tokens import Tokens


class Identity:
    """`clock` is wall-clock seconds. Nothing is known to be revoked before `open`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.meters = Meters(clock)
        self._clock = clock
        self._revoked: set[bytes] = set()
        self._keys: dict[bytes, Key] = {}
        self._jwt: Jwt | None = None
        self._signing: SigningKeys | None = None
        self._tokens: Tokens | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, state: State) -> None:
        """Take up what an earlier process has left. Raises StateError."""
        self._revoked.update(await state.revoked())
        self.meters.windows.restore(await state.counters(self._clock()))

    def authenticator(self, config: Auth) -> Authenticator:
        """Who may come in under this configuration; revocations reach it as long as it is the latest one. In an event
        loop, since signing keys are read there."""
        self._prepare(config.jwt)
        self._keys = {}
        for key in config.keys:
            principal = Principal(key.tenant, key.user, key.permissions, key.role)
            meter = self.meters.meter(principal, key.limits)
            self._keys[key.digest] = known = Key(key.digest, principal, delegate=key.delegate, meter=meter)
            known.revoked = key.digest in self._revoked
        return Authenticator(config.required, self._keys, self._tokens)

    def _prepare(self, config: Jwt | None) -> None:
        """Have the signing keys that this configuration needs. Nothing waits for them but the tokens."""
        if config == self._jwt:
            return
        if self._signing is not None:
            closing = asyncio.create_task(self._signing.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._jwt, self._signing, self._tokens = config, None, None
        if config is not None:
            self._signing = SigningKeys(config.jwks_url)
            self._tokens = Tokens(config, self._signing, self._clock)
            self._signing.begin()

    @property
    def keys(self) -> list[Key]:
        """The configured keys, revoked ones too, in the order of the file."""
        return list(self._keys.values())

    def revoke(self, key: Key) -> None:
        """From now on this key is no key."""
        self._revoked.add(key.digest)
        key.revoked = True

    async def aclose(self) -> None:
        await asyncio.gather(*self._closing)
        if self._signing is not None:
            await self._signing.aclose()
