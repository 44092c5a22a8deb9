"""The response headers of DESIGN 5, on every kind of answer."""

import re

import httpx
import pytest

from tests.support.gateway import BOB, Running
from tests.support.traffic import byte_identical, decision, error_of, fixed, outcome, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream

FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])

OUTCOMES = {"exact", "semantic", "joined", "stale", "miss", "bypass"}
FORWARDS = {"bypass", "method", "uri-miss", "vary-miss", "miss", "request", "stale", "partial"}  # RFC 9211, 2.2
MEMBER = re.compile(r'([a-z]+)((?:; [a-z-]+(?:=(?:"[^"]*"|[^;,"]+))?)*)')
TIMING = re.compile(r"[a-z_]+;dur=\d+(\.\d+)?(, [a-z_]+;dur=\d+(\.\d+)?)*")


def cache_status(response: httpx.Response) -> list[tuple[str, dict[str, str | bool]]]:
    """Cache-Status as a list of (tier, parameters), held to RFC 9211."""
    out = []
    for text in response.headers["cache-status"].split(", "):
        match = MEMBER.fullmatch(text)
        assert match, text
        pairs = (p.partition("=") for p in match[2].split("; ")[1:])
        parameters: dict[str, str | bool] = {name: value.strip('"') if eq else True for name, eq, value in pairs}
        assert ("hit" in parameters) != ("fwd" in parameters)
        assert parameters.get("fwd", "miss") in FORWARDS, text
        assert re.fullmatch(r"-?\d+", str(parameters.get("ttl", "0")))
        out.append((match[1], parameters))
    return out


def has_what_every_answer_has(response: httpx.Response) -> None:
    headers = response.headers
    assert headers["x-refrain-cache"] in OUTCOMES
    assert headers["cache-control"] == "private, no-store"
    assert TIMING.fullmatch(headers["server-timing"]), headers["server-timing"]
    assert headers["x-request-id"]
    assert cache_status(response)
    for name in ("x-refrain-cache", "cache-control", "x-request-id", "content-type"):
        assert len(headers.get_list(name)) == 1


def has_what_a_reuse_has(response: httpx.Response, *, age: int, ttl: int) -> None:
    assert response.headers["x-refrain-cache"] == "exact"
    assert response.headers["age"] == str(age)
    assert cache_status(response) == [("exact", {"hit": True, "ttl": str(ttl)})]
    assert re.fullmatch(r"tokens=18; ms=\d+", response.headers["x-refrain-saved"])


@MODES
@FORMS
def test_miss_then_hit_then_byte_identical_hit(gw: Running, prompt: str, path: str, stream: bool) -> None:
    kind = "text/event-stream" if stream else "application/json"
    gw.clock.frozen = 1_000_000.0
    miss = gw.chat(prompt, path=path, stream=stream)
    gw.clock.offset += 60
    hit = gw.chat(prompt, path=path, stream=stream, user="another")
    short = gw.chat(prompt, path=path, stream=stream)
    assert not byte_identical(gw, hit)
    assert byte_identical(gw, short)
    for response in (miss, hit, short):
        has_what_every_answer_has(response)
        assert response.headers["content-type"].partition(";")[0] == kind
    assert outcome(miss) == "miss"
    assert cache_status(miss) == [("exact", {"fwd": "miss"})]
    assert "x-refrain-saved" not in miss.headers
    for response in (hit, short):
        has_what_a_reuse_has(response, age=60, ttl=86_400 - 60)
    assert len({r.headers["x-request-id"] for r in (miss, hit, short)}) == 3
    assert hit.content == short.content


def test_both_ways_of_a_hit_say_the_same(gw: Running, prompt: str) -> None:
    """A client cannot tell, but for times and ids, whether its request was parsed."""
    gw.chat(prompt, path="/rr/v1")
    hit = gw.chat(prompt, path="/rr/v1", user="another")
    short = gw.chat(prompt, path="/rr/v1")
    changing = {"x-request-id", "server-timing", "date", "cache-status"}
    assert hit.headers.keys() == short.headers.keys()
    assert {k: v for k, v in hit.headers.items() if k not in changing} == {
        k: v for k, v in short.headers.items() if k not in changing
    }
    assert "auth;dur=" in hit.headers["server-timing"]
    assert "exact;dur=" in short.headers["server-timing"]


@FORMS
def test_the_request_id_names_the_decision(gw: Running, prompt: str, stream: bool) -> None:
    for expected in ("miss", "exact", "exact"):
        response = gw.chat(prompt, stream=stream)
        record = decision(gw, response)
        assert record["id"] == response.headers["x-request-id"]
        assert record["outcome"] == expected == response.headers["x-refrain-cache"]
        assert (record["tenant"], record["user"], record["endpoint"]) == ("acme", "alice", "default")
        assert record["status"] == 200
        assert record["stream"] is stream
        assert prompt not in str(record)


def test_the_decision_is_on_record_before_the_answer_ends(gw: Running, prompt: str) -> None:
    """Whoever has read an answer finds its decision."""
    for number in range(20):
        assert decision(gw, gw.chat(f"{prompt} {number}", stream=bool(number % 2)))["ms"] > 0


