"""What a token that is signed well must say, and until when it is good."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.tokens import SKEW
from tests.gateway.desk import NOW, Desk, open_desk
from tests.gateway.values import json_values, some
from tests.support.issuer import AUDIENCE, Issuer, Json, Pair, issuer, private_key

NO_TIMES: list[Any] = [True, False, "1900000000", "", [], {}, [1], math.nan, math.inf, -math.inf, 10**400, 1e12, -1e300]
CLAIMS = ["org_id", "sub", "exp", "nbf", "iat", "iss", "aud", "permissions"]


@pytest.fixture
def idp() -> Iterator[Issuer]:
    with issuer() as provider:
        provider.add("es")
        yield provider


@pytest.fixture
async def desk(idp: Issuer) -> AsyncIterator[Desk]:
    async with open_desk(idp) as made:
        yield made


# Times


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"exp": NOW - SKEW - 1}, "expired"),
        ({"exp": NOW - SKEW}, "expired"),
        ({"exp": NOW - SKEW + 0.001}, None),
        ({"exp": int(NOW - SKEW + 1)}, None),
        ({"exp": 0}, "expired"),
        ({"exp": -5}, "expired"),
        ({"nbf": NOW + SKEW + 1}, "not valid yet"),
        ({"nbf": NOW + SKEW + 0.001}, "not valid yet"),
        ({"nbf": NOW + SKEW}, None),
        ({"nbf": 0}, None),
        ({"iat": NOW + SKEW + 1}, "not valid yet"),
        ({"iat": NOW + SKEW}, None),
        ({"iat": ...}, None),
        ({"iat": 1.5}, None),
        ({"exp": ...}, "no `exp`"),
        ({"exp": None}, "no `exp`"),
        *(({name: value}, f"`{name}`") for name in ("exp", "nbf", "iat") for value in NO_TIMES),
        ({"nbf": None}, "`nbf`"),
        ({"iat": None}, "`iat`"),
    ],
)
async def test_times(changes: Json, wrong: str | None, desk: Desk) -> None:
    if wrong is None:
        verified = await desk.verify(desk.idp.token(NOW, **changes))
        assert verified.until == changes.get("exp", NOW + 600) + SKEW
    else:
        assert wrong in await desk.refused_for(**changes)


async def test_it_ends_by_our_clock_though_it_is_remembered(desk: Desk) -> None:
    token = desk.idp.token(NOW)
    verified = await desk.verify(token)
    desk.clock.frozen = verified.until - 0.001
    assert await desk.verify(token) is verified
    desk.clock.frozen = verified.until
    assert "expired" in await desk.refused(token)
    desk.clock.frozen = NOW
    assert await desk.verify(token) == verified


# By whom and for whom


@pytest.mark.parametrize(
    ("aud", "good"),
    [
        (AUDIENCE, True),
        ([AUDIENCE], True),
        (["other", AUDIENCE], True),
        ("other", False),
        ("Refrain", False),
        ("refrain ", False),
        ("refrain other", False),
        ("", False),
        ([], False),
        (["other"], False),
        ([[AUDIENCE]], False),
        ([AUDIENCE, 5], False),
        ({AUDIENCE: 1}, False),
        (5, False),
        (True, False),
        (None, False),
        (..., False),
    ],
)
async def test_audiences(aud: Any, good: bool, desk: Desk) -> None:
    if good:
        assert await desk.principal(aud=aud)
    else:
        assert "`aud`" in await desk.refused_for(aud=aud)


@pytest.mark.parametrize("iss", ["https://evil.example", "{}/", "{} ", "", None, 5, ["{}"], {"{}": 1}, ...])
async def test_issuers(iss: Any, desk: Desk) -> None:
    named = json.loads(json.dumps(iss).replace("{}", desk.idp.url)) if iss is not ... else iss
    assert "`iss`" in await desk.refused_for(iss=named)


async def test_the_signature_comes_first(desk: Desk) -> None:
    mine = Pair("es", "ES256", private_key("ES256"))
    wrong: list[Json | bytes] = [
        *({name: value} for name, value in (("exp", 0), ("iss", "x"), ("aud", "x"), ("org_id", 5), ("nbf", "x"))),
        b"not JSON",
        b"\xff",
        b"[]",
    ]
    for claims in wrong:
        whole = {**desk.idp.claims(NOW), **claims} if isinstance(claims, dict) else claims
        assert "signature" in await desk.refused(mine.token(whole))


# Tenant, user, permissions


@pytest.mark.parametrize("name", ["org_id", "sub"])
@pytest.mark.parametrize(
    "value",
    ["", 5, 0, 1.5, True, None, [], ["acme"], {}, "a\n", "a\x00b", "a\u200b", "a\u2028b", "\ud800", "a" * 257, ...],
)
async def test_no_tenant_or_no_user(name: str, value: Any, desk: Desk) -> None:
    message = await desk.refused_for(**{name: value})
    assert f"`{name}`" in message
    assert "1 to 256" in message


@pytest.mark.parametrize("value", ["a", "a" * 256, "Zoë", "日本", "a b", "a#b", "😀", "default"])
async def test_names_are_taken_as_they_are(value: str, desk: Desk) -> None:
    principal = await desk.principal(org_id=value, sub=value)
    assert principal.tenant == value
    assert principal.user == f"{desk.idp.url}#{value}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (..., set()),
        ([], set()),
        ("", set()),
        ("   ", set()),
        ("hr", {"hr"}),
        ("hr eng", {"hr", "eng"}),
        (" hr   eng hr ", {"hr", "eng"}),
        (["hr", "eng", "hr"], {"hr", "eng"}),
        (["Zoë:read", "a/b=c"], {"Zoë:read", "a/b=c"}),
        (["x" * 200], {"x" * 200}),
        (" ".join(map(str, range(1_000))), set(map(str, range(1_000)))),
        (["p"] * 1_000, {"p"}),
        *((value, None) for value in (None, True, 5, {}, {"hr": True}, [5], [None], [["hr"]], ["hr", ""], [True])),
        *(([word], None) for word in ("h r", "hr,eng", "hr;", "hr\n", "h\tr", "\x00", "h\xa0r", "\u200b", "\ud800")),
        *((word, None) for word in ("hr,eng", "hr; eng", "hr\teng", "hr\neng", "hr\x1feng", "hr\xa0eng", "x" * 201)),
        (["x" * 201], None),
        (["p"] * 1_001, None),
        ("p " * 1_001, None),
    ],
    ids=lambda value: ascii(sorted(value) if isinstance(value, set) else value)[:20],
)
async def test_permissions(value: Any, expected: set[str] | None, desk: Desk) -> None:
    token = desk.idp.token(NOW, permissions=value)
    if expected is None:
        assert "`permissions`" in await desk.refused(token)
    else:
        assert (await desk.verify(token)).principal.permissions == expected


@some
@given(changes=st.dictionaries(st.sampled_from(CLAIMS), json_values()))
def test_whatever_the_claims_are(changes: dict[str, Any]) -> None:
    """Signed by the provider: a principal of this very tenant, or a 401."""
    with issuer() as idp:
        idp.add("es")

        async def look() -> int:
            async with open_desk(idp) as desk:
                token = idp.token(NOW, **changes)
                try:
                    principal = (await desk.verify(token)).principal
                except ApiError as error:
                    return error.status
                claims = idp.claims(NOW, **changes)
                assert principal.tenant == claims["org_id"]
                assert principal.user == f"{idp.url}#{claims['sub']}"
                assert principal.role == "member"
                return 200

        assert asyncio.run(look()) in (200, 401)
