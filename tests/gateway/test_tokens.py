"""A token -> who it speaks for. A wrong one is a 401 that says what is wrong and repeats nothing of it."""

import json
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from structlog.testing import capture_logs

from gateway import tokens as module
from gateway.errors import ApiError
from gateway.jwks import MAX_AGE, PAUSE
from gateway.principal import Principal
from gateway.tokens import ALGORITHMS, MAX_TOKEN, SKEW, Verified, looks_like_jwt
from tests.gateway.desk import NOW, Desk, open_desk
from tests.support.issuer import Issuer, Json, Pair, Sign, compact, issuer, private_key

CANARY = "canary-5f0c"


def signed_with(signature: bytes) -> Sign:
    return lambda _: signature


@pytest.fixture(scope="module")
def rs() -> Pair:
    return Pair("rs", "RS256", private_key("RS256"))


@pytest.fixture
def idp(rs: Pair) -> Iterator[Issuer]:
    with issuer() as provider:
        provider.pairs.append(rs)
        provider.add("es", "ES256")  # signs, unless a test says otherwise
        yield provider


@pytest.fixture
async def desk(idp: Issuer) -> AsyncIterator[Desk]:
    async with open_desk(idp) as made:
        yield made


# Good ones


async def test_who_a_token_speaks_for(desk: Desk) -> None:
    verified = await desk.verify(desk.idp.token(NOW, permissions=["hr", "eng"], role="admin"))
    user = f"{desk.idp.url}#u1"
    assert verified == Verified(Principal("acme", user, frozenset({"hr", "eng"}), "member"), NOW + 600 + SKEW, 0)


@pytest.mark.parametrize("alg", sorted(ALGORITHMS | {"Ed448"}))
async def test_every_accepted_algorithm(alg: str, idp: Issuer) -> None:
    pair = idp.add("key", alg)
    async with open_desk(idp) as desk:
        assert (await desk.principal()).tenant == "acme"
        head, claims, signature = idp.token(NOW).split(b".")
        for forged in (
            compact({"alg": pair.alg, "kid": "key"}, idp.claims(NOW), lambda _: b""),
            compact({"alg": pair.alg, "kid": "key"}, idp.claims(NOW), lambda _: bytes(64)),
            b".".join((head, claims, signature[:-8] + b"AAAAAAAA")),
            b".".join((head, idp.token(NOW, org_id="globex").split(b".")[1], signature)),
        ):
            assert "signature" in await desk.refused(forged)


async def test_claims_by_other_names(idp: Issuer) -> None:
    async with open_desk(idp, tenant="https://idp.example/org", user="email", permissions="scope") as desk:
        named = {"https://idp.example/org": "globex", "email": "ann@example.org", "scope": "hr eng"}
        principal = await desk.principal(**named, sub=5, org_id="acme", permissions=["root"])
        assert principal == Principal("globex", f"{idp.url}#ann@example.org", frozenset({"hr", "eng"}))


# Algorithms


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "nOnE", " none", "", "HS256", "hs256", "RS256 ", "ES256K", "A"]
)
async def test_other_algorithms_are_not_accepted(alg: str, desk: Desk) -> None:
    claims = desk.idp.claims(NOW)
    for signature in (b"", b"x", bytes(64)):
        for kid in ({"kid": "es"}, {"kid": "rs"}, {}):
            assert "algorithm" in await desk.refused(compact({"alg": alg, **kid}, claims, signed_with(signature)))
    assert len(desk.idp.requests) == 1


@pytest.mark.parametrize("alg", [None, 5, True, ["ES256"], {"ES256": 1}, ...])
async def test_an_algorithm_that_is_no_text(alg: Any, desk: Desk) -> None:
    header = {"kid": "es"} if alg is ... else {"kid": "es", "alg": alg}
    assert "algorithm" in await desk.refused(compact(header, desk.idp.claims(NOW), desk.idp.pairs[-1].sign))


