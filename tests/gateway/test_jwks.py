"""The provider's keys: which are taken, and how they change."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import jwks
from gateway.jwks import PAUSE, SigningKeys, signers
from tests.gateway.desk import Mono, happens, reading
from tests.gateway.values import json_values, some
from tests.support.issuer import Answer, Issuer, Pair, base64url, issuer, private_key

RSA = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
EC = Pair("ec", "ES256", private_key("ES256"))
RS = Pair("rs", "RS256", private_key("RS256"))
ED = Pair("ed", "EdDSA", private_key("EdDSA"))


@pytest.fixture
def idp() -> Iterator[Issuer]:
    with issuer() as provider:
        yield provider


@pytest.fixture
def mono() -> Mono:
    return Mono()


def algorithms(*keys: Any) -> set[str]:
    return {signer.alg for signer in signers(keys)}


# Which keys are taken


@pytest.mark.parametrize(
    ("alg", "fits"),
    [
        ("RS256", RSA),
        ("ES256", {"ES256"}),
        ("ES384", {"ES384"}),
        ("ES512", {"ES512"}),
        ("EdDSA", {"EdDSA"}),
        ("Ed448", {"EdDSA"}),
    ],
)
async def test_a_key_fits_the_algorithms_of_its_type(alg: str, fits: set[str], idp: Issuer, mono: Mono) -> None:
    pair = idp.add("k1", alg)
    async with reading(idp, mono) as keys:
        for name in (*RSA, "ES256", "ES384", "ES512", "EdDSA"):
            found = keys.find("k1", name)
            assert (found is not None) == (name in fits), name
            if found is not None:
                assert found.Algorithm.verify(b"data", found.key, pair.sign(b"data", name))
        for other in ("HS256", "HS512", "none", "ES256K", ""):
            assert keys.find("k1", other) is None


def test_a_key_that_states_an_algorithm_is_used_for_that_only() -> None:
    assert algorithms(RS.jwk(alg="PS384")) == {"PS384"}
    assert algorithms(EC.jwk(alg="ES256")) == {"ES256"}
    others: list[Any] = ["ES384", "RS256", "HS256", "none", "", 5, ["ES256"], {}]
    for stated in others:
        assert algorithms(EC.jwk(alg=stated)) == set()


@pytest.mark.parametrize(
    "jwk",
    [
        EC.jwk(use="enc"),
        EC.jwk(use=["sig"]),
        EC.jwk(key_ops=["sign"]),
        EC.jwk(key_ops="verify"),
        EC.jwk(key_ops=[]),
        EC.jwk(kid=5),
        EC.jwk(crv="P-384"),
        EC.jwk(crv="secp256k1"),
        EC.jwk(crv=["P-256"]),
        EC.jwk(kty="ec"),
        EC.jwk(kty=["EC"]),
        EC.jwk(x=None),
        EC.jwk(x=5),
        EC.jwk(x="é"),
        EC.jwk(y=EC.jwk()["x"]),
        EC.jwk(d="AAAA"),
        RS.jwk(n=None),
        RS.jwk(n=[]),
        RS.jwk(e="AQ"),
        RS.jwk(n="AQAB"),
        RS.jwk(n=base64url(b"\xff" * 2049)),
        ED.jwk(crv="X25519"),
        ED.jwk(x="AAAA"),
        Pair("weak", "RS256", private_key("RS256", bits=1024)).jwk(),
        {"kty": "oct", "kid": "ec", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", "alg": "HS256"},
        {"kty": "oct", "kid": "ec", "k": "c2VjcmV0", "alg": "ES256", "crv": "P-256"},
        {},
        None,
        "key",
        ["kty"],
    ],
)
async def test_what_is_no_usable_key_spoils_nothing(jwk: Any) -> None:
    assert algorithms(jwk) == set()
    assert algorithms(jwk, EC.jwk(), jwk) == {"ES256"}


def test_what_else_a_key_may_say() -> None:
    for jwk in (EC.jwk(use=None), EC.jwk(key_ops=["verify"]), EC.jwk(x5c=["AAAA"], x5u="http://127.0.0.1:9/", nbf=1)):
        assert algorithms(jwk) == {"ES256"}
    assert algorithms({**EC.jwk(), "use": None, "alg": None, "key_ops": None}) == {"ES256"}


@pytest.mark.slow
@some
@given(
    st.dictionaries(st.sampled_from(["kty", "crv", "x", "y", "n", "e", "alg", "use", "kid", "key_ops"]), json_values()),
    st.sampled_from([EC.jwk(), RS.jwk(), ED.jwk(), {}]),
)
def test_no_key_can_stop_the_reading(changes: dict[str, Any], base: dict[str, Any]) -> None:
    assert {"ES256"} <= algorithms({**base, **changes}, EC.jwk()) <= RSA | {"ES256", "EdDSA"}


async def test_a_token_without_key_id_needs_the_only_key_that_fits(idp: Issuer, mono: Mono) -> None:
    idp.add("a", "ES256")
    idp.add(None, "ES384")
    async with reading(idp, mono) as keys:
        assert keys.find(None, "ES256") is keys.find("a", "ES256") is not None
        assert keys.find(None, "ES384") is not None
        assert keys.find("", "ES384") is None
        idp.add("b", "ES256")
        await keys.refresh()
        assert keys.find(None, "ES256") is None
        assert keys.find("a", "ES256") is not None
        assert keys.find(None, "ES384") is not None


async def test_an_id_that_two_keys_have_names_neither(idp: Issuer, mono: Mono) -> None:
    first = idp.add("a", "ES256")
    idp.extra.append(first.jwk())  # the same once more is one
    async with reading(idp, mono) as keys:
        assert keys.find("a", "ES256") is not None
        idp.add("a", "ES256")
        idp.add("a", "ES384")
        await keys.refresh()
        assert keys.find("a", "ES256") is None
        assert keys.find("a", "ES384") is not None


# Rotation


async def test_a_new_key_is_known_after_one_fetch(idp: Issuer, mono: Mono) -> None:
    idp.add("old")
    async with reading(idp, mono) as keys:
        assert len(idp.requests) == 1
        idp.add("new")
        mono.now += PAUSE
        assert keys.find("new", "ES256") is None
        assert await keys.look_up("new", "ES256") is not None
        assert len(idp.requests) == 2
        assert await keys.look_up("new", "ES256") is not None
        assert await keys.look_up("old", "ES256") is not None
        assert len(idp.requests) == 2
        assert keys.version == 0  # none has gone


async def test_unknown_keys_cost_one_fetch_in_ten_seconds(idp: Issuer, mono: Mono) -> None:
    idp.add("known")
    async with reading(idp, mono) as keys:
        for number in range(100):
            assert await keys.look_up(f"unknown {number}", "ES256") is None
        mono.now += PAUSE - 0.01
        assert await keys.look_up("unknown", "ES256") is None
        assert len(idp.requests) == 1
        for number in range(1, 4):
            mono.now += PAUSE
            found = await asyncio.gather(*(keys.look_up(f"unknown {n}", "ES256") for n in range(100)))
            assert found == [None] * 100
            assert len(idp.requests) == 1 + number


async def test_all_who_wait_share_one_fetch(idp: Issuer, mono: Mono) -> None:
    async with reading(idp, mono) as keys:
        idp.add("new")
        gate = threading.Event()
        idp.answer = Answer(idp.keys(), gate=gate)
        mono.now += PAUSE
        waiting = [asyncio.create_task(keys.look_up("new", "ES256")) for _ in range(50)]
        await happens(lambda: len(idp.requests) == 2)
        waiting[0].cancel()  # the one that began it
        mono.now += PAUSE
        late = asyncio.create_task(keys.look_up("new", "ES256"))
        await asyncio.sleep(0)
        gate.set()
        found = await asyncio.gather(*waiting[1:], late)
        assert None not in found
        assert len(idp.requests) == 2
        assert waiting[0].cancelled()


async def test_who_waits_when_it_is_closed_is_told(idp: Issuer, mono: Mono) -> None:
    keys = SigningKeys(idp.jwks_url, mono=mono)
    await keys.start()
    idp.answer = Answer(gate=threading.Event())
    mono.now += PAUSE
    waiting = asyncio.create_task(keys.look_up("new", "ES256"))
    await happens(lambda: len(idp.requests) == 2)
    await keys.aclose()
    assert await waiting is None
    mono.now += PAUSE
    assert await keys.look_up("new", "ES256") is None
    assert len(idp.requests) == 2


async def test_a_withdrawn_key_is_trusted_no_more(idp: Issuer, mono: Mono) -> None:
    first, second = idp.add("first"), idp.add("second")
    async with reading(idp, mono) as keys:
        before = keys.version
        await keys.refresh()
        idp.pairs.reverse()
        await keys.refresh()
        assert keys.version == before  # the same keys, in another order
        idp.withdraw(first)
        await keys.refresh()
        assert keys.find("first", "ES256") is None
        assert keys.find("second", "ES256") is not None
        assert keys.version == before + 1
        idp.withdraw(second)
        idp.add("second")  # another key of that name
        await keys.refresh()
        assert keys.version == before + 2


async def test_less_that_a_key_is_good_for_is_a_change_too(idp: Issuer, mono: Mono) -> None:
    idp.extra = [RS.jwk()]
    async with reading(idp, mono) as keys:
        idp.extra = [RS.jwk(alg="RS256")]
        await keys.refresh()
        assert keys.version == 1
        assert keys.find("rs", "RS256") is not None
        assert keys.find("rs", "PS256") is None


@pytest.mark.parametrize("extra", [[], [None], [{"kty": "oct", "k": "c2VjcmV0"}]])
async def test_a_set_without_usable_keys_is_believed(extra: list[Any], idp: Issuer, mono: Mono) -> None:
    pair = idp.add("gone")
    async with reading(idp, mono) as keys:
        idp.withdraw(pair)
        idp.extra = extra
        await keys.refresh()
        assert keys.find("gone", "ES256") is None
        assert keys.ready
        assert keys.version == 1


async def test_it_reads_them_again_by_itself(idp: Issuer, mono: Mono, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "REFRESH", 0.02)
    pair = idp.add("k1")
    async with reading(idp, mono) as keys:
        idp.answer = Answer(b"\xff not JSON")
        await happens(lambda: len(idp.requests) >= 4)  # no failure ends it
        assert keys.find("k1", "ES256") is not None
        idp.withdraw(pair)
        idp.answer = None
        await happens(lambda: keys.version == 1)
        assert keys.find("k1", "ES256") is None
    count = len(idp.requests)
    await asyncio.sleep(0.1)
    assert len(idp.requests) == count  # closed
