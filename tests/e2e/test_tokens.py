"""Tokens of an identity provider, from the official client through the gateway: who shares what, and what ends it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway import jwks
from gateway.tokens import SKEW
from tests.support.gateway import ALICE, Clock, Running, config_text, running
from tests.support.issuer import AUDIENCE, Issuer, Pair, issuer, private_key
from tests.support.traffic import byte_identical, decision, error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Upstream


@pytest.fixture
def idp() -> Iterator[Issuer]:
    with issuer() as provider:
        provider.add("es")
        yield provider


def text(up: Upstream, idp: Issuer, **more: Any) -> str:
    jwt = f'  jwt: {{jwks_url: "{idp.jwks_url}", issuer: "{idp.url}", audience: {AUDIENCE}, tenant: org_id}}'
    return config_text(up.url, **more).replace("\nendpoints:", f"\n{jwt}\nendpoints:", 1)


@pytest.fixture
def gw(up: Upstream, idp: Issuer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(jwks, "REFRESH", 0.1)
    with running(text(up, idp)) as gateway:
        yield gateway


def reread(idp: Issuer) -> None:
    """Wait until the gateway has read what is published now."""
    seen = len(idp.requests)
    until(lambda: len(idp.requests) >= seen + 2)  # and has taken it in when it asks once more


def invalid(response: httpx.Response) -> str:
    error = error_of(response, 401)
    assert error["code"] == "invalid_token"
    assert error["type"] == "authentication_error"
    assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert response.headers["x-should-retry"] == "false"
    return str(error["message"])


def test_a_token_is_a_key_for_the_official_client(gw: Running, idp: Issuer, up: Upstream, prompt: str) -> None:
    token = idp.token().decode()
    with openai.OpenAI(base_url=f"{gw.url}/v1", api_key=token, max_retries=2) as client, upstream_calls(up, 1):
        outcomes = []
        for _ in range(3):
            raw = client.chat.completions.with_raw_response.create(
                model="test-model", messages=[{"role": "user", "content": prompt}]
            )
            assert raw.parse().choices[0].message.content == f"This is answer number {up.calls}."
            outcomes.append(raw.headers["x-refrain-cache"])
        assert outcomes == ["miss", "exact", "exact"]
    found = json.dumps(gw.admin("GET", "/admin/decisions").json())
    assert "byte_identical" in found
    assert f"{idp.url}#u1" in found
    assert not any(part in found for part in token.split("."))
    assert all(token not in str(seen.headers) for seen in up.seen)
    with (
        openai.OpenAI(base_url=f"{gw.url}/v1", api_key=idp.token(exp=0).decode()) as client,
        pytest.raises(openai.AuthenticationError, match="expired"),
    ):
        client.models.list()


def test_it_ends_on_the_byte_identical_path_too(gw: Running, idp: Issuer, up: Upstream, prompt: str) -> None:
    start = gw.clock()
    gw.clock.frozen = start
    token = idp.token(start, exp=start + 100).decode()
    with upstream_calls(up, 1):
        for _ in range(3):
            last = gw.chat(prompt, key=token)
        assert byte_identical(gw, last)
        gw.clock.frozen = start + 100 + SKEW - 0.5
        assert byte_identical(gw, gw.chat(prompt, key=token))
        gw.clock.frozen = start + 100 + SKEW
        assert "expired" in invalid(gw.chat(prompt, key=token))
        fresh = idp.token(gw.clock()).decode()
        assert outcome(gw.chat(prompt, key=fresh)) == "exact"  # the answer is the tenant's


def test_a_withdrawn_key_ends_it_too(gw: Running, idp: Issuer, up: Upstream, prompt: str) -> None:
    token = idp.token().decode()
    old = idp.pairs[0]
    idp.add("new")
    reread(idp)
    with upstream_calls(up, 1):
        for _ in range(3):
            last = gw.chat(prompt, key=token)
        assert byte_identical(gw, last)  # another key has come, none has gone
        idp.withdraw(old)
        reread(idp)
        assert "key" in invalid(gw.chat(prompt, key=token))
        assert outcome(gw.chat(prompt, key=idp.token().decode())) == "exact"
        assert outcome(gw.chat(prompt)) == "exact"  # keys are none of the provider's


def test_a_provider_that_goes_down_takes_nothing_along(gw: Running, idp: Issuer, prompt: str) -> None:
    idp.down()
    for _ in range(2):
        assert gw.chat(prompt, key=idp.token().decode()).status_code == 200


def test_without_the_provider_keys_work_and_tokens_wait(up: Upstream, idp: Issuer, prompt: str) -> None:
    idp.down()
    with running(text(up, idp)) as gw:
        assert gw.chat(prompt).status_code == 200
        response = gw.chat(prompt, key=idp.token().decode())
        assert error_of(response, 503)["code"] == "identity_provider_unavailable"
        assert response.headers["retry-after"] == "5"


@pytest.mark.parametrize(
    ("path", "sharing"), [("/v1", "tenant"), ("/personal/v1", "user"), ("/permitted/v1", "permissions")]
)
def test_two_tenants_never_share(gw: Running, idp: Issuer, up: Upstream, prompt: str, path: str, sharing: str) -> None:
    """Even with the same subject and the same rights; nor do two users where answers are personal."""
    people = [(org, sub) for org in ("acme", "globex") for sub in ("u1", "u2")]
    tokens = {p: idp.token(org_id=p[0], sub=p[1], permissions=["hr"]).decode() for p in people}
    answers = {p: text_of(gw.chat(prompt, key=token, path=path)) for p, token in tokens.items()}
    with upstream_calls(up, 0):
        for person, token in tokens.items():
            assert text_of(gw.chat(prompt, key=token, path=path)) == answers[person]
    assert {answers["acme", s] for s in ("u1", "u2")}.isdisjoint(answers["globex", s] for s in ("u1", "u2"))
    assert len(set(answers.values())) == (4 if sharing == "user" else 2)


def test_the_permissions_of_a_token_part_what_is_shared(gw: Running, idp: Issuer, prompt: str) -> None:
    def ask(**claims: Any) -> str:
        return text_of(gw.chat(prompt, key=idp.token(**claims).decode(), path="/permitted/v1"))

    hr, eng = ask(permissions=["hr"]), ask(permissions="eng")
    assert hr != eng
    assert ask(permissions="hr", sub="u2") == hr
    assert ask(permissions=["eng"], sub="u3") == eng
    assert len({hr, eng, ask(), ask(permissions="hr eng")}) == 4
    assert ask(permissions=["eng", "hr"]) == ask(permissions="hr eng")
    # A key of that tenant with the same rights is as good.
    assert text_of(gw.chat(prompt, path="/permitted/v1")) == hr


def test_a_token_is_never_an_admin(gw: Running, idp: Issuer) -> None:
    token = idp.token(role="admin", permissions=["admin"]).decode()
    assert error_of(gw.admin("GET", "/admin/stats", key=token), 403)


def test_a_token_may_not_speak_for_another(gw: Running, idp: Issuer, prompt: str) -> None:
    response = gw.chat(
        prompt, key=idp.token().decode(), path="/personal/v1", headers={"x-refrain-on-behalf": "user=alice"}
    )
    assert decision(gw, response)["user"] == f"{idp.url}#u1"


def test_where_a_token_may_stand(gw: Running, idp: Issuer, prompt: str) -> None:
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    token, other = idp.token().decode(), idp.token(sub="u2").decode()

    def send(*headers: tuple[str, str]) -> httpx.Response:
        return gw.client.post("/v1/chat/completions", json=body, headers=list(headers))

    bearer = ("authorization", f"Bearer {token}")
    for good in (
        [bearer],
        [("x-api-key", token)],
        [bearer, ("x-api-key", token)],
        [("Authorization", f"bearer {token}")],
    ):
        for _ in range(2):
            assert send(*good).status_code == 200
    for wrong in ([bearer, ("x-api-key", other)], [bearer, ("x-api-key", ALICE)]):
        for _ in range(2):
            assert error_of(send(*wrong), 401)["code"] == "conflicting_credentials"
    for second in (other, token, ALICE):
        for twice in (
            [bearer, ("authorization", f"Bearer {second}")],
            [("x-api-key", token), ("x-api-key", second)],
        ):
            for _ in range(2):
                assert error_of(send(*twice), 401)["code"] in {"invalid_api_key", "conflicting_credentials"}
    for odd in (f"Basic {token}", f"Bearer {token},", f"Bearer {token} {token}", token):
        assert error_of(send(("authorization", odd)), 401)


def test_refusals_say_why_and_keep_no_answer_back(gw: Running, idp: Issuer, up: Upstream, prompt: str) -> None:
    good = idp.token().decode()
    assert outcome(gw.chat(prompt, key=good)) == "miss"
    assert outcome(gw.chat(prompt, key=good)) == "exact"
    forger = Pair("es", "ES256", private_key("ES256"))
    wrong = {
        "signature": forger.token(idp.claims()),
        "algorithm": idp.pairs[0].token(idp.claims(), {"alg": "none"}),
        "`aud`": idp.token(aud="other"),
        "`iss`": idp.token(iss="https://evil.example"),
        "expired": idp.token(exp=1),
        "not valid yet": idp.token(nbf=gw.clock() + 1_000),
        "`org_id`": idp.token(org_id=...),
        "`sub`": idp.token(sub=""),
        "`permissions`": idp.token(permissions={"hr": True}),
        "no `exp`": idp.token(exp=...),
    }
    with upstream_calls(up, 0):
        for why, token in wrong.items():
            for _ in range(2):
                response = gw.chat(prompt, key=token.decode())
                assert why in invalid(response)
                assert not any(part in response.text for part in token.decode().split(".") if part)
        assert outcome(gw.chat(prompt, key=good)) == "exact"


def test_another_provider_in_the_file(up: Upstream, idp: Issuer, tmp_path: Path, prompt: str) -> None:
    """From then on its tokens are good, and those of the one before are not, byte-identical or not."""
    path, clock = tmp_path / "refrain.yaml", Clock()
    with issuer() as later, running(text(up, idp), path=path, clock=clock) as gw:
        later.add("es")
        before, after = idp.token().decode(), later.token().decode()
        for _ in range(3):
            assert gw.chat(prompt, key=before).status_code == 200
        assert "signature" in invalid(gw.chat(prompt, key=after))
        path.write_text(text(up, later))
        until(lambda: gw.chat(prompt, key=after).status_code == 200)
        assert "signature" in invalid(gw.chat(prompt, key=before))
        path.write_text(config_text(up.url))
        until(lambda: gw.chat(prompt, key=after).status_code == 401)
        assert error_of(gw.chat(prompt, key=after), 401)["code"] == "invalid_api_key"