@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
async def test_a_public_key_is_no_secret(alg: str, desk: Desk, rs: Pair) -> None:
    """Signed with what everybody can read, as a secret."""
    hmac = jwt.get_algorithm_by_name(alg)

    def sign(secret: bytes, data: bytes) -> bytes:
        return bytes(hmac.sign(data, secret))

    jwk = rs.jwk()
    secrets = [
        rs.public_bytes(Encoding.PEM),
        rs.public_bytes(Encoding.PEM).strip(),
        rs.public_bytes(Encoding.DER),
        json.dumps(jwk).encode(),
        json.dumps(jwk, separators=(",", ":"), sort_keys=True).encode(),
        jwk["n"].encode(),
        desk.idp.keys(),
        b"",
    ]
    for secret in secrets:
        for kid in ("rs", "es"):
            token = compact({"alg": alg, "kid": kid}, desk.idp.claims(NOW), partial(sign, secret))
            assert "algorithm" in await desk.refused(token)


async def test_an_algorithm_of_another_type_of_key(desk: Desk, rs: Pair) -> None:
    es = desk.idp.pairs[-1]
    claims = desk.idp.claims(NOW)
    assert "key" in await desk.refused(es.token(claims, {"alg": "RS256"}))
    assert "key" in await desk.refused(rs.token(claims, {"alg": "ES256"}))
    assert "signature" in await desk.refused(es.token(claims, {"alg": "RS256", "kid": "rs"}))
    assert "signature" in await desk.refused(rs.token(claims, {"alg": "ES256", "kid": "es"}))
    assert "signature" in await desk.refused(rs.token(claims, {"alg": "PS256"}))
    assert "key" in await desk.refused(es.token(claims, {"alg": "ES384"}))
    assert "key" in await desk.refused(es.token(claims, {"alg": "EdDSA"}))


# Keys


async def test_a_key_of_the_tokens_own_leads_nowhere(desk: Desk) -> None:
    mine = Pair("mine", "ES256", private_key("ES256"))
    claims = desk.idp.claims(NOW)
    with issuer() as other:
        other.pairs.append(mine)
        lures: list[Json] = [
            {"jku": other.jwks_url},
            {"x5u": other.url},
            {"jwk": mine.jwk()},
            {"x5c": ["AAAA"], "x5t": "AAAA"},
        ]
        for lure in lures:
            assert "key" in await desk.refused(mine.token(claims, lure))
            assert "signature" in await desk.refused(mine.token(claims, {**lure, "kid": "es"}))
            # Nor do they harm a token that is good.
            assert await desk.verify(desk.idp.pairs[-1].token(claims, lure))
        assert other.requests == []


async def test_a_token_without_key_id(desk: Desk) -> None:
    es = desk.idp.pairs[-1]
    nameless = Pair(None, "ES256", es.private).token(desk.idp.claims(NOW))
    assert await desk.verify(nameless)
    desk.idp.add("another", "ES256")
    await desk.keys.refresh()
    assert await desk.verify(nameless)  # known, and no key has gone
    assert "key" in await desk.refused(Pair(None, "ES256", es.private).token(desk.idp.claims(NOW, jti="2")))


async def test_rotation(desk: Desk) -> None:
    idp = desk.idp
    old = idp.pairs[-1]
    before = idp.token(NOW)
    assert await desk.verify(before)
    idp.add("new")
    desk.mono.now += PAUSE
    assert await desk.verify(idp.token(NOW))
    assert await desk.verify(before)
    assert len(idp.requests) == 2
    stranger = Pair("unknown", "ES256", old.private)
    for number in range(100):
        assert "key" in await desk.refused(stranger.token(idp.claims(NOW, jti=str(number))))
    assert len(idp.requests) == 2
    idp.withdraw(old)
    assert await desk.verify(before)
    await desk.keys.refresh()
    assert "key" in await desk.refused(before)
    assert await desk.verify(idp.token(NOW))


async def test_another_key_of_the_same_name(desk: Desk) -> None:
    before = desk.idp.token(NOW)
    assert (await desk.verify(before)).version == 0
    desk.idp.withdraw(desk.idp.pairs[-1])
    desk.idp.add("es", "ES256")
    await desk.keys.refresh()
    assert "signature" in await desk.refused(before)
    assert (await desk.verify(desk.idp.token(NOW))).version == 1


