"""Statements 18, 23, 24, 26 and 27: many ask the same at once, and one upstream call answers them all."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import ALICE, BOB, EVE, Running, config_text, running
from tests.support.live import (
    FORMS,
    TOKENS,
    answer_of,
    call,
    first_byte_held,
    gate,
    gated,
    holding,
    listening,
    not_kept,
    settled,
    together,
)
from tests.support.traffic import decision, essence, outcome, until, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, reply_for

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
EXTRA = """
  going_on: {mode: stream, finish: true}
"""


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


# Statement 18


@pytest.mark.parametrize("form", FORMS)
def test_statement_18_when_all_have_left_the_upstream_is_cancelled(
    gw: Running, up: Upstream, prompt: str, form: str
) -> None:
    """Statement 18: no partial entry, and an upstream that works for nobody is cancelled."""
    with gate() as go:
        up.script = holding(go)
        callers = together(gw, prompt, [form, "sse"])
        callers[1].hears("one two ")
        cancelled = up.cancelled
        callers[0].leave()
        listening(gw, 1)
        callers[1].leave()
        until(lambda: up.cancelled == cancelled + 1)
        settled(gw)
        not_kept(gw, up, prompt)
        go.set()
        with upstream_calls(up, 1):
            assert outcome(gw.chat(prompt)) == "miss"


def test_statement_18_no_entry_is_visible_before_the_end(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 18: half an answer is no entry while it comes, nor after one of its clients has left."""
    with gate() as go:
        up.script = holding(go)
        callers = together(gw, prompt, ["sse", "sse"])
        callers[1].hears("one two ")
        not_kept(gw, up, prompt)
        callers[0].leave()
        listening(gw, 1)
        not_kept(gw, up, prompt)
        go.set()
        callers[1].result()
        assert outcome(gw.chat(prompt)) == "exact"


