"""The signing keys of an identity provider, and what happens when it changes them.

- They are read at the start, every REFRESH seconds, and when a token names one that is not known: at most once in PAUSE
  seconds, whatever tokens come, and once for all that wait.
- A key that the provider withdraws is trusted no longer than to the next reading. `version` rises then, and whatever
  was verified under the one before it is not trusted either.
- While the provider is down the keys stay good for MAX_AGE.
- Only public keys for asymmetric signatures are taken. What else the set holds is left out, and spoils nothing.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import structlog
from jwt import PyJWK

REFRESH = 300.0
PAUSE = 10.0
MAX_AGE = 86_400.0
TIMEOUT = 5.0
MAX_BYTES = 2**20
MAX_KEYS = 100
RSA_BITS = range(2048, 16384 + 1)
"""Shorter keys can be broken; longer ones OpenSSL does not use."""

RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
BY_CURVE = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
"""What a public key of each type is made of."""

log = structlog.get_logger("refrain")


@dataclass(frozen=True, slots=True)
class Signer:
    """A key for one algorithm. Two are the same if they are made of the same."""

    kid: str | None
    alg: str
    parts: tuple[str, ...] = field(repr=False)
    key: PyJWK = field(repr=False, compare=False)


class SigningKeys:
    """`mono` is a monotonic clock in seconds."""

    def __init__(self, url: str, *, mono: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._mono = mono
        self._version = 0
        self._signers: frozenset[Signer] = frozenset()
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def ready(self) -> bool:
        """Is there a set of keys that is not too old to be trusted?"""
        return self._fetched is not None and self._mono() - self._fetched < MAX_AGE

    @property
    def version(self) -> int:
        """Rises whenever a key is trusted no longer."""
        if self._signers and not self.ready:
            self._put(frozenset())
        return self._version

    async def start(self) -> None:
        """Read the keys, and go on reading them. A provider that is down does not stop the start."""
        self.begin()
        await self.refresh()

    def begin(self) -> None:
        """Begin to read them; `look_up` waits for what is being read."""
        self._session = aiohttp.ClientSession(
            headers={"user-agent": "refrain", "accept-encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        self._loop = asyncio.create_task(self._refresh_for_ever())

    async def aclose(self) -> None:
        for task in (self._loop, self._fetching):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._session is not None:
            await self._session.close()

    def find(self, kid: str | None, alg: str) -> PyJWK | None:
        """The key for this signature: the only one with this id or, without an id, the only one that fits."""
        if not self.ready:
            return None
        fitting = [s.key for s in self._signers if s.alg == alg and (kid is None or s.kid == kid)]
        return fitting[0] if len(fitting) == 1 else None

    async def look_up(self, kid: str | None, alg: str) -> PyJWK | None:
        """The same; reads the keys anew where this one is not known, if they were not read just now."""
        found = self.find(kid, alg)
        if found is None and (self._fetching is not None or self._may_try()):
            await self.refresh()
            found = self.find(kid, alg)
        return found

    async def refresh(self) -> None:
        """Read the keys; whoever comes while they are being read waits for that."""
        if self._fetching is None:
            self._tried = self._mono()
            self._fetching = asyncio.create_task(self._refresh())
        # Whoever stops waiting does not end it for the others, and whoever ends it, by `aclose`, does not end them.
        await asyncio.wait([self._fetching])

    def _may_try(self) -> bool:
        return self._tried is None or self._mono() - self._tried >= PAUSE

    async def _refresh_for_ever(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH)

    async def _refresh(self) -> None:
        try:
            keys = await self._fetch()
            self._put(frozenset(signers(keys)))
            self._fetched = self._mono()
        except Exception as error:
            # Whatever it was, the keys that are known stay, and the next try comes. The text of such errors may hold
            # the whole URL.
            log.warning("signing keys not read", url=self._url.partition("?")[0], error=type(error).__name__)
        finally:
            self._fetching = None

    async def _fetch(self) -> list[Any]:
        """The keys of the set, as they are. Raises ValueError for what is no set, and aiohttp's errors."""
        assert self._session is not None, "start() comes first"
        async with self._session.get(self._url, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError("not a good answer")
            raw = bytearray()
            async for piece in response.content.iter_any():
                raw += piece
                if len(raw) > MAX_BYTES:
                    raise ValueError("too large")
        found = msgspec.json.decode(raw)
        keys = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(keys, list) or len(keys) > MAX_KEYS:
            raise ValueError("not a set of keys")
        return keys

    def _put(self, new: frozenset[Signer]) -> None:
        if self._signers - new:
            self._version += 1
        self._signers = new


def signers(keys: Iterable[Any]) -> Iterable[Signer]:
    """What can be used of a set."""
    for jwk in keys:
        for alg in _algorithms(jwk):
            public = {"kty": jwk["kty"], **{name: jwk[name] for name in PUBLIC[jwk["kty"]] if name in jwk}}
            with suppress(Exception):  # whatever one key is, and its libraries raise, spoils nothing
                key = PyJWK(public, alg)
                if jwk["kty"] != "RSA" or key.key.key_size in RSA_BITS:
                    yield Signer(jwk.get("kid"), alg, tuple(public.values()), key)


def _algorithms(jwk: Any) -> tuple[str, ...]:
    """Those of our algorithms that this key may be used with. What is null counts as absent."""
    if not isinstance(jwk, dict) or jwk.get("use") not in (None, "sig") or not isinstance(jwk.get("kid"), str | None):
        return ()
    operations = jwk.get("key_ops")
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return ()
    if "d" in jwk:
        return ()  # a private key that is published signs for everybody
    kty, curve, stated = jwk.get("kty"), jwk.get("crv"), jwk.get("alg")
    if kty == "RSA":
        fitting: tuple[str, ...] = RSA
    else:
        fitting = BY_CURVE.get((kty, curve), ()) if isinstance(kty, str) and isinstance(curve, str) else ()
    return fitting if stated is None else tuple(alg for alg in fitting if alg == stated)
