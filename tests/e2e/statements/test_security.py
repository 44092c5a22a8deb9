"""Statements 35 to 37 and 39: who is served, what a client cannot choose, and what must never leak."""

import json
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.load import parse_config
from tests.support.gateway import ADMIN, ALICE, BOB, EVE, KEYS, Running, config_text, running
from tests.support.process import refrain, serve
from tests.support.traffic import error_of, fixed, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, chat_chunks, free_port, reply_for, sse, upstream

Json = dict[str, Any]

# Statement 35

WRONG = {
    "none": {},
    "empty": {"authorization": ""},
    "no key": {"authorization": "Bearer"},
    "wrong key": {"authorization": "Bearer rf-wrong"},
    "key cut": {"authorization": f"Bearer {ALICE[:-1]}"},
    "key and more": {"authorization": f"Bearer {ALICE}x"},
    "key in capitals": {"authorization": f"Bearer {ALICE.upper()}"},
    "two keys": {"authorization": f"Bearer {ALICE} {ALICE}"},
    "other scheme": {"authorization": f"Basic {ALICE}"},
    "no scheme": {"authorization": ALICE},
    "quote": {"authorization": "Bearer ' OR '1'='1"},
    "control": {"authorization": "Bearer a\tb"},
    "not ASCII": {"authorization": "Bearer sché".encode()},
    "long": {"authorization": "Bearer " + "a" * 30_000},
    "hash of the key": {"authorization": "Bearer sha256:" + "0" * 64},
    "x-api-key": {"x-api-key": "rf-wrong"},
    "conflict": {"authorization": f"Bearer {ALICE}", "x-api-key": BOB},
    "cookie": {"cookie": f"key={ALICE}"},
}


@pytest.mark.parametrize(
    ("headers", "stream"),
    [(headers, False) for headers in WRONG.values()] + [(WRONG["none"], True), (WRONG["wrong key"], True)],
    ids=[*WRONG, "none, sse", "wrong key, sse"],
)
def test_statement_35_without_a_valid_key_nothing_cached_is_served(
    gw: Running, up: Upstream, headers: Json, stream: bool
) -> None:
    """Statement 35: no, wrong or mangled credentials get 401 in the envelope, also for what is in the cache."""
    content = f"known answer {stream}"
    body = json.dumps({"model": "test-model", "messages": [{"role": "user", "content": content}], "stream": stream})
    for path in ("/v1", "/everyone/v1"):
        outcome(gw.raw(body.encode(), path=path))
        outcome(gw.raw(body.encode(), path=path))  # and by the short way from here on
        with upstream_calls(up, 0):
            response = gw.client.post(
                f"{path}/chat/completions", content=body, headers={"content-type": "application/json", **headers}
            )
        error = error_of(response, 401)
        assert error["type"] == "authentication_error"
        assert ALICE not in response.text


def test_statement_35_a_key_in_the_query_or_body_is_none(gw: Running, up: Upstream) -> None:
    """Statement 35: credentials are taken from the two documented headers only."""
    body = {"model": "test-model", "messages": [{"role": "user", "content": "a"}], "api_key": ALICE, "user": "alice"}
    with upstream_calls(up, 0):
        error_of(gw.client.post(f"/v1/chat/completions?api_key={ALICE}&key={ALICE}", json=body), 401)


