"""Every request that no cache has answered says why, by its decision; nothing tells of another scope, or any text."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import ALICE, BOB, EVE, Running, config_text, running
from tests.support.live import call, gate, holding, listening
from tests.support.semantic import Room, meaning, said
from tests.support.traffic import decision, error_of, outcome, text_of, until
from tests.support.upstream import Reply, Seen, Upstream, answer_with, chat_answer, numbered

Json = dict[str, Any]
ONLY_CACHED = {"cache-control": "only-if-cached"}


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    """A gateway of the test's own: what the others have asked is not near."""
    extra = "  brief: {cache: {exact: {ttl: 60s, stale_while_revalidate: 60s, stale_if_error: 1h}}}\n"
    extra += "  plain: {cache: {semantic: off}}\n"
    with running(config_text(up.url, extra=extra)) as gateway:
        yield gateway


def why(gw: Running, response: Any) -> Json:
    """What the decision says; it is written when the client has its answer."""
    found = until(lambda: decision(gw, response)["why"])
    assert found.keys() == {"code", "text", "differs", "nearest"}
    assert found["text"].endswith(".")
    return dict(found)


def key(gw: Running, response: Any) -> str:
    return str(decision(gw, response)["key"])


def test_what_differs_and_from_what(gw: Running) -> None:
    first = gw.chat("Hello?", temperature=0)
    assert why(gw, first)["code"] == "first_request"
    assert "since the start of this gateway" in why(gw, first)["text"]
    near = key(gw, first)
    told = [
        (gw.chat("Hello?", temperature=1), "parameter", ["parameter temperature"]),
        (gw.chat("Hello?", temperature=0, model="other-model"), "model", ["model"]),
        (gw.chat("Hello?", temperature=0, path="/rr/v1"), "endpoint", ["endpoint"]),
        (gw.chat("Hello?", temperature=0, headers={"OpenAI-Beta": "x"}), "header", ["header openai-beta"]),
        (gw.chat("Bye!", temperature=0), "question", ["question"]),
    ]
    for response, code, differs in told:
        found = why(gw, response)
        assert (found["code"], found["differs"]) == (code, differs)
        assert found["nearest"] == near
        for name in differs:
            assert code == "question" or name in found["text"]


def test_system_prompts_and_earlier_turns(gw: Running) -> None:
    def ask(*turns: str, system: str = "Be kind.") -> Any:
        said = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(turns)]
        return gw.chat(messages=[{"role": "system", "content": system}, *said])

    ask("a", "b", "c")
    assert why(gw, ask("a", "b", "c", system="Be rude."))["code"] == "system_prompt"
    found = why(gw, ask("a", "B!", "c"))
    assert (found["code"], found["differs"]) == ("earlier_turn", ["earlier turn 2"])
    assert why(gw, ask("a", "b", "c", "d", "e"))["code"] == "continued"


def test_answers_from_a_cache_have_no_why(gw: Running, up: Upstream) -> None:
    asked = [gw.chat("a") for _ in range(3)]
    assert [outcome(response) for response in asked] == ["miss", "exact", "exact"]
    assert [decision(gw, response)["why"] for response in asked[1:]] == [None, None]
    gw.chat("a", path="/brief/v1")
    gw.clock.offset += 90
    stale = gw.chat("a", path="/brief/v1")
    assert outcome(stale) == "stale"
    assert decision(gw, stale)["why"] is None
    with gate() as open_it:
        up.script = holding(open_it)
        lead = call(gw, "joined", stream=False)
        listening(gw, 1)
        other = call(gw, "joined", stream=False)
        listening(gw, 2)
    joined = [decision(gw, caller.result()) for caller in (lead, other)]
    assert {d["outcome"] for d in joined} == {"miss", "joined"}
    until(lambda: decision(gw, lead.result())["why"])
    assert [d["why"] for d in joined if d["outcome"] == "joined"] == [None]


def test_an_answer_past_its_life(gw: Running) -> None:
    first = gw.chat("a", path="/short/v1")
    gw.clock.offset += 60 + 7_300
    found = why(gw, gw.chat("a", path="/short/v1"))
    assert found["code"] == "expired"
    assert "2 hours ago" in found["text"]
    gw.clock.offset += 50
    young = gw.chat("a", path="/short/v1", headers={"cache-control": "max-age=30"})
    assert why(gw, young)["code"] == "older_than_asked"
    kept = gw.chat("a", path="/brief/v1")
    gw.clock.offset += 60 + 600
    found = why(gw, gw.chat("a", path="/brief/v1"))
    assert (found["code"], found["nearest"]) == ("expired", key(gw, kept))
    assert "10 minutes ago" in found["text"]
    assert key(gw, first) != key(gw, kept)