@MODES
def test_the_providers_own_request_id(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    script = up.script

    def identified(seen: Seen, number: int) -> Reply:
        reply = script(seen, number)
        reply.headers["x-request-id"] = f"up-{number}"
        return reply

    up.script = identified
    miss = gw.chat(prompt, path=path)
    assert miss.headers["x-refrain-upstream-id"] == f"up-{up.calls}"
    assert miss.headers["x-request-id"] != miss.headers["x-refrain-upstream-id"]
    for user in ("other", "other"):
        hit = gw.chat(prompt, path=path, user=user)
        assert hit.headers["x-refrain-upstream-id"] == miss.headers["x-refrain-upstream-id"]
        assert hit.headers["x-request-id"] not in (miss.headers["x-request-id"], f"up-{up.calls}")


def test_saved_money_where_a_price_is_known(gw: Running, prompt: str) -> None:
    """11 tokens in at 1 USD and 7 out at 2 USD per million are 0.000025 USD."""
    gw.chat(prompt, model="priced-model")
    for _ in range(2):
        saved = gw.chat(prompt, model="priced-model").headers["x-refrain-saved"]
        assert re.fullmatch(r"tokens=18; usd=0\.000025; ms=\d+", saved)


def test_saved_time_is_that_of_the_upstream_call(gw: Running, up: Upstream, prompt: str) -> None:
    script = up.script

    def slow(seen: Seen, number: int) -> Reply:
        reply = script(seen, number)
        reply.first_pause = 0.2
        return reply

    up.script = slow
    gw.chat(prompt)
    saved = gw.chat(prompt).headers["x-refrain-saved"]
    assert 200 <= int(saved.rpartition("ms=")[2]) < 5_000


@FORMS
@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"cache-control": "no-cache"}},
        {"headers": {"cache-control": "no-store"}},
        {"headers": {"cache-control": "max-age=0"}},
        {"headers": {"x-refrain-tier": "semantic"}},
        {"store": True},
        {"path": "/uncached/v1"},
        {"path": "/careful/v1"},
        {"cache": {"no-cache": True}},
    ],
    ids=str,
)
def test_requests_that_pass_by_the_cache(gw: Running, prompt: str, stream: bool, more: dict[str, object]) -> None:
    """What is not looked up says so in the words of RFC 9211."""
    response = gw.chat(prompt, stream=stream, **more)
    has_what_every_answer_has(response)
    assert outcome(response) in ("miss", "bypass")
    assert cache_status(response)[0][1]["fwd"] != "miss"


@MODES
@pytest.mark.parametrize("why", ["expired", "too old"])
def test_an_entry_that_is_no_longer_good(gw: Running, prompt: str, path: str, why: str) -> None:
    gw.clock.frozen = 1_000_000.0
    gw.chat(prompt, path=path)
    gw.clock.offset += 90_000 if why == "expired" else 60
    response = gw.chat(prompt, path=path, headers={} if why == "expired" else {"cache-control": "max-age=30"})
    has_what_every_answer_has(response)
    assert outcome(response) == "miss"
    assert "age" not in response.headers or response.headers["age"] == "0"


@FORMS
@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_upstream_error_has_the_headers_too(
    gw: Running, up: Upstream, prompt: str, stream: bool, status: int
) -> None:
    up.script = fixed(Reply([b'{"error": {"message": "no"}}'], status=status))
    response = gw.chat(prompt, stream=stream)
    assert response.status_code == status
    has_what_every_answer_has(response)
    assert response.headers["x-refrain-cache"] == "miss"
    record = decision(gw, response)
    assert record["status"] == status
    assert record["stored"] is False


def test_nothing_cached_has_the_headers_too(gw: Running, prompt: str) -> None:
    response = gw.chat(prompt, headers={"cache-control": "only-if-cached"})
    assert response.status_code == 504
    has_what_every_answer_has(response)


def test_errors_before_the_cache_have_an_id_of_their_own(gw: Running) -> None:
    ids = set()
    for response in (
        gw.chat("a", key="rf-wrong"),
        gw.raw(b"{"),
        gw.chat("a", path="/nowhere/v1"),
        gw.client.get("/nowhere"),
        gw.client.get("/v1/chat/completions"),
        gw.client.get("/v1/models"),
        gw.admin("GET", "/admin/stats", key=BOB),
        gw.raw(b"{}", **{"content-encoding": "gzip"}),
    ):
        error_of(response, response.status_code)
        assert response.status_code >= 400
        ids.add(response.headers["x-request-id"])
    assert len(ids) == 8


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/readyz"])
def test_other_answers_keep_outer_caches_out_as_well(gw: Running, path: str) -> None:
    response = gw.admin("GET", path)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "private, no-store"
    assert response.headers["x-request-id"]


@MODES
@FORMS
def test_what_the_upstream_says_about_itself_is_not_passed_on(
    gw: Running, up: Upstream, prompt: str, path: str, stream: bool
) -> None:
    """Cookies, rate limits, dates and connection headers of the upstream reach no client, on a miss or a hit."""
    script = up.script
    own = {
        "set-cookie": "session=secret",
        "x-ratelimit-remaining-requests": "1",
        "openai-processing-ms": "5",
        "openai-organization": "org-secret",
        "cache-control": "public, max-age=3600",
        "age": "77",
        "via": "1.1 proxy",
        "x-refrain-cache": "exact",
        "strict-transport-security": "max-age=1",
        "access-control-allow-origin": "*",
    }

    def chatty(seen: Seen, number: int) -> Reply:
        reply = script(seen, number)
        reply.headers.update(own)
        return reply

    up.script = chatty
    with upstream_calls(up, 1):
        answers = [gw.chat(prompt, path=path, stream=stream, user=user) for user in ("a", "b", "b")]
    assert [outcome(a) for a in answers] == ["miss", "exact", "exact"]
    for answer in answers:
        assert not set(answer.headers) & (own.keys() - {"cache-control", "age", "x-refrain-cache"})
        assert answer.headers["cache-control"] == "private, no-store"
        assert answer.headers.get("age", "0") == "0"