def test_statement_35_x_api_key_is_as_good(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 35, the other side: x-api-key authenticates as Authorization does, and as the same principal."""
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    ways = [
        {"x-api-key": ALICE},
        {"authorization": f"bearer {ALICE}"},
        {"authorization": f"Bearer {ALICE}", "x-api-key": ALICE},
    ]
    with upstream_calls(up, 1):
        answers = [gw.client.post("/personal/v1/chat/completions", json=body, headers=way) for way in ways]
    assert [outcome(a) for a in answers] == ["miss", "exact", "exact"]


def test_statement_35_a_removed_key_ends_at_once(up: Upstream, tmp_path: Path, prompt: str) -> None:
    """Statement 35: a key taken out of the configuration is refused without waiting for any cache to expire."""
    text = config_text(up.url)
    path = tmp_path / "refrain.yaml"
    with running(text, path=path) as gw:
        for _ in range(2):
            outcome(gw.chat(prompt, key=ALICE))
        line = next(line for line in KEYS.splitlines() if ALICE in line)
        path.write_text(text.replace(line + "\n", "") + "  applied: {mode: stream}\n")
        until(lambda: gw.admin("GET", "/applied/v1/models").status_code == 200)
        with upstream_calls(up, 0):
            error_of(gw.chat(prompt, key=ALICE), 401)
            assert outcome(gw.chat(prompt, key=BOB)) == "exact"


def test_statement_35_hits_need_what_misses_need(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 35: another tenant's valid key does not open this tenant's answer."""
    with upstream_calls(up, 2):
        assert [outcome(gw.chat(prompt, key=k)) for k in (ALICE, ALICE, EVE)] == ["miss", "exact", "miss"]


# Statement 36


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Upstream]:
    """Where a client would like the gateway to call."""
    with upstream() as app:
        yield app


def lures(elsewhere: Upstream) -> list[Json]:
    fields: Json = {
        "api_base": elsewhere.url,
        "base_url": elsewhere.url,
        "api_key": "sk-from-the-client",
        "custom_llm_provider": "openai",
        "backend": "local",
        "namespace": "globex",
        "tenant": "globex",
        "scope": "public",
        "share": "public",
        "cache_salt": "salt",
        "extra_headers": {"authorization": "Bearer sk-from-the-client"},
        "extra_body": {"api_base": elsewhere.url},
        "metadata": {"api_base": elsewhere.url, "tenant": "globex"},
        "user": "eve",
    }
    return [{k: v} for k, v in fields.items()]


def test_statement_36_no_field_chooses_a_route_or_a_credential(
    gw: Running, up: Upstream, elsewhere: Upstream, prompt: str
) -> None:
    """Statement 36: body fields that name a base URL, a key, a tenant are data, at the top, nested, or in a message."""
    for number, lure in enumerate(lures(elsewhere)):
        text = f"{prompt} {number}"
        message = {"role": "user", "content": text, **lure}
        for more in (lure, {"nested": {"deep": [lure]}}, {"messages": [message], "seed": 1}):
            outcome(gw.chat(text, **more))
            assert up.seen[-1].headers["authorization"] == "Bearer sk-upstream-secret"
    assert elsewhere.calls == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"x-refrain-tenant": "globex"},
        {"x-refrain-scope": "public"},
        {"x-refrain-on-behalf": "user=eve; permissions=finance"},
        {"x-refrain-backend": "local"},
        {"x-tenant-id": "globex"},
        {"x-api-base": "http://127.0.0.1:1/v1"},
        {"x-namespace": "globex"},
        {"x-cache-salt": "salt"},
        {"x-forwarded-for": "127.0.0.1"},
        {"x-forwarded-host": "globex.example"},
        {"host": "globex.example"},
        {"openai-organization": "globex"},
        {"x-forwarded-user": "eve"},
        {"x-http-method-override": "GET"},
        {"x-original-url": "/everyone/v1/chat/completions"},
    ],
    ids=lambda h: next(iter(h)),
)
def test_statement_36_no_header_chooses_a_scope_or_a_backend(
    gw: Running, up: Upstream, prompt: str, headers: dict[str, str]
) -> None:
    """Statement 36: the answer lands in the caller's own scope, whatever the headers say, and others do not see it."""
    with upstream_calls(up, 3):
        assert outcome(gw.chat(prompt, path="/personal/v1", headers=headers)) == "miss"
        assert outcome(gw.chat(prompt, path="/personal/v1")) == "exact"
        assert outcome(gw.chat(prompt, path="/personal/v1", key=BOB, headers=headers)) == "miss"
        assert outcome(gw.chat(prompt, path="/personal/v1", key=EVE)) == "miss"
    listed = gw.admin("GET", "/admin/entries", params={"endpoint": "personal", "limit": "3"}).json()["entries"]
    assert {(e["tenant"], e["user"]) for e in listed} == {("acme", "alice"), ("acme", "bob"), ("globex", "eve")}
    assert up.seen[-1].headers["authorization"] == "Bearer sk-upstream-secret"