def test_an_answer_that_is_gone(gw: Running) -> None:
    gw.chat("a")
    gw.admin("POST", "/admin/purge", json={"tenant": "acme"})
    assert why(gw, gw.chat("a"))["code"] == "purged_or_evicted"


def test_an_answer_that_could_not_be_kept(gw: Running, up: Upstream) -> None:
    cut = chat_answer("cut of")
    cut["choices"][0]["finish_reason"] = "length"
    up.script = answer_with(cut)
    gw.chat("a")
    found = why(gw, gw.chat("a"))
    assert found["code"] == "not_stored_before"
    assert "greatest length" in found["text"]


def test_an_answer_whose_client_left(gw: Running, up: Upstream) -> None:
    with gate() as open_it:
        up.script = holding(open_it)
        caller = call(gw, "a").hears("one two ")
        caller.leave()
        until(lambda: up.cancelled)
    up.script = numbered
    left = until(lambda: gw.admin("GET", "/admin/decisions", params={"status": "error"}).json()["decisions"])
    assert left[0]["error"] == "client_disconnected"
    until(lambda: decision_of(gw, left[0]["id"])["why"])
    found = why(gw, gw.chat("a"))
    assert found["code"] == "not_stored_before"
    assert "client left" in found["text"]


def test_an_answer_that_was_kept_although_its_first_client_left(gw: Running, up: Upstream) -> None:
    """Whoever had joined has it kept; then it counts for those who ask alike."""
    with gate() as open_it:
        up.script = holding(open_it)
        lead = call(gw, "a").hears("one two ")
        other = call(gw, "a").hears("one two ")
        lead.leave()
        until(lambda: gw.admin("GET", "/admin/decisions", params={"status": "error"}).json()["decisions"])
    assert outcome(other.result()) == "joined"
    up.script = numbered
    kept = gw.chat("a", stream=True)
    assert outcome(kept) == "exact"
    gw.chat("anything", headers={"cache-control": "no-cache"})
    found = why(gw, gw.chat("a", temperature=1))
    assert (found["differs"], found["nearest"]) == (["parameter temperature"], key(gw, kept))


def decision_of(gw: Running, id: str) -> Json:
    return dict(gw.admin("GET", "/admin/decisions", params={"id": id}).json())


def test_requests_that_no_cache_may_serve(gw: Running) -> None:
    gw.chat("a")
    asked: dict[str, Json] = {
        "store_requested": {"store": True},
        "tier_off": {"path": "/uncached/v1"},
        "sampled": {"path": "/careful/v1"},
        "no_store": {"headers": {"cache-control": "no-store"}},
        "hosted_tool": {"tools": [{"type": "web_search"}]},
        "stateful": {"background": True},
        "audio": {"modalities": ["audio"]},
        "tier_not_asked": {"headers": {"x-refrain-tier": "prefix"}},
    }
    for code, more in asked.items():
        response = gw.chat("a", **more)
        assert outcome(response) == "bypass"
        assert why(gw, response) == {"code": code, "text": why(gw, response)["text"], "differs": [], "nearest": None}


def test_requests_that_leave_a_cache_out(gw: Running) -> None:
    gw.chat("a")
    assert why(gw, gw.chat("a", headers={"cache-control": "no-cache"}))["code"] == "no_cache"
    assert why(gw, gw.chat("b", headers={"x-refrain-tier": "semantic"}))["code"] == "tier_not_asked"
    refused = gw.chat("c", headers=ONLY_CACHED)
    error_of(refused, 504)
    assert why(gw, refused)["code"] == "question"


def test_requests_that_fail_before_anything_is_known(gw: Running) -> None:
    for response in (gw.chat("a", key="nobody's"), gw.raw(b"{"), gw.chat("a", path="/nowhere/v1")):
        found = why(gw, response)
        assert found["code"] == "failed"
        assert response.json()["error"]["code"] in found["text"]


def test_a_request_that_fails_later_says_both(gw: Running, up: Upstream) -> None:
    gw.chat("a", path="/rr/v1")
    up.script = lambda seen, number: Reply([b'{"error": {"message": "no"}}'], status=400)
    refused = gw.chat("a", path="/rr/v1", temperature=9)
    assert refused.status_code == 400
    assert why(gw, refused)["differs"] == ["parameter temperature"]
    up.script = numbered
    assert why(gw, gw.chat("a", path="/rr/v1", temperature=9))["code"] == "parameter", "an error is no entry"


