"""Credentials -> principal. A wrong one is a 401 that repeats nothing of what was sent."""

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import MAX_TOKEN, Authenticator
from gateway.config import Auth
from gateway.config.keys import hash_key
from gateway.errors import ApiError
from gateway.identity import Identity
from gateway.principal import OPEN, Principal
from tests.gateway.values import some

ALICE = "rf-alice-key-0123456789"
ROOT = "rf-root-key-9876543210"


def authenticator(*, required: bool = True) -> Authenticator:
    keys: list[dict[str, Any]] = [
        {"key": ALICE, "tenant": "acme", "user": "alice", "permissions": ["hr", "eng"]},
        {"hash": hash_key(ROOT), "tenant": "ops", "user": "root", "role": "admin"},
    ]
    return Identity(time.time).authenticator(Auth.model_validate({"required": required, "keys": keys}))


def principal(auth: Authenticator, headers: dict[bytes, bytes]) -> Principal:
    return asyncio.run(auth.enter(headers)).principal


AUTH = authenticator()
OPEN_AUTH = authenticator(required=False)
ALICE_PRINCIPAL = Principal("acme", "alice", frozenset({"hr", "eng"}))


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + key.encode()}


def refusal(headers: dict[bytes, bytes]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        principal(AUTH, headers)
    error = caught.value
    assert error.status == 401
    assert error.type == "authentication_error"
    assert error.headers == {"www-authenticate": "Bearer", "x-should-retry": "false"}
    return error


@pytest.mark.parametrize(
    "headers",
    [
        bearer(ALICE),
        {b"authorization": b"bearer " + ALICE.encode()},
        {b"authorization": b"BEARER   " + ALICE.encode() + b"  "},
        {b"x-api-key": ALICE.encode()},
        {b"x-api-key": b" " + ALICE.encode() + b" "},
        {**bearer(ALICE), b"x-api-key": ALICE.encode()},
    ],
)
def test_a_key_names_its_principal(headers: dict[bytes, bytes]) -> None:
    assert principal(AUTH, headers) == ALICE_PRINCIPAL


def test_a_hashed_key_works_as_a_plain_one() -> None:
    root = principal(AUTH, bearer(ROOT))
    assert (root, root.is_admin) == (Principal("ops", "root", role="admin"), True)
    assert not principal(AUTH, bearer(ALICE)).is_admin


def test_no_credential_says_how_to_send_one() -> None:
    assert refusal({}).code == "missing_api_key"
    assert "Authorization: Bearer" in refusal({}).message


@pytest.mark.parametrize(
    "headers",
    [
        bearer(""),
        bearer(ALICE[:-1]),
        bearer(ALICE + "x"),
        bearer(ALICE.upper()),
        bearer(hash_key(ROOT)),  # the hash is no credential
        bearer(hash_key(ROOT).removeprefix("sha256:")),
        bearer(f"{ALICE} {ALICE}"),
        bearer(f"{ALICE}, Bearer {ALICE}"),  # a repeated header, joined
        {b"authorization": ALICE.encode()},
        {b"authorization": b""},
        {b"authorization": b"Basic " + ALICE.encode()},
        {b"authorization": b"Bearer\t" + ALICE.encode()},
        {b"x-api-key": b""},
        {b"x-api-key": b"Bearer " + ALICE.encode()},
        {b"api-key": ALICE.encode(), b"authorization": b"Bearer x"},
    ],
)
def test_everything_else_is_refused(headers: dict[bytes, bytes]) -> None:
    assert refusal(headers).code == "invalid_api_key"


def test_two_different_credentials_are_refused_even_when_both_are_good() -> None:
    assert refusal({**bearer(ALICE), b"x-api-key": ROOT.encode()}).code == "conflicting_credentials"
    assert refusal({b"authorization": b"Basic x", b"x-api-key": ROOT.encode()}).code == "conflicting_credentials"


def test_an_oversize_token_is_refused() -> None:
    assert refusal(bearer("x" * (MAX_TOKEN + 1))).code == "invalid_api_key"


guesses = st.sampled_from([b"", b"Bearer ", b"bearer", b"Basic "])
canaries = st.binary(max_size=30).map(lambda rest: b"canary" + rest)


@some
@given(st.dictionaries(st.sampled_from([b"authorization", b"x-api-key"]), st.builds(bytes.__add__, guesses, canaries)))
def test_nobody_gets_in_by_guessing_and_nothing_sent_comes_back(headers: dict[bytes, bytes]) -> None:
    assert "canary" not in refusal(headers).message
    assert principal(OPEN_AUTH, headers) == OPEN


def test_where_no_key_is_needed_a_good_one_still_counts() -> None:
    assert principal(OPEN_AUTH, {}) == OPEN
    assert principal(OPEN_AUTH, bearer(ALICE)) == ALICE_PRINCIPAL
    assert principal(OPEN_AUTH, bearer("whatever")) == OPEN
    assert OPEN.is_admin


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"host": b"localhost"},
        {b"host": b"LocalHost:8080"},
        {b"host": b"127.0.0.1:8080"},
        {b"host": b"127.8.9.10"},
        {b"host": b"[::1]:8080"},
        {b"host": b"gateway:8080"},  # a name among containers
        {b"host": b"localhost:8080", b"origin": b"http://localhost:3000"},
        {b"host": b"localhost:8080", b"origin": b"http://127.0.0.1:8080"},
    ],
)
def test_an_open_gateway_answers_this_machine(headers: dict[bytes, bytes]) -> None:
    assert principal(OPEN_AUTH, headers) == OPEN


@pytest.mark.parametrize(
    "headers",
    [
        {b"host": b"evil.example"},
        {b"host": b"evil.example:8080"},
        {b"host": b"127.0.0.1.evil.example"},
        {b"host": b"localhost.evil.example"},
        {b"host": b"192.168.1.5:8080"},
        {b"host": b"[2001:db8::1]"},
        {b"host": b"localhost@evil.example"},
        {b"host": b"localhost, evil.example"},  # a repeated header, joined
        {b"host": b"evil.example."},
        {b"host": b""},
        {b"host": b"["},
        {b"host": b"localhost", b"origin": b"https://evil.example"},
        {b"host": b"localhost", b"origin": b"http://localhost.evil.example"},
        {b"host": b"localhost", b"origin": b"null"},
        {b"host": b"localhost", b"origin": b""},
    ],
)
def test_an_open_gateway_answers_no_page_of_somebody_else(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(ApiError) as caught:
        principal(OPEN_AUTH, headers)
    assert (caught.value.status, caught.value.code) == (403, "not_local")
    assert principal(AUTH, {**headers, **bearer(ALICE)}) == ALICE_PRINCIPAL
    assert principal(OPEN_AUTH, {**headers, **bearer(ALICE)}) == ALICE_PRINCIPAL


def test_keys_are_not_in_the_repr() -> None:
    shown = repr(AUTH)
    assert ALICE not in shown
    assert ROOT not in shown
    assert hash_key(ROOT).removeprefix("sha256:") not in shown