def test_statement_36_the_cache_object_chooses_no_partition(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 36: a namespace in a LiteLLM-style `cache` object changes neither scope nor key."""
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, cache={"namespace": "a", "ttl": 600})) == "miss"
        assert outcome(gw.chat(prompt, cache={"namespace": "b"})) == "exact"
        assert outcome(gw.chat(prompt)) == "exact"


def test_statement_36_the_model_does_not_choose_an_address(gw: Running, up: Upstream, elsewhere: Upstream) -> None:
    """Statement 36: a model name that looks like a URL or a path is a name."""
    for model in (elsewhere.url, "../../admin/purge", "fake/../local", "openai/gpt", "x\r\nauthorization: Bearer y"):
        response = gw.chat("a", model=model)
        assert response.status_code in (200, 400, 404)
    assert elsewhere.calls == 0
    assert all(seen.path == "/v1/chat/completions" for seen in up.seen[-4:])


# Statement 37

CLIENT_KEY = "canary-client-8f1d7c"
WRONG_KEY = "canary-wrong-22ab90"
UPSTREAM_KEY = "canaryupstream5be0"
URL_PART = "canary-url-71c3"
PROMPT = "canary-prompt-e04a"
ANSWER = "canary-answer-9d55"
CANARIES = {CLIENT_KEY, WRONG_KEY, UPSTREAM_KEY, URL_PART, PROMPT}

SECRET_CONFIG = """
auth:
  keys:
    - {{key: "${{CLIENT_KEY}}", tenant: acme, user: alice}}
    - {{key: "{admin}", tenant: ops, user: root, role: admin}}
store: {{url: "{store}"}}
backends:
  fake:
    kind: remote
    base_url: "{url}"
    api_key: "${{UPSTREAM_KEY}}"
    timeouts: {{first_byte: 500ms, between_chunks: 500ms}}
  dead: {{kind: remote, base_url: "{dead}", api_key: "${{UPSTREAM_KEY}}"}}
models: {{"dead-*": dead, "*": fake}}
endpoints:
  default: {{mode: stream}}
  rr: {{mode: request_response}}
"""


def telling(seen: Seen) -> str:
    """What a careless upstream says about a request that it refuses."""
    return (
        f"Incorrect key {UPSTREAM_KEY} (header: {seen.headers.get('authorization')}) at "
        f"http://{seen.headers['host']}/{URL_PART}/v1{seen.path}: cannot answer this"
    )


def careless(status: int, **headers: str) -> Any:
    def script(seen: Seen, number: int) -> Reply:
        fields = {"message": telling(seen), "type": f"t {UPSTREAM_KEY}", "param": telling(seen), "code": UPSTREAM_KEY}
        return Reply([json.dumps({"error": fields}).encode()], status=status, headers=headers)

    return script


def careless_stream(seen: Seen, number: int) -> Reply:
    begun = sse(chat_chunks(chat_answer("a b c"), include_usage=True)[:2], done=False)
    error = {"error": {"message": telling(seen), "type": "x", "param": None, "code": UPSTREAM_KEY}}
    return Reply([begun, b"data: " + json.dumps(error).encode() + b"\n\n"], content_type="text/event-stream")


def quiet(seen: Seen, number: int) -> Reply:
    return reply_for(seen, chat_answer(ANSWER))


@pytest.fixture(scope="module")
def leaky(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, list[str]]]:
    """A real `refrain serve` with canaries in its secrets, after a stormy life; its URL, home and error bodies."""
    home = tmp_path_factory.mktemp("home")
    text = SECRET_CONFIG.format(
        admin=ADMIN,
        store=f"sqlite:///{home}/cache.db",
        url=up.url.replace("/v1", f"/{URL_PART}/v1"),
        dead=f"http://127.0.0.1:{free_port()}/{URL_PART}/v1",
    )
    (home / "refrain.yaml").write_text(text)
    bodies: list[str] = []
    with serve(home, CLIENT_KEY=CLIENT_KEY, UPSTREAM_KEY=UPSTREAM_KEY) as served:
        served.wait_ready(path="/healthz")
        with httpx.Client(base_url=served.url, timeout=30, trust_env=False) as client:

            def ask(path: str = "/v1/chat/completions", key: str = CLIENT_KEY, **more: Any) -> httpx.Response:
                body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], **more}
                response = client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
                bodies.append(f"{response.headers}{response.text}")
                return response

            up.script = quiet
            for stream in (False, True):
                for _ in range(2):
                    assert ask(stream=stream).status_code == 200
            storms = [careless(s) for s in (400, 401, 403, 404, 409, 418, 422, 429, 500, 503)]
            storms += [
                careless(302, location=f"http://127.0.0.1:1/{URL_PART}"),
                careless_stream,
                fixed(Reply([f"<html>{UPSTREAM_KEY} {URL_PART}</html>".encode()], content_type="text/html")),
                fixed(Reply([f"data: {UPSTREAM_KEY} {URL_PART}\n\n".encode()], content_type="text/event-stream")),
                fixed(Reply([b"{}"], first_pause=2)),
                fixed(Reply([b"{", b"}"], cut=True)),
            ]
            for seed, storm in enumerate(storms):
                up.script = storm
                ask("/v1/chat/completions", seed=seed, stream=True)
                ask("/rr/v1/chat/completions", seed=seed)
            ask(model="dead-model")
            ask(key=WRONG_KEY)
            ask(f"/v1/chat/completions?key={WRONG_KEY}", key=WRONG_KEY)
            ask("/nowhere/v1/chat/completions")
            ask("/v1/nowhere")
            for bad in (
                f'{{"model": "m", "messages": [{{"content": "{PROMPT}", "role": "user"}}], "x": NaN}}',
                f'{{"a": "{PROMPT}',
            ):
                response = client.post(
                    "/v1/chat/completions", content=bad, headers={"authorization": f"Bearer {CLIENT_KEY}"}
                )
                assert response.status_code == 400
                bodies.append(response.text)
            for number, more in enumerate(
                ({"n": PROMPT}, {"stream": PROMPT}, {"messages": PROMPT}, {"messages": [PROMPT]})
            ):
                assert ask(**more).status_code == 400, number
            response = client.post(
                "/admin/purge", json={"user": PROMPT}, headers={"authorization": f"Bearer {WRONG_KEY}"}
            )
            bodies.append(response.text)
            for path in (
                "/admin/stats",
                "/admin/decisions",
                "/admin/entries",
                "/admin/keys",
                "/admin/audit",
                "/metrics",
                "/healthz",
                "/readyz",
                "/v1/models",
            ):
                shown = client.get(path, headers={"authorization": f"Bearer {ADMIN}"})
                assert shown.status_code == 200
                bodies.append(f"{path} {shown.headers}{shown.text}")
        assert served.stop() in (0, -signal.SIGTERM)
    bodies.append(f"log {served.log.read_text()}")
    assert len(bodies) > 45
    up.script = quiet
    return (yield (served.url, home, bodies))


@pytest.mark.slow
@pytest.mark.parametrize("canary", sorted(CANARIES))
def test_statement_37_no_secret_shows(leaky: tuple[str, Path, list[str]], canary: str) -> None:
    """Statement 37: keys, prompts, upstream URLs and what upstreams tell about them are in no error, log or metric."""
    found = [body[:600] for body in leaky[2] if canary in body]
    assert not found, f"{len(found)} places, the first: {found[0]}"


def test_statement_37_the_storm_was_one(leaky: tuple[str, Path, list[str]]) -> None:
    """Statement 37: the answers looked through hold errors of every kind, and the log holds lines at all."""
    text = "".join(leaky[2])
    for word in (ANSWER, "authentication_error", "refrain_requests_total", "backend_", '"decisions"', '"entries"'):
        assert word in text, word
    assert len(leaky[2][-1]) > 200


def test_statement_37_no_secret_is_in_the_file(leaky: tuple[str, Path, list[str]]) -> None:
    """Statement 37: the store holds answers and the questions that they may be found by, but neither keys nor
    addresses, and nothing of a prompt in its keys."""
    home = leaky[1]
    content = b"".join(p.read_bytes() for p in home.glob("cache.db*"))
    assert content
    for canary in CANARIES - {PROMPT}:
        assert canary.encode() not in content
    with sqlite3.connect(home / "cache.db") as db:
        keys = [key for (key,) in db.execute("SELECT key FROM entries")]
    db.close()
    assert keys
    assert {len(key) for key in keys} == {32}


def test_statement_37_no_secret_is_in_a_repr_or_in_check(up: Upstream, tmp_path: Path) -> None:
    """Statement 37: configurations print without their secrets, and `refrain check` masks them."""
    text = SECRET_CONFIG.format(admin=ADMIN, store="memory://", url=up.url, dead=up.url)
    env = {"CLIENT_KEY": CLIENT_KEY, "UPSTREAM_KEY": UPSTREAM_KEY}
    config = parse_config(text, env)
    (tmp_path / "refrain.yaml").write_text(text)
    checked = refrain("check", "--config", "refrain.yaml", cwd=tmp_path, **env)
    assert checked.returncode == 0, checked.stderr
    assert "fake" in checked.stdout + checked.stderr
    for shown in (repr(config), str(config), checked.stdout, checked.stderr):
        assert not [secret for secret in (CLIENT_KEY, UPSTREAM_KEY, ADMIN) if secret in shown]


def test_statement_37_a_broken_configuration_does_not_show_its_secrets(tmp_path: Path) -> None:
    """Statement 37: what is refused at start is named, and not repeated."""
    (tmp_path / "refrain.yaml").write_text(
        f"backends:\n  x: {{kind: remote, base_url: 'http://u:{UPSTREAM_KEY}@h/v1', "
        f"api_key: [{CLIENT_KEY}], oops: {WRONG_KEY}}}\n"
    )
    done = refrain("check", "--config", "refrain.yaml", cwd=tmp_path)
    assert done.returncode != 0
    assert "backends.x" in done.stdout + done.stderr
    assert not [c for c in CANARIES if c in done.stdout + done.stderr]


# Statement 39

CLOSED = [
    ("GET", "/admin/stats"),
    ("GET", "/admin/decisions"),
    ("GET", "/admin/decisions?id=req_1"),
    ("GET", "/admin/entries"),
    ("POST", "/admin/purge"),
    ("GET", "/metrics"),
    ("GET", "/admin"),
    ("GET", "/admin/config"),
    ("GET", "/admin/keys"),
    ("POST", "/admin/keys/revoke"),
    ("GET", "/admin/audit"),
    ("GET", "/docs"),
    ("GET", "/redoc"),
    ("GET", "/openapi.json"),
    ("GET", "/debug"),
    ("GET", "/.env"),
    ("GET", "/admin/../admin/stats"),
    ("GET", "//admin/stats"),
    ("GET", "/v1/../admin/stats"),
    ("GET", "/admin/stats/"),
    ("GET", "/default/v1/../../admin/stats"),
    ("GET", "/ADMIN/stats"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_statement_39_nothing_is_shown_to_those_without_the_role(gw: Running, method: str, path: str) -> None:
    """Statement 39: purge, stats, config, metrics and docs are 401, 403 or 404."""
    body = {"json": {"older_than": "0s"}} if method == "POST" else {}
    for key in (None, "rf-wrong", ALICE):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        response = gw.client.request(method, path, headers=headers, **body)
        assert response.status_code in (401, 403, 404), response.text
        assert error_of(response, response.status_code)


@pytest.mark.parametrize("path", ["/metrics", "/admin/config", "/docs", "/openapi.json"])
def test_statement_39_a_tenant_admin_is_no_admin(gw: Running, path: str) -> None:
    """Statement 39: what shows all tenants is not for the admin of one."""
    assert gw.admin("GET", path, key=EVE).status_code in (403, 404)


def test_statement_39_a_refused_purge_removes_nothing(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 39: a member's purge, or one without a key, leaves everything as it is."""
    outcome(gw.chat(prompt))
    for key in ("rf-wrong", ALICE, BOB):
        assert gw.admin("POST", "/admin/purge", key=key, json={"older_than": "0s"}).status_code in (401, 403)
    with upstream_calls(up, 0):
        assert outcome(gw.chat(prompt)) == "exact"


PATTERNS = [
    "*",
    "?",
    "[a-z]*",
    "\\*",
    "a*",
    "%",
    "_",
    "acm_",
    "acme%",
    ".*",
    "a?me",
    "[]",
    "\\",
    "acme*",
    "{acme}",
    "' OR 1=1 --",
    "\x00",
    "ACME",
]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_statement_39_pattern_characters_are_ordinary_text(up: Upstream, tmp_path: Path, store: str) -> None:
    """Statement 39: a purge with `*`, `?`, `[`, `%` removes what is named so, and nothing else."""
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/cache.db"
    with running(config_text(up.url, store=url)) as gw:
        outcome(gw.chat("plain", path="/personal/v1", headers={"x-refrain-tags": "acme,red"}))
        for pattern in PATTERNS:
            for name in ("endpoint", "model", "tenant", "user", "tags", "documents"):
                value: Any = [pattern] if name in ("tags", "documents") else pattern
                purge = gw.admin("POST", "/admin/purge", json={name: value})
                assert purge.json() == {"purged": 0}, f"{name}: {pattern}"
        with upstream_calls(up, 0):
            assert outcome(gw.chat("plain", path="/personal/v1")) == "exact"
        outcome(gw.chat("starred", path="/personal/v1", headers={"x-refrain-tags": "*"}))
        assert gw.admin("POST", "/admin/purge", json={"tags": ["*"]}).json() == {"purged": 1}
        with upstream_calls(up, 1):
            assert outcome(gw.chat("plain", path="/personal/v1")) == "exact"
            assert outcome(gw.chat("starred", path="/personal/v1")) == "miss"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_statement_39_a_tenant_admin_purges_its_own_tenant_only(up: Upstream, tmp_path: Path, store: str) -> None:
    """Statement 39: whatever the criterion, other tenants' entries stay; naming another tenant is refused."""
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/cache.db"
    with running(config_text(up.url, store=url)) as gw:
        outcome(gw.chat("a", key=ALICE, headers={"x-refrain-tags": "red"}))
        key = gw.admin("GET", "/admin/entries").json()["entries"][0]["key"]
        criteria: list[Json] = [
            {"key": key},
            {"tags": ["red"]},
            {"endpoint": "default"},
            {"model": "test-model"},
            {"user": "alice"},
            {"older_than": "0s"},
        ]
        gw.clock.offset = 5  # older_than: 0s means made before now
        for criterion in criteria:
            assert gw.admin("POST", "/admin/purge", key=EVE, json=criterion).json() == {"purged": 0}, criterion
            named = gw.admin("POST", "/admin/purge", key=EVE, json={**criterion, "tenant": "acme"})
            assert named.status_code == 403
        with upstream_calls(up, 0):
            assert text_of(gw.chat("a", key=ALICE))
        outcome(gw.chat("a", key=EVE))
        gw.clock.offset = 10
        assert gw.admin("POST", "/admin/purge", key=EVE, json={"older_than": "0s"}).json() == {"purged": 1}