def test_it_compares_with_what_was_known_when_the_request_came(gw: Running, up: Upstream) -> None:
    """Two at a time do not explain each other."""
    release = threading.Event()

    def script(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.gate = release
        return reply

    up.script = script
    callers = [call(gw, "a", stream=False, seed=seed) for seed in (1, 2)]
    until(lambda: up.open == 2)
    release.set()
    found = [why(gw, caller.result()) for caller in callers]
    assert [one["code"] for one in found] == ["first_request", "first_request"]


def test_a_large_body_is_explained_as_well(gw: Running) -> None:
    text = "long " * 10_000
    why(gw, gw.chat(text))  # a thread looks at it, and it is known when that is done
    assert why(gw, gw.chat(text, temperature=1))["differs"] == ["parameter temperature"]


def test_a_stream_is_explained_as_well(gw: Running) -> None:
    gw.chat("a", stream=True)
    assert why(gw, gw.chat("a", stream=True, top_p=0.5))["differs"] == ["parameter top_p"]


# Of others, nothing


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [("/v1", ALICE, EVE), ("/personal/v1", ALICE, BOB), ("/permitted/v1", ALICE, BOB)],
    ids=["tenants", "users", "permissions"],
)
def test_another_scope_is_neither_near_nor_hinted_at(gw: Running, path: str, one: str, other: str) -> None:
    theirs = [gw.chat(text, key=one, path=path, temperature=0) for text in ("Hello?", "Bye!")]
    for text in ("Hello?", "New?"):
        found = why(gw, gw.chat(text, key=other, path=path, temperature=1))
        assert found["nearest"] not in [key(gw, response) for response in theirs]
        if text == "Hello?":
            assert (found["code"], found["differs"]) == ("first_request", [])
        else:
            assert (found["code"], found["differs"]) == ("question", ["question"])
    # Not of the same request either: it was never stored for this one.
    assert why(gw, gw.chat("Bye!", key=other, path=path, temperature=0))["code"] not in ("purged_or_evicted", "expired")


def test_no_text_is_in_a_decision(gw: Running, up: Upstream) -> None:
    canary = "CANARY-b81c"
    up.script = answer_with(chat_answer(f"the answer is {canary}"))
    turns = [{"role": "system", "content": canary}, {"role": "user", "content": canary}]
    answers = [
        gw.chat(messages=turns),
        gw.chat(messages=[*turns, {"role": "assistant", "content": canary}, turns[1]]),
        gw.chat(messages=turns, stop=canary, tools=[{"type": "function", "function": {"name": canary}}]),
        gw.chat(canary, store=True),
        gw.chat(canary),
        gw.chat(canary),
    ]
    assert canary in text_of(answers[0])
    for response in answers:
        if outcome(response) != "exact":
            why(gw, response)
    listed = gw.admin("GET", "/admin/decisions")
    assert len(listed.json()["decisions"]) == len(answers)
    assert canary not in listed.text


def test_hostile_names_are_short_and_printable(gw: Running) -> None:
    gw.chat("a")
    hostile = {"\x1b]0;own\x07" + "x" * 4_000: 1, "<script>alert(1)</script>": 1, **{f"p{i}": i for i in range(30)}}
    found = why(gw, gw.chat("a", **hostile))
    assert (found["code"], len(found["differs"])) == ("several", 8)
    assert all(name.isprintable() and len(name) < 80 for name in found["differs"])
    assert "and 24 more" in found["text"]
    assert len(json.dumps(found)) < 2_000


# The semantic tier's word


def test_the_verifiers_reason_with_the_similarity(up: Upstream) -> None:
    with meaning(config_text(up.url)) as gw:
        room = Room(gw)
        first = room.ask("How do I cancel order 1234?")
        room.told("What is the capital of Peru?")
        refused = room.ask("How do I cancel order 99?")
        found = why(gw, refused)
        tier = said(gw, refused)
        assert found["code"] == "question"
        assert "the verifier refused it: numbers differ." in found["text"]
        assert f"similarity {tier['similarity']:.2f}" in found["text"]
        assert found["nearest"] == key(gw, first), "the nearest question, not the latest"
        report = {"request_id": refused.headers["x-request-id"], "correct": False}
        error_of(gw.admin("POST", "/admin/feedback", json=report), 409)  # the nearest question was not its answer
        found = why(gw, room.ask("Who wrote Hamlet?"))
        assert "not near enough" in found["text"] or "No question is near." in found["text"]
        found = why(gw, room.ask("What time is it now?"))
        assert "about now" in found["text"]


def test_an_endpoint_without_the_semantic_tier_says_so(gw: Running) -> None:
    gw.chat("a", path="/plain/v1")
    assert "it is off for this endpoint" in why(gw, gw.chat("b", path="/plain/v1"))["text"]
