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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import structlog
from jwt import PyJWK
from jwt.exceptions import PyJWTError

REFRESH = 300.0
PAUSE = 10.0
MAX_AGE = 86_400.0
TIMEOUT = aiohttp.ClientTimeout(total=5.0)
MAX_BYTES = 2**20
MAX_KEYS = 100
MIN_RSA_BITS = 2048

RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
BY_CURVE = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
PUBLIC = ("kty", "n", "e", "crv", "x", "y")

log = structlog.get_logger("refrain")

Named = tuple[str | None, str]
"""Key id and algorithm."""


class SigningKeys:
    """`mono` is a monotonic clock in seconds."""

    def __init__(self, url: str, *, mono: Callable[[], float] = time.monotonic) -> None:
        self.version = 0
        self._url = url
        self._mono = mono
        self._raw: dict[Named, Mapping[str, Any]] = {}  # what each key was made of, to see whether it is the same
        self._keys: dict[Named, PyJWK] = {}
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def ready(self) -> bool:
        """Is there a set of keys that is not too old to be trusted?"""
        return self._fetched is not None and self._mono() - self._fetched < MAX_AGE

    async def start(self) -> None:
        """Read the keys, and go on reading them. A provider that is down does not stop the start."""
        self._session = aiohttp.ClientSession(timeout=TIMEOUT, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        await self.refresh()
        self._loop = asyncio.create_task(self._refresh_for_ever())

    async def aclose(self) -> None:
        for task in (self._loop, self._fetching):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if self._session is not None:
            await self._session.close()

    def find(self, kid: str | None, alg: str) -> PyJWK | None:
        """The key for this signature. Without a key id: the only one that fits."""
        if not self.ready:
            return None
        if kid is not None:
            return self._keys.get((kid, alg))
        fitting = [key for (_, fits), key in self._keys.items() if fits == alg]
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
        # A client that leaves does not end it for the others.
        await asyncio.shield(self._fetching)

    def _may_try(self) -> bool:
        return self._tried is None or self._mono() - self._tried >= PAUSE

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH)
            await self.refresh()

    async def _refresh(self) -> None:
        try:
            self._take(await self._fetch())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError) as error:
            # The text of such errors may hold the whole URL.
            log.warning("signing keys could not be read", url=self._url.partition("?")[0], kind=type(error).__name__)
            if self._keys and not self.ready:
                self._put({}, {})
        finally:
            self._fetching = None

    async def _fetch(self) -> list[Any]:
        """The keys of the set, as they are. Raises ValueError for what is no set."""
        assert self._session is not None, "start() comes first"
        async with self._session.get(self._url, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            raw = await response.content.read(MAX_BYTES + 1)
            while len(raw) <= MAX_BYTES and (more := await response.content.read(MAX_BYTES + 1)):
                raw += more
        if len(raw) > MAX_BYTES:
            raise ValueError("too large")
        found = msgspec.json.decode(raw)
        keys = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(keys, list) or len(keys) > MAX_KEYS:
            raise ValueError("not a set of keys")
        return keys

    def _take(self, keys: Iterable[Any]) -> None:
        raw: dict[Named, Mapping[str, Any]] = {}
        made: dict[Named, PyJWK] = {}
        for number, jwk in enumerate(keys):
            for alg in _algorithms(jwk):
                public = {name: jwk[name] for name in PUBLIC if name in jwk}
                kid = jwk.get("kid")
                # Those without an id are found by their algorithm only.
                name = (kid if isinstance(kid, str) else f"\0{number}", alg)
                with suppress(PyJWTError, ValueError, TypeError):
                    key = PyJWK(public, alg)
                    if getattr(key.key, "key_size", MIN_RSA_BITS) >= MIN_RSA_BITS or public["kty"] != "RSA":
                        raw[name], made[name] = public, key
        self._fetched = self._mono()
        self._put(raw, made)

    def _put(self, raw: dict[Named, Mapping[str, Any]], made: dict[Named, PyJWK]) -> None:
        if any(raw.get(name) != former for name, former in self._raw.items()):
            self.version += 1
        self._raw, self._keys = raw, made


def _algorithms(jwk: Any) -> tuple[str, ...]:
    """Those of our algorithms that this key may be used with."""
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
        return ()
    operations = jwk.get("key_ops")
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return ()
    kty, curve, stated = jwk.get("kty"), jwk.get("crv"), jwk.get("alg")
    if not isinstance(kty, str) or not isinstance(curve, str | None):
        return ()
    fitting = RSA if kty == "RSA" else BY_CURVE.get((kty, curve or ""), ())
    return fitting if stated is None else tuple(alg for alg in fitting if alg == stated)
