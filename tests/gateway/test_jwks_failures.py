"""A provider that is down, hangs, or says what is no set of keys."""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway import jwks
from gateway.jwks import MAX_AGE, MAX_BYTES, MAX_KEYS, PAUSE, SigningKeys, signers
from tests.gateway.desk import Mono, reading
from tests.support.issuer import Answer, Issuer, Pair, issuer, private_key

EC = Pair("ec", "ES256", private_key("ES256"))


@pytest.fixture
def idp() -> Iterator[Issuer]:
    with issuer() as provider:
        yield provider


@pytest.fixture
def mono() -> Mono:
    return Mono()


async def test_down_at_the_start_and_up_later(idp: Issuer, mono: Mono) -> None:
    idp.add("k1")
    idp.down()
    async with reading(idp, mono) as keys:
        assert not keys.ready
        assert await keys.look_up("k1", "ES256") is None
        idp.up()
        assert await keys.look_up("k1", "ES256") is None  # too soon
        mono.now += PAUSE
        assert await keys.look_up("k1", "ES256") is not None
        assert len(idp.requests) == 1


async def test_down_for_a_day(idp: Issuer, mono: Mono) -> None:
    idp.add("k1")
    async with reading(idp, mono) as keys:
        idp.down()
        start = mono.now
        for after in (300.0, MAX_AGE / 2, MAX_AGE - 1):
            mono.now = start + after
            await keys.refresh()
            assert keys.find("k1", "ES256") is not None
            assert keys.ready
            assert keys.version == 0
        mono.now = start + MAX_AGE
        assert keys.find("k1", "ES256") is None  # also before anybody asks for the version
        assert keys.version == 1  # without another reading
        assert not keys.ready
        assert keys.version == 1
        assert await keys.look_up("k1", "ES256") is None
        idp.up()
        mono.now += PAUSE
        assert await keys.look_up("k1", "ES256") is not None
        assert keys.version == 1


MANY = json.dumps({"keys": [EC.jwk(kid=str(n)) for n in range(MAX_KEYS + 1)]}).encode()
GOOD = json.dumps({"keys": [EC.jwk(kid="evil")]}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b""),
        Answer(b"<html>Sign in</html>"),
        Answer(b"\xff\xfe"),
        Answer(b"[" * 100_000),
        Answer(b'{"keys": null}'),
        Answer(b'{"keys": {}}'),
        Answer(b"{}"),
        Answer(b"[]"),
        Answer(b"null"),
        Answer(MANY),
        Answer(GOOD, status=500),
        Answer(GOOD, status=404),
        Answer(GOOD, status=203),
        Answer(GOOD[:-1]),
        Answer(GOOD, headers={"content-length": str(len(GOOD) + 1)}),
        Answer(GOOD + b" " * MAX_BYTES),
        Answer(gzip.compress(GOOD + b" " * (64 * MAX_BYTES)), headers={"content-encoding": "gzip"}),
        Answer(b"no gzip", headers={"content-encoding": "gzip"}),
        Answer(GOOD, headers={"x-large": "x" * 100_000}),
    ],
)
async def test_what_is_no_set_of_keys_changes_nothing(answer: Answer, idp: Issuer, mono: Mono) -> None:
    idp.add("k1")
    async with reading(idp, mono, "?secret=canary") as keys:
        idp.answer = answer
        with capture_logs() as logs:
            await keys.refresh()
        assert keys.find("k1", "ES256") is not None
        assert keys.find("evil", "ES256") is None
        assert keys.version == 0
        assert len(logs) == 1
        assert logs[0]["log_level"] == "warning"
        assert logs[0]["url"] == idp.jwks_url
        shown = repr([logs, keys, *signers([EC.jwk()])])
        assert "canary" not in shown
        assert EC.jwk()["x"] not in shown


async def test_the_largest_set_is_read(idp: Issuer, mono: Mono) -> None:
    body = json.dumps({"keys": [EC.jwk(kid=str(n)) for n in range(MAX_KEYS)]}).encode()
    idp.answer = Answer(body + b" " * (MAX_BYTES - len(body)))
    async with reading(idp, mono) as keys:
        assert keys.find(str(MAX_KEYS - 1), "ES256") is not None


async def test_no_redirect_is_followed(idp: Issuer, mono: Mono) -> None:
    with issuer() as other:
        other.add("evil")
        for status in (301, 302, 303, 307, 308):
            idp.answer = Answer(GOOD, status=status, headers={"location": other.jwks_url})
            async with reading(idp, mono) as keys:
                assert not keys.ready
        assert other.requests == []


async def test_no_proxy_of_the_environment_is_used(idp: Issuer, mono: Mono, monkeypatch: pytest.MonkeyPatch) -> None:
    idp.add("k1")
    with issuer() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with reading(idp, mono) as keys:
            assert keys.ready
        assert proxy.requests == []


async def test_a_provider_that_hangs_holds_nothing_up_for_long(mono: Mono, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its head and in its body: the time is for the whole."""
    assert jwks.TIMEOUT == 5
    monkeypatch.setattr(jwks, "TIMEOUT", 0.3)
    for answer in (Answer(gate=threading.Event()), Answer(GOOD, drip=True)):
        with issuer() as idp:
            idp.answer = answer
            begun = asyncio.get_running_loop().time()
            with capture_logs() as logs:
                async with reading(idp, mono) as keys:
                    took = asyncio.get_running_loop().time() - begun
                    assert not keys.ready
            assert 0.25 < took < 3
            assert [line["error"] for line in logs] == ["TimeoutError"]
            assert len(idp.requests) == 1


async def test_what_is_sent_to_the_provider(idp: Issuer, mono: Mono) -> None:
    idp.answer = Answer(b"{}", headers={"set-cookie": "a=b; Path=/"})
    # By name: the cookies of an address are not kept by any client.
    keys = SigningKeys(f"{idp.jwks_url.replace('127.0.0.1', 'localhost')}?a=1", mono=mono)
    try:
        await keys.start()
        await keys.refresh()
    finally:
        await keys.aclose()
    assert idp.requests == ["/jwks.json?a=1"] * 2
    for head in idp.heads:
        assert not head.keys() & {"cookie", "authorization"}
