"""For whom: a key that speaks for three people, keys taken back, limits, endpoints that are not for all."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.config.keys import digest_key
from tests.support.gateway import ADMIN, ALICE, BOB, EVE, Running, config_text, running
from tests.support.traffic import byte_identical, error_of, outcome, text_of, until
from tests.support.upstream import Reply, Upstream, numbered

WEBAPP, LIMITED, TWIN, RICH = (f"rf-test-{name}-key" for name in ("webapp", "limited", "twin", "rich"))
MORE = f"""
    - {{key: {WEBAPP}, tenant: acme, user: webapp, permissions: [hr, eng], delegate: true, role: admin}}
    - {{key: {LIMITED}, tenant: acme, user: lee, limits: {{requests: 3/min, tokens: 30/min}}}}
    - {{key: {TWIN}, tenant: acme, user: lee, limits: {{requests: 3/min}}}}
    - {{key: {RICH}, tenant: acme, user: rich, limits: {{usd: 0.00005/day}}}}
"""
EXTRA = """
  acme_only: {allow: {tenants: [acme]}}
  hr_only: {allow: {tenants: [acme], permissions: [hr]}}
prices: {test-model: {input: 1.0, output: 2.0}}
"""


def text(up: Upstream, store: str = "memory://") -> str:
    return config_text(up.url, store=store, extra=EXTRA).replace("\nendpoints:", f"{MORE}\nendpoints:", 1)


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    with running(text(up)) as gateway:
        yield gateway


def behalf(gw: Running, person: str, path: str = "/permitted/v1", key: str = WEBAPP, **more: Any) -> httpx.Response:
    return gw.chat(key=key, path=path, headers={"x-refrain-on-behalf": person}, **more)


# One key, many people


def test_three_people_behind_one_key(gw: Running, up: Upstream) -> None:
    """Each gets only their own answers, or those of people with the same rights; with the official client."""
    calls = len(up.seen)
    app = openai.OpenAI(base_url=f"{gw.url}/permitted/v1", api_key=WEBAPP, max_retries=0)

    def ask(person: str) -> tuple[str, str]:
        client = app.with_options(default_headers={"x-refrain-on-behalf": person})
        raw = client.chat.completions.with_raw_response.create(
            model="test-model", messages=[{"role": "user", "content": "Who earns what?"}]
        )
        return str(raw.headers["x-refrain-cache"]), str(raw.parse().choices[0].message.content)

    ann, ben, cat = "user=ann; permissions=hr", "user=ben; permissions=hr", "user=cat; permissions=eng"
    first = ask(ann)
    assert first[0] == "miss"
    assert ask(ben) == ("exact", first[1])
    other = ask(cat)
    assert other[0] == "miss"
    assert other[1] != first[1]
    for person, answer in ((ann, first[1]), (ben, first[1]), (cat, other[1])) * 3:  # byte-identical now
        assert ask(person) == ("exact", answer)
    assert len(up.seen) == calls + 2
    # More than the key has is nothing, and other people's rights are not to be had by spelling.
    assert ask("user=dan; permissions=hr,finance,admin") == ("exact", first[1])
    assert ask("user=eve")[0] == "miss"
    assert all("x-refrain-on-behalf" not in seen.headers for seen in up.seen)


def test_personal_answers_are_personal_behind_one_key_too(gw: Running) -> None:
    people = [f"user={name}; permissions=hr" for name in ("ann", "ben", "cat")]
    answers = [text_of(behalf(gw, person, "/personal/v1")) for person in people]
    assert len(set(answers)) == 3
    for person, answer in zip(people, answers, strict=True):
        again = behalf(gw, person, "/personal/v1")
        assert (outcome(again), text_of(again)) == ("exact", answer)
    # The user of the tenant who has a key of her own is the same person.
    alice = behalf(gw, "user=alice; permissions=hr", "/personal/v1", content="Mine?")
    assert text_of(gw.chat("Mine?", key=ALICE, path="/personal/v1")) == text_of(alice)


def test_another_ones_answer_is_not_joined_either(gw: Running, up: Upstream) -> None:
    calls = len(up.seen)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda n: behalf(gw, f"user=u{n}; permissions=hr", "/personal/v1"), range(5)))
    assert len({text_of(answer) for answer in answers}) == len(up.seen) - calls == 5


def test_the_header_means_nothing_from_other_keys(gw: Running) -> None:
    mine = text_of(gw.chat(key=BOB, path="/personal/v1"))
    posing = behalf(gw, "user=alice; permissions=hr", "/personal/v1", key=BOB)
    assert (outcome(posing), text_of(posing)) == ("exact", mine)
    assert outcome(behalf(gw, "nonsense", "/personal/v1", key=BOB)) == "exact"


def test_a_role_is_not_lent(gw: Running) -> None:
    assert gw.admin("GET", "/admin/stats", key=WEBAPP).status_code == 200
    headers = {"authorization": f"Bearer {WEBAPP}", "x-refrain-on-behalf": "user=ann"}
    assert gw.client.get("/admin/stats", headers=headers).status_code == 403


@pytest.mark.parametrize("header", ["", "user=", "ann", "user=a; tenant=globex", "user=a, user=b"])
def test_a_delegation_that_cannot_be_read_is_a_400(gw: Running, up: Upstream, header: str) -> None:
    calls = len(up.seen)
    assert error_of(behalf(gw, header), 400)["param"] == "x-refrain-on-behalf"
    assert len(up.seen) == calls


def test_two_delegation_headers_are_a_400_on_the_short_way_too(gw: Running, up: Upstream) -> None:
    body = {"model": "test-model", "messages": [{"role": "user", "content": "Hello?"}]}
    one = {"authorization": f"Bearer {WEBAPP}", "x-refrain-on-behalf": "user=ann; permissions=hr"}
    for _ in range(3):
        answer = gw.client.post("/permitted/v1/chat/completions", json=body, headers=one)
    assert byte_identical(gw, answer)
    both = [*one.items(), ("x-refrain-on-behalf", "user=ann; permissions=hr")]
    assert gw.client.post("/permitted/v1/chat/completions", json=body, headers=both).status_code == 400


# Keys taken back


def key_id(key: str) -> str:
    return digest_key(key).hex()[:12]


def revoke(gw: Running, key: str, *, by: str = ADMIN) -> httpx.Response:
    return gw.admin("POST", "/admin/keys/revoke", key=by, json={"id": key_id(key)})


def test_a_revoked_key_is_refused_on_its_next_byte_identical_request(gw: Running, up: Upstream) -> None:
    calls = len(up.seen)
    for _ in range(3):
        answer = gw.chat(key=ALICE)
    assert byte_identical(gw, answer)
    assert revoke(gw, ALICE).json() == {"revoked": key_id(ALICE), "durable": False}
    assert error_of(gw.chat(key=ALICE), 401)["code"] == "invalid_api_key"
    assert gw.client.get("/v1/models", headers={"x-api-key": ALICE}).status_code == 401
    # The answer itself is still there for those who may have it, and they have noticed nothing.
    assert outcome(gw.chat(key=BOB)) == "exact"
    assert len(up.seen) == calls + 1


def test_people_behind_a_revoked_key_are_refused_too(gw: Running) -> None:
    for _ in range(3):
        answer = behalf(gw, "user=ann; permissions=hr")
    assert byte_identical(gw, answer)
    assert revoke(gw, WEBAPP).status_code == 200
    assert behalf(gw, "user=ann; permissions=hr").status_code == 401


def test_a_revocation_outlives_restarts_and_reloads(up: Upstream, tmp_path: Path) -> None:
    config = text(up, f"sqlite:///{tmp_path}/cache.db")
    with running(config) as gw:
        assert outcome(gw.chat(key=ALICE)) == "miss"
        assert revoke(gw, ALICE).json()["durable"] is True
        assert gw.chat(key=ALICE).status_code == 401
    with running(config) as gw:
        assert gw.chat(key=ALICE).status_code == 401
        assert outcome(gw.chat(key=BOB)) == "exact"
        shown = {key["id"]: key["revoked"] for key in gw.admin("GET", "/admin/keys").json()["keys"]}
        assert shown[key_id(ALICE)] is True
        assert shown[key_id(BOB)] is False
        (line,) = gw.admin("GET", "/admin/audit").json()["lines"]
        assert (line["action"], line["user"], line["result"]) == ("revoke", "root", {"revoked": True})
        assert line["details"] == {"id": key_id(ALICE), "tenant": "acme", "user": "alice"}


def test_who_may_revoke_what(gw: Running) -> None:
    for member in (ALICE, LIMITED):
        assert revoke(gw, BOB, by=member).status_code == 403
        assert gw.admin("GET", "/admin/keys", key=member).status_code == 403
    # A tenant's admin does not even learn that another tenant's key is there.
    assert revoke(gw, ALICE, by=EVE).status_code == 404
    assert [key["user"] for key in gw.admin("GET", "/admin/keys", key=EVE).json()["keys"]] == ["eve"]
    assert revoke(gw, EVE, by=EVE).status_code == 200
    assert gw.admin("GET", "/admin/keys", key=EVE).status_code == 401
    assert gw.chat(key=ALICE).status_code == 200


@pytest.mark.parametrize(
    "body", [{}, {"id": ""}, {"id": "abc"}, {"id": 5}, {"id": "g" * 12}, {"id": "a" * 12, "x": 1}, {"id": "%" * 12}]
)
def test_what_is_no_id(gw: Running, body: Any) -> None:
    response = gw.admin("POST", "/admin/keys/revoke", json=body)
    assert error_of(response, 400)["param"] in ("id", "x")


def test_no_key_is_shown_whole(gw: Running) -> None:
    shown = gw.admin("GET", "/admin/keys").text
    for key in (ADMIN, ALICE, WEBAPP):
        assert key not in shown
        assert digest_key(key).hex() not in shown


# Limits


def test_requests_are_limited_hits_too(gw: Running, up: Upstream) -> None:
    calls = len(up.seen)
    gw.clock.frozen = 1_000_000.0
    answers = [gw.chat(key=TWIN) for _ in range(5)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429, 429]
    assert [a.headers["x-ratelimit-remaining-requests"] for a in answers] == ["2", "1", "0", "0", "0"]
    assert error_of(answers[3], 429)["code"] == "rate_limit_exceeded"
    assert answers[3].headers["retry-after"] == "60"
    assert len(up.seen) == calls + 1
    gw.clock.offset = 59.9
    assert gw.chat(key=TWIN).headers["retry-after"] == "1"
    gw.clock.offset = 60
    assert byte_identical(gw, gw.chat(key=TWIN))


def test_the_official_client_understands_a_refusal(gw: Running) -> None:
    client = openai.OpenAI(base_url=f"{gw.url}/v1", api_key=TWIN, max_retries=0)

    def ask(text: str) -> None:
        client.chat.completions.create(model="test-model", messages=[{"role": "user", "content": text}])

    for number in range(3):
        ask(str(number))
    with pytest.raises(openai.RateLimitError) as caught:
        ask("0")
    assert caught.value.code == "rate_limit_exceeded"


def test_tokens_are_charged_once_and_hits_cost_none(gw: Running) -> None:
    """An answer takes 18 tokens; the limit is 30 a minute."""
    gw.clock.frozen = 1_000_000.0
    assert outcome(gw.chat(key=LIMITED)) == "miss"
    hit = gw.chat(key=LIMITED)
    assert (outcome(hit), hit.headers["x-ratelimit-remaining-tokens"]) == ("exact", "12")
    assert outcome(gw.chat("Another?", key=LIMITED)) == "miss"
    gw.clock.offset = 30
    refused = gw.chat("A third?", key=TWIN)  # of the same user
    assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
    refused = gw.chat("A third?", key=LIMITED)
    assert error_of(refused, 429)["type"] in ("tokens", "requests")
    assert refused.headers["retry-after"] == "30"


def test_money_is_limited(gw: Running) -> None:
    """An answer takes 25 millionths of a dollar; the limit is 50 a day."""
    gw.clock.frozen = 1_000_000.0
    assert gw.chat("One?", key=RICH).headers["x-ratelimit-remaining-usd"] == "0.000025"
    assert gw.chat("Two?", key=RICH).headers["x-ratelimit-remaining-usd"] == "0"
    refused = gw.chat("Three?", key=RICH)
    assert error_of(refused, 429)["code"] == "insufficient_quota"
    assert refused.headers["retry-after"] == "86400"
    assert refused.headers["x-should-retry"] == "false"


def test_usage_survives_a_restart(up: Upstream, tmp_path: Path) -> None:
    config = text(up, f"sqlite:///{tmp_path}/cache.db")
    with running(config) as gw:
        assert [gw.chat(key=RICH, content=str(n)).status_code for n in range(3)] == [200, 200, 429]
    with running(config) as gw:
        assert gw.chat(key=RICH, content="0").status_code == 429


def test_a_refused_request_is_in_the_books(gw: Running) -> None:
    for _ in range(4):
        last = gw.chat(key=TWIN)
    found = gw.admin("GET", "/admin/decisions", params={"id": last.headers["x-request-id"]}).json()
    assert (found["status"], found["error"], found["user"]) == (429, "rate_limit_exceeded", "lee")


# Endpoints that are not for all


def test_endpoints_let_in_whom_they_are_for(gw: Running, up: Upstream) -> None:
    assert gw.chat(key=ALICE, path="/acme_only/v1").status_code == 200
    assert gw.chat(key=ALICE, path="/hr_only/v1").status_code == 200
    for key, path in ((EVE, "/acme_only/v1"), (EVE, "/hr_only/v1"), (BOB, "/hr_only/v1"), (ADMIN, "/acme_only/v1")):
        calls = len(up.seen)
        refused = gw.chat(key=key, path=path)
        assert error_of(refused, 403)["code"] == "endpoint_not_allowed", (key, path)
        assert gw.client.get(f"{path}/models", headers={"authorization": f"Bearer {key}"}).status_code == 403
        assert len(up.seen) == calls
    assert behalf(gw, "user=ann; permissions=hr", "/hr_only/v1").status_code == 200
    assert behalf(gw, "user=ann; permissions=eng", "/hr_only/v1").status_code == 403


def test_nothing_of_a_credential_is_kept(up: Upstream, tmp_path: Path) -> None:
    config = text(up, f"sqlite:///{tmp_path}/cache.db")
    with running(config) as gw:
        behalf(gw, "user=ann; permissions=hr")
        revoke(gw, BOB)
        gw.admin("POST", "/admin/purge", json={"tags": ["none"]})
        shown = json.dumps(
            [gw.admin("GET", f"/admin/{page}").json() for page in ("decisions", "entries", "audit", "keys", "stats")]
        )
        shown += gw.admin("GET", "/metrics").text
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for key in (WEBAPP, BOB, ADMIN, "sk-upstream-secret"):
        assert key not in shown
        assert key.encode() not in kept


def test_limits_come_before_everything_but_the_key(gw: Running, up: Upstream) -> None:
    for _ in range(3):
        assert gw.client.get("/v1/models", headers={"authorization": f"Bearer {TWIN}"}).status_code == 200
    for path in ("/v1", "/acme_only/v1", "/hr_only/v1", "/nowhere/v1"):
        assert gw.chat(key=TWIN, path=path).status_code == 429
    assert gw.client.get("/v1/models", headers={"authorization": f"Bearer {TWIN}"}).status_code == 429


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"])
def test_whoever_leaves_before_the_answer_has_had_it_made(gw: Running, up: Upstream, path: str) -> None:
    """40 bytes of a prompt are about ten tokens; with the limit of 30 a minute one long prompt is enough."""
    gate = threading.Event()
    up.script = lambda seen, number: Reply([], gate=gate)
    cancelled = up.cancelled
    with pytest.raises(httpx.ReadTimeout):
        gw.client.post(
            f"{path}/chat/completions",
            json={"model": "test-model", "messages": [{"role": "user", "content": "long " * 40}]},
            headers={"authorization": f"Bearer {LIMITED}"},
            timeout=0.3,
        )
    until(lambda: up.cancelled > cancelled)
    gate.set()
    up.script = numbered
    assert error_of(gw.chat(key=LIMITED), 429)["type"] == "tokens"


def test_a_slow_body_is_not_answered_by_what_has_changed_meanwhile(gw: Running) -> None:
    """The head and the first bytes come before the key is taken back, the rest after it."""
    body = b'{"model": "test-model", "messages": [{"role": "user", "content": "Hello?"}]}'
    for _ in range(3):
        answer = gw.raw(body, key=ALICE)
    assert byte_identical(gw, answer)
    host, port = gw.url.removeprefix("http://").split(":")
    sent = {**answer.request.headers, "connection": "close"}
    head = "POST /v1/chat/completions HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in sent.items()) + "\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + body[:5])
        assert revoke(gw, ALICE).status_code == 200
        connection.sendall(body[5:])
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


def test_the_log_has_the_id_that_its_request_was_told(gw: Running) -> None:
    done = gw.admin("POST", "/admin/purge", json={"tags": ["none"], "soft": True})
    (line,) = gw.admin("GET", "/admin/audit").json()["lines"]
    assert line["request_id"] == done.headers["x-request-id"]
    assert (line["details"], line["result"]) == ({"tags": ["none"], "soft": True}, {"purged": 0})


def test_a_revocation_holds_whatever_becomes_of_the_writing(up: Upstream, tmp_path: Path) -> None:
    with running(text(up, f"sqlite:///{tmp_path}/cache.db")) as gw:
        assert gw.chat(key=ALICE).status_code == 200
        state = tmp_path / "cache.state.db"
        state.rename(tmp_path / "elsewhere")
        refused = revoke(gw, ALICE)
        assert error_of(refused, 503)["code"] == "not_recorded"
        assert gw.chat(key=ALICE).status_code == 401
        # A purge without its line in the log is not done.
        assert error_of(gw.admin("POST", "/admin/purge", json={"tags": ["x"]}), 503)["code"] == "audit_unavailable"
        (tmp_path / "elsewhere").rename(state)
        assert revoke(gw, ALICE).json()["durable"] is True


def test_a_purge_of_everything_takes_what_was_made_before_a_clock_was_set_back(gw: Running) -> None:
    gw.clock.frozen = 1_000_000.0
    gw.chat()
    gw.clock.frozen -= 30
    assert gw.admin("POST", "/admin/purge", json={"older_than": "0s"}).json() == {"purged": 1}
    assert outcome(gw.chat()) == "miss"


def test_a_purge_request_has_a_size(gw: Running) -> None:
    assert gw.admin("POST", "/admin/purge", json={"tags": ["x" * 100] * 200}).status_code == 413
