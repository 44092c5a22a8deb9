"""A small identity provider on a real socket: it makes keys, publishes them, signs tokens, and fails as it is told."""

import json
import socket
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Json = dict[str, Any]
Sign = Callable[[bytes], bytes]
AUDIENCE = "refrain"
CURVES: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def private_key(alg: str, *, bits: int = 2048) -> Any:
    """A new one for this algorithm; `Ed448` is EdDSA's other curve."""
    if alg in CURVES:
        return ec.generate_private_key(CURVES[alg])
    if alg == "Ed448":
        return ed448.Ed448PrivateKey.generate()
    if alg == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, bits)


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def compact(header: Json | bytes, claims: Json | bytes, sign: Sign) -> bytes:
    """A token of these very parts."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims)]
    signed = ".".join(base64url(part) for part in parts).encode()
    return signed + b"." + base64url(sign(signed)).encode()


@dataclass
class Pair:
    """A key of the provider; `alg` is what it signs with."""

    kid: str | None
    alg: str
    private: Any = field(repr=False)

    def sign(self, data: bytes, alg: str | None = None) -> bytes:
        return bytes(jwt.get_algorithm_by_name(alg or self.alg).sign(data, self.private))

    def jwk(self, **changes: Any) -> Json:
        """The public half as it is published; a change to None takes a member away."""
        named = {"kid": self.kid, "use": "sig"}
        public = jwt.get_algorithm_by_name(self.alg).to_jwk(self.private.public_key(), as_dict=True)
        public.pop("key_ops", None)
        return {name: value for name, value in {**public, **named, **changes}.items() if value is not None}

    def public_bytes(self, encoding: Encoding) -> bytes:
        return bytes(self.private.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo))

    def token(self, claims: Json | bytes, header: Json | None = None) -> bytes:
        head = {"alg": self.alg, "typ": "JWT", **({} if self.kid is None else {"kid": self.kid}), **(header or {})}
        return compact(head, claims, lambda data: self.sign(data, self.alg))


@dataclass
class Answer:
    """What is said instead of the keys. Nothing is sent before `gate` is set; with `drip` the body comes a byte at a
    time, and slowly."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    gate: threading.Event | None = None
    drip: bool = False


class Issuer:
    """`pairs` are published, and `extra` beside them, unless there is an `answer` to give instead. `requests` are the
    paths asked for."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self.extra: list[Any] = []
        self.answer: Answer | None = None
        self.requests: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.ended = threading.Event()
        self._server: _Server | None = None
        self._place = socket.socket()  # holds the port, and refuses connections, while it is down
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port = int(self._place.getsockname()[1])

    @property
    def url(self) -> str:
        """Its name, as tokens have it in `iss`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks.json"

    def add(self, kid: str | None, alg: str = "ES256", **options: Any) -> Pair:
        """Make a key and publish it from now on."""
        pair = Pair(kid, alg if alg != "Ed448" else "EdDSA", private_key(alg, **options))
        self.pairs.append(pair)
        return pair

    def withdraw(self, pair: Pair) -> None:
        self.pairs.remove(pair)

    def claims(self, now: float | None = None, **changes: Any) -> Json:
        """Good ones for ten minutes; a change to `...` leaves a claim out."""
        start = int(time.time() if now is None else now)
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "u1", "org_id": "acme", "iat": start, "exp": start + 600}
        return {name: value for name, value in {**good, **changes}.items() if value is not ...}

    def token(self, now: float | None = None, *, pair: Pair | None = None, **changes: Any) -> bytes:
        """A token signed with the latest key, or this one."""
        return (pair or self.pairs[-1]).token(self.claims(now, **changes))

    def keys(self) -> bytes:
        return json.dumps({"keys": [*(pair.jwk() for pair in self.pairs), *self.extra]}).encode()

    def up(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.issuer = self
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def down(self) -> None:
        """From now on its port is closed."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        self.ended.set()
        self.down()
        self._place.close()


class _Server(ThreadingHTTPServer):
    issuer: Issuer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        issuer = self.server.issuer
        issuer.requests.append(self.path)
        issuer.heads.append({name.lower(): value for name, value in self.headers.items()})
        answer = issuer.answer or Answer(issuer.keys(), headers={"content-type": "application/json"})
        while answer.gate is not None and not answer.gate.wait(0.05):
            if issuer.ended.is_set():
                return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not answer.drip:
            self.wfile.write(answer.body)
            return
        for byte in answer.body:
            if issuer.ended.wait(0.05):
                return
            self.wfile.write(bytes([byte]))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""


@contextmanager
def issuer() -> Iterator[Issuer]:
    """A provider that is up, without keys yet."""
    provider = Issuer()
    provider.up()
    try:
        yield provider
    finally:
        provider.close()