def test_statement_18_or_completed_in_the_background_where_set(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 18: with `finish: true` the call goes on for nobody, and its answer is stored."""
    with gate() as go:
        up.script = holding(go)
        with upstream_calls(up, 1):
            caller = call(gw, prompt, path="/going_on/v1").hears("one two ")
            caller.leave()
            listening(gw, 0)
            not_kept(gw, up, prompt, path="/going_on/v1")
            go.set()
            settled(gw)
            hit = gw.chat(prompt, path="/going_on/v1")
    assert outcome(hit) == "exact"
    assert hit.json()["choices"][0]["message"]["content"] == f"one two three {up.calls}"


# Statement 23


@MODES
@pytest.mark.parametrize("forms", [["json"], ["sse"], ["json", "sse", "sse+usage"]], ids=["json", "sse", "mixed"])
def test_statement_23_fifty_at_once_are_one_call(
    gw: Running, up: Upstream, prompt: str, path: str, forms: list[str]
) -> None:
    """Statement 23: fifty identical requests before the first byte: one call, equal bodies."""
    wanted = [forms[i % len(forms)] for i in range(50)]
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 1):
            callers = [call(gw, prompt, path=path, **FORMS[form]) for form in wanted]
            listening(gw, 50)
            go.set()
            results = [c.result() for c in callers]
    assert sorted(map(outcome, results)) == ["joined"] * 49 + ["miss"]
    for form in forms:
        assert len({r.content for r, f in zip(results, wanted, strict=True) if f == form}) == 1
    answers = [essence(answer_of(r)) for r in results]
    assert all(a == answers[0] for a in answers)
    assert len({r.headers["x-request-id"] for r in results}) == 50


@MODES
def test_statement_23_with_no_gate_at_all(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Statement 23: fifty that race as they come, some perhaps when all is over: still one call and equal bodies."""
    up.script = lambda seen, number: _paused(reply_for(seen, chat_answer(f"one two {number}")))
    with upstream_calls(up, 1):
        results = [c.result() for c in [call(gw, prompt, path=path, stream=False) for _ in range(50)]]
    assert [outcome(r) for r in results].count("miss") == 1
    assert len({r.content for r in results}) == 1


def _paused(reply: Reply) -> Reply:
    reply.first_pause = 0.05
    return reply


# Statement 24


@pytest.mark.parametrize("leader", FORMS)
def test_statement_24_the_other_forty_nine_complete(gw: Running, up: Upstream, prompt: str, leader: str) -> None:
    """Statement 24: the leader goes after the first bytes; the upstream call and its other clients go on."""
    with gate() as go:
        up.script = holding(go)
        with upstream_calls(up, 1):
            first = call(gw, prompt, **FORMS[leader])
            listening(gw, 1)
            others = [call(gw, prompt, **FORMS[f]) for f in [*FORMS] * 16 + ["sse"]]
            listening(gw, 50)
            others[1].hears("one two ")
            first.leave()
            listening(gw, 49)
            go.set()
            results = [c.result() for c in others]
            assert outcome(gw.chat(prompt)) == "exact"
    assert {outcome(r) for r in results} == {"joined"}
    assert {answer_of(r)["choices"][0]["message"]["content"] for r in results} == {f"one two three {up.calls}"}


def test_statement_24_what_the_leader_left_behind_is_booked(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 24: its tokens were consumed and served to nobody; those who stayed saved theirs."""
    before = settled(gw)
    with gate() as go:
        up.script = holding(go)
        first, second, third = together(gw, prompt, ["sse", "sse", "json"])
        second.hears("one two ")
        first.leave()
        listening(gw, 2)
        go.set()
        second.result()
        third.result()
    after = settled(gw)
    grown = {name: after[name] - before[name] for name in ("consumed", "unserved", "served", "saved")}
    assert grown == {"consumed": TOKENS, "unserved": TOKENS, "served": 2 * TOKENS, "saved": 2 * TOKENS}


# Statement 26


@MODES
def test_statement_26_after_an_uncacheable_end_later_ones_run_in_parallel(
    gw: Running, up: Upstream, prompt: str, path: str
) -> None:
    """Statement 26: what cannot be shared is not waited for: five later requests are five calls at the same time."""
    cut_short = chat_answer("one two three")
    cut_short["choices"][0]["finish_reason"] = "length"
    up.script = lambda seen, number: reply_for(seen, cut_short)
    outcome(gw.chat(prompt, path=path))
    with gate() as go:
        up.script = lambda seen, number: gated(reply_for(seen, cut_short), go)
        with upstream_calls(up, 5):
            callers = [call(gw, prompt, path=path, **FORMS[f]) for f in ("sse", "json", "sse", "json", "sse+usage")]
            until(lambda: up.open == 5)
            go.set()
            results = [c.result() for c in callers]
    assert {outcome(r) for r in results} == {"miss"}


# Statement 27


@MODES
@pytest.mark.parametrize("form", FORMS)
def test_statement_27_two_tenants_share_no_flight(gw: Running, up: Upstream, prompt: str, path: str, form: str) -> None:
    """Statement 27: the same body of two tenants at the same time: two calls, and each gets its own answer."""
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 2):
            callers = [call(gw, prompt, path=path, key=key, **FORMS[form]) for key in (ALICE, EVE)]
            until(lambda: up.open == 2)
            callers += [call(gw, prompt, path=path, key=key, **FORMS[form]) for key in (BOB, EVE)]
            listening(gw, 4)
            go.set()
            results = [c.result() for c in callers]
    texts = [answer_of(r)["choices"][0]["message"]["content"] for r in results]
    assert texts[0] == texts[2] != texts[1] == texts[3]
    assert [outcome(r) for r in results] == ["miss", "miss", "joined", "joined"]
    assert [decision(gw, r)["tenant"] for r in results] == ["acme", "globex", "acme", "globex"]


@pytest.mark.parametrize(("path", "calls"), [("/personal", 3), ("/permitted", 3), ("/rr", 2), ("/everyone", 1)])
def test_statement_27_nor_do_two_scopes(gw: Running, up: Upstream, prompt: str, path: str, calls: int) -> None:
    """Statement 27: who may share a flight is who may share an answer: user, permissions, tenant, everyone."""
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, calls):
            callers = [call(gw, prompt, path=f"{path}/v1", key=key, stream=False) for key in (ALICE, BOB, EVE) * 2]
            listening(gw, 6)
            assert up.open == calls
            go.set()
            results = [c.result() for c in callers]
    assert [outcome(r) for r in results].count("miss") == calls


def test_statement_27_a_purge_of_one_tenant_leaves_the_others_flight_alone(
    gw: Running, up: Upstream, prompt: str
) -> None:
    """Statement 27: nor does one tenant's purge keep another's answer from being stored."""
    with gate() as go:
        up.script = holding(go)
        caller = call(gw, prompt).hears("one two ")
        assert gw.admin("POST", "/admin/purge", key=EVE, json={"older_than": "0s"}).status_code == 200
        go.set()
        assert decision(gw, caller.result())["stored"] is True
    with upstream_calls(up, 0):
        assert outcome(gw.chat(prompt)) == "exact"