async def test_without_keys_there_is_no_telling(idp: Issuer) -> None:
    idp.down()
    async with open_desk(idp) as desk:
        token = idp.token(NOW)
        with pytest.raises(ApiError) as caught:
            await desk.verify(token)
        assert caught.value.status == 503
        assert caught.value.code == "identity_provider_unavailable"
        assert caught.value.headers == {"retry-after": "5"}
        idp.up()
        desk.mono.now += PAUSE
        assert await desk.verify(token)
        idp.down()
        desk.mono.now += MAX_AGE - 1
        assert await desk.verify(token)
        assert await desk.verify(idp.token(NOW, jti="2"))
        desk.mono.now += 1
        await desk.refused(token, 503)  # it was remembered
        idp.pairs.clear()
        idp.up()
        desk.mono.now += PAUSE
        assert "key" in await desk.refused(token)


@pytest.mark.parametrize("readings", range(8))
async def test_a_day_ends_while_a_token_is_verified(readings: int, idp: Issuer) -> None:
    """After so many looks at the clock: what was verified by a key that is too old is not kept as if it were not."""
    async with open_desk(idp) as desk:
        idp.down()
        end = desk.mono.now + MAX_AGE
        left = iter([end - 1] * readings)
        desk.keys._mono = lambda: next(left, end)
        token = idp.token(NOW)
        with suppress(ApiError):
            await desk.verify(token)
        desk.keys._mono = lambda: end
        await desk.refused(token, 503)


# Odd tokens


async def test_long_tokens(desk: Desk) -> None:
    es = desk.idp.pairs[-1]
    claims = desk.idp.claims(NOW)
    room = MAX_TOKEN - len(es.token({**claims, "pad": ""}))
    largest = es.token({**claims, "pad": "x" * (room * 3 // 4)})
    assert MAX_TOKEN - 4 <= len(largest) <= MAX_TOKEN
    assert await desk.verify(largest)
    for size in (room, 100_000):
        assert "longer than 8192 bytes" in await desk.refused(es.token({**claims, "pad": "x" * size}))
    assert "longer" in await desk.refused(b"." * 100_000)
    assert "longer" in await desk.refused(es.token(claims, {"kid": "k" * 100_000}))


@pytest.mark.parametrize("crit", [["exp"], ["b64"], [], "exp", None, True, [5], ["x", "x"]])
async def test_critical_extensions_are_refused(crit: Any, desk: Desk) -> None:
    es = desk.idp.pairs[-1]
    for more in ({}, {"b64": True}, {"b64": False}, {"exp": 1, "x": 1}):
        await desk.refused(es.token(desk.idp.claims(NOW), {"crit": crit, **more}))


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"null", b"[]", b'"x"', b"\xff", b"{", b"[" * 5_000, b'{"alg": 1' + b"0" * 5_000 + b"}"),
        *({"alg": "ES256", "kid": kid} for kid in (5, None, True, ["es"], {"es": 1})),
        {"alg": "ES256", "kid": "es", "b64": False},
    ],
    ids=lambda header: repr(header)[:40],
)
async def test_headers_that_are_none(header: Any, desk: Desk) -> None:
    assert "cannot be read" in await desk.refused(compact(header, desk.idp.claims(NOW), desk.idp.pairs[-1].sign))


@pytest.mark.parametrize(
    "claims", [b"", b"null", b"[]", b"5", b"\xff", b"{", b"[" * 5_000, b'{"exp":' + b"1" * 5_000 + b"}"]
)
async def test_claims_that_are_none(claims: bytes, desk: Desk) -> None:
    assert "cannot be read" in await desk.refused(desk.idp.pairs[-1].token(claims))


async def test_a_token_is_one_spelling(desk: Desk) -> None:
    """What differs in a byte is refused, or known as another token; it is never taken for the same."""
    token = desk.idp.token(NOW)
    assert await desk.verify(token)
    head, _, signature = token.split(b".")
    last = bytes([signature[-1] ^ 1])  # of its six bits only the upper ones count
    for other in (token + b".", token + b"A", b"." + token, token[:-1], token[:-1] + last, head + b".." + signature):
        await desk.refused(other)
    for odd in (
        token + "é".encode(),
        token.replace(b".", "．".encode()),
        token + b"\n",
        token + b"\0",
        b"",
        b".",
        b"..",
    ):
        assert not looks_like_jwt(odd)
        await desk.refused(odd)


@pytest.mark.parametrize("name", ["sub", "jti", "extra"])
async def test_other_claims_may_be_anything(name: str, idp: Issuer) -> None:
    async with open_desk(idp, user="email") as desk:
        for value in (5, None, [1], {"a": 1}, "", "\ud800"):
            assert (await desk.principal(**{"email": "ann", name: value})).user == f"{idp.url}#ann"


