"""Signatures of webhooks: the vectors of https://www.standardwebhooks.com, and what is not one of its messages."""

from base64 import b64decode, b64encode
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook

from gateway.retrieval.signature import TOLERANCE, SignatureError, secret_key, sign, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = 1_614_265_330
BODY = b'{"test": 2432232314}'
VECTOR = b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
"""Of the message `msg_p5jXN8AQM9LWM0D4loKWxJek` at NOW, as the specification's libraries test it."""

Heads = dict[bytes, bytes]


def heads(**changes: bytes | None) -> Heads:
    given = {"id": b"msg_p5jXN8AQM9LWM0D4loKWxJek", "timestamp": b"%d" % NOW, "signature": VECTOR, **changes}
    return {b"webhook-" + name.encode(): value for name, value in given.items() if value is not None}


def code(headers: Heads, *, secret: str = SECRET, body: bytes = BODY, now: float = NOW) -> str:
    """What is wrong with it; "" for nothing."""
    try:
        assert verify(secret_key(secret), headers, body, now) == headers[b"webhook-id"]
    except SignatureError as error:
        return error.code
    return ""


def test_the_vector_of_the_specification() -> None:
    assert sign(secret_key(SECRET), b"msg_p5jXN8AQM9LWM0D4loKWxJek", b"%d" % NOW, BODY) == VECTOR
    assert code(heads()) == ""


@pytest.mark.parametrize("body", [b"{}", '{"id": "année.md"}'.encode(), b" " * 5000], ids=["small", "umlaut", "long"])
def test_what_the_official_package_signs_is_right(body: bytes) -> None:
    at = datetime.fromtimestamp(NOW, tz=UTC)
    signature = Webhook(SECRET).sign("msg_1", at, body.decode()).encode()
    assert code(heads(id=b"msg_1", signature=signature), body=body) == ""


def test_a_secret_is_a_text_or_base64_after_its_mark() -> None:
    raw = bytes(range(32))
    encoded = b64encode(raw).decode()
    assert secret_key(f"whsec_{encoded}") == secret_key(f"whsec_{encoded.rstrip('=')}") == raw
    assert secret_key(encoded) == encoded.encode()  # without the mark it is a text
    assert secret_key("a plain word") == b"a plain word"
    for broken in ("whsec_", "whsec_***", "whsec_a", "whsec_ä", "whsec_AA AA"):
        with pytest.raises(ValueError, match=r"."):
            secret_key(broken)


OTHER = sign(b"another secret", b"msg_p5jXN8AQM9LWM0D4loKWxJek", b"%d" % NOW, BODY)
WRONG: dict[str, Heads] = {
    "no headers": {},
    "no id": heads(id=None),
    "no timestamp": heads(timestamp=None),
    "no signature": heads(signature=None),
    "empty id": heads(id=b""),
    "another id": heads(id=b"msg_2"),
    "an id too long": heads(id=b"m" * 257),
    "another timestamp": heads(timestamp=b"%d" % (NOW + 1)),
    "a timestamp with a fraction": heads(timestamp=b"%d.0" % NOW),
    "a negative timestamp": heads(timestamp=b"-1"),
    "a timestamp that is none": heads(timestamp=b"nan"),
    "a timestamp without end": heads(timestamp=b"9" * 4000),
    "another secret's": heads(signature=OTHER),
    "without its version": heads(signature=VECTOR.removeprefix(b"v1,")),
    "another version": heads(signature=b"v1a" + VECTOR.removeprefix(b"v1")),
    "cut": heads(signature=VECTOR[:-1]),
    "no base64": heads(signature=b"v1,***"),
    "no comma": heads(signature=b"v1"),
    "no ASCII": heads(signature="v1,ä".encode()),
    "empty": heads(signature=b""),
    "joined by a comma": heads(signature=OTHER + b", " + VECTOR + b","),
    "after too many others": heads(signature=b" ".join([OTHER] * 16 + [VECTOR])),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_signed_is_refused(name: str) -> None:
    assert code(WRONG[name]) == "invalid_signature"


def test_another_body_or_secret_is_refused() -> None:
    assert code(heads(), body=BODY + b" ") == "invalid_signature"
    assert code(heads(), body=b"") == "invalid_signature"
    assert code(heads(), secret="whsec_" + b64encode(b"x" * 24).decode()) == "invalid_signature"
    assert code(heads(), secret=SECRET.removeprefix("whsec_")) == "invalid_signature"


def test_one_right_signature_of_several_is_enough() -> None:
    for signatures in ([OTHER, VECTOR], [VECTOR, OTHER], [b"v1a,xyz", b"", VECTOR], [b"v1", VECTOR]):
        assert code(heads(signature=b" ".join(signatures))) == ""


@pytest.mark.parametrize("way", [1, -1], ids=["from behind", "from ahead"])
def test_clocks_may_differ_by_five_minutes(way: int) -> None:
    assert code(heads(), now=NOW + way * TOLERANCE) == ""
    assert code(heads(), now=NOW + way * (TOLERANCE + 0.5)) == "stale_timestamp"


def test_who_has_not_signed_is_not_told_of_the_clock() -> None:
    assert code(heads(signature=OTHER), now=NOW + 10_000) == "invalid_signature"


def test_the_vector_is_no_accident_of_our_own() -> None:
    """The official package verifies what we sign, at its own time."""
    now = int(datetime.now(tz=UTC).timestamp())
    id, at = b"msg_1", b"%d" % now
    signature = sign(secret_key(SECRET), id, at, BODY)
    assert len(b64decode(signature.removeprefix(b"v1,"))) == 32
    given = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature.decode()}
    assert Webhook(SECRET).verify(BODY, given) == {"test": 2432232314}