def test_what_looks_like_a_token() -> None:
    for token in (b"a.b.c", b"a.b.", b"a-_9.B.c"):
        assert looks_like_jwt(token)
    for other in (
        b"rf-test-key",
        b"sk-proj-abc",
        b"",
        b"a.b",
        b"a.b.c.d",
        b"a.b.c.d.e",
        b"a..c",
        b".b.c",
        b"a.b.c\n",
        b"a b.c.d",
    ):
        assert not looks_like_jwt(other)


# What is remembered, and what is said


async def test_a_bounded_number_is_remembered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.REMEMBERED == 4096
    monkeypatch.setattr(module, "REMEMBERED", 3)
    tokens = [desk.idp.token(NOW, jti=str(n)) for n in range(4)]
    first, *others = [await desk.verify(token) for token in tokens]
    assert [await desk.verify(token) for token in tokens[1:]] == others
    for token, known in zip(tokens[1:], others, strict=True):
        assert await desk.verify(token) is known
    assert await desk.verify(tokens[0]) is not first
    assert len(desk.tokens._remembered) == 3


async def test_refused_ones_are_not_remembered(desk: Desk) -> None:
    for number in range(20):
        await desk.refused_for(exp=0, jti=str(number))
        await desk.refused(
            compact({"alg": "ES256", "kid": "es"}, desk.idp.claims(NOW, jti=str(number)), lambda _: b"x")
        )
    assert desk.tokens._remembered == {}
    late = desk.idp.token(NOW + 1_000, nbf=NOW + 1_000)
    assert "not valid yet" in await desk.refused(late)
    desk.clock.frozen = NOW + 1_000
    assert await desk.verify(late)


async def test_nothing_of_a_token_is_said(desk: Desk) -> None:
    """Not in errors, their tracebacks and their names; not in the log, whatever is wrong."""
    es, claims = desk.idp.pairs[-1], desk.idp.claims(NOW)
    evil = Pair(CANARY, "ES256", private_key("ES256"))
    head = {"alg": "ES256", "kid": "es"}
    wrong = [
        *(es.token({**claims, name: CANARY}) for name in ("iss", "aud", "exp", "nbf", "iat")),
        *(es.token({**claims, name: f"{CANARY}\n"}) for name in ("org_id", "sub", "permissions")),
        *(es.token({**claims, name: [CANARY, 5]}) for name in ("org_id", "sub", "permissions", "iss", "aud", "exp")),
        es.token({**claims, "aud": {CANARY: CANARY}}),
        es.token(f'{{"a": "{CANARY}'.encode()),
        evil.token({**claims, "sub": CANARY}),
        evil.token(claims, {"alg": CANARY}),
        evil.token(claims, {"crit": [CANARY]}),
        evil.token(claims, {"kid": [CANARY]}),
        es.token(claims, {"kid": CANARY, "crit": [CANARY], CANARY: 1}),
        compact(f'{{"{CANARY}'.encode(), claims, es.sign),
        compact(head, {**claims, "sub": CANARY}, lambda _: CANARY.encode()),
        f"{CANARY}.{CANARY}.{CANARY}".encode(),
        CANARY.encode(),
        CANARY.encode() * 1_000,
    ]
    with capture_logs() as logs:
        for number, token in enumerate([*wrong, *wrong]):
            desk.mono.now += PAUSE
            if number == len(wrong):
                desk.idp.down()
            with pytest.raises(ApiError) as caught:
                await desk.tokens.verify(token)
            error = caught.value
            said = [error.message, repr(error), str(error.headers), error.body().decode()]
            said += traceback.format_exception(error)
            for text in said:
                assert CANARY not in text
                assert token.decode(errors="replace") not in text
                assert not any(len(part) > 8 and part.decode(errors="replace") in text for part in token.split(b"."))
    assert logs  # the provider was down
    assert CANARY not in repr(logs)
    good = es.token({**claims, "x": CANARY})
    verified = await desk.verify(good)
    shown = repr([verified, desk.tokens, desk.keys, desk.keys.find("es", "ES256"), vars(desk.tokens), vars(desk.keys)])
    assert CANARY not in shown
    assert es.jwk()["x"] not in shown
    assert good.decode() not in shown
