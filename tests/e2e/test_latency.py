"""What a decision says of time: what was expected, the first byte, the phases; and what is learnt of a backend."""

import json
import time
from typing import Any

import pytest

from tests.support.gateway import EVE, Running, config_text, running
from tests.support.live import FORMS, call, first_byte_held, gate, gated, listening, settled, streaming
from tests.support.traffic import decision, error_of, fixed, until
from tests.support.upstream import Reply, Upstream, chat_answer, free_port, numbered, reply_for

Json = dict[str, Any]
PAUSE = 0.2


def spans(gw: Running, answer: Any) -> dict[str, Json]:
    """By name, in their order; what holds for all of them is looked at here."""
    record = decision(gw, answer)
    found = record["spans"]
    outer = [span for span in found if "within" not in span]
    assert sum(span["share"] for span in outer) == pytest.approx(1, abs=1e-4)
    assert sum(span["ms"] for span in outer) == pytest.approx(record["ms"], abs=0.01 * len(outer))
    return {span["name"]: span for span in found}


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["upstream streams", "upstream does not"])
@pytest.mark.parametrize("form", FORMS)
def test_the_first_byte_of_an_answer(gw: Running, up: Upstream, prompt: str, path: str, form: str) -> None:
    def script(seen: Any, number: int) -> Reply:
        if not seen.body.get("stream"):
            return Reply(reply_for(seen, chat_answer("one two")).pieces, first_pause=2 * PAUSE)
        reply = streaming(chat_answer("one two"), {})
        return Reply(
            [reply.pieces[0], b"".join(reply.pieces[1:])],
            content_type=reply.content_type,
            first_pause=PAUSE,
            pause=PAUSE,
        )

    up.script = script
    record = decision(gw, gw.chat(prompt, path=path, **FORMS[form]))
    live = path == "/v1" and form != "json"
    assert record["first_ms"] >= PAUSE * 1000 * 0.9
    if live:
        assert record["ms"] - record["first_ms"] > PAUSE * 1000 * 0.5
    else:
        assert record["ms"] - record["first_ms"] < PAUSE * 1000 * 0.5


def test_a_hit_and_an_error_have_none(gw: Running, up: Upstream, prompt: str) -> None:
    gw.chat(prompt)
    assert decision(gw, gw.chat(prompt))["first_ms"] is None
    assert decision(gw, gw.chat(prompt, user="the long way"))["first_ms"] is None
    up.script = fixed(Reply([b"{}"], status=500))
    assert decision(gw, gw.chat(f"{prompt} again"))["first_ms"] is None


def test_what_a_call_is_expected_to_take(up: Upstream) -> None:
    """Nothing before the first one; then what the ones before it took."""
    up.script = lambda seen, number: Reply(reply_for(seen, chat_answer(f"{number}")).pieces, first_pause=PAUSE)
    with running(config_text(up.url)) as gw:
        first = decision(gw, gw.chat("Number 0?", path="/rr/v1"))
        assert first["predicted_ms"] is None
        for number in range(1, 6):
            record = decision(gw, gw.chat(f"Number {number}?", path="/rr/v1"))
        assert record["predicted_ms"] == pytest.approx(record["phases"]["upstream"], rel=0.3)
        hit = decision(gw, gw.chat("Number 0?", path="/rr/v1"))
        assert hit["predicted_ms"] is None


def test_phases_of_a_miss(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = fixed(
        Reply(streaming(chat_answer("one two")).pieces, content_type="text/event-stream", first_pause=PAUSE, pause=0.01)
    )
    found = spans(gw, gw.chat(prompt))
    assert list(found) == ["auth", "parse", "exact", "semantic", "upstream", "first_byte", "other"]
    assert found["upstream"]["share"] > 0.8
    assert found["first_byte"]["within"] == "upstream"
    assert found["upstream"]["ms"] > found["first_byte"]["ms"] >= PAUSE * 1000 * 0.9
    assert found["upstream"]["start"] == found["first_byte"]["start"] > 0


def test_phases_of_a_hit(gw: Running, prompt: str) -> None:
    gw.chat(prompt)
    assert list(spans(gw, gw.chat(prompt))) == ["exact", "other"]
    assert list(spans(gw, gw.chat(prompt, user="the long way"))) == ["auth", "parse", "exact", "other"]


def test_phases_of_who_joined(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as go:
        up.script = first_byte_held(go)
        callers = [call(gw, prompt)]
        listening(gw, 1)
        callers.append(call(gw, prompt))
        listening(gw, 2)
        time.sleep(PAUSE)
        go.set()
        found = spans(gw, callers[1].result())
        callers[0].result()
    assert list(found) == ["auth", "parse", "exact", "join", "other"]
    assert found["join"]["ms"] >= PAUSE * 1000


def test_who_takes_over_has_waited_and_then_called(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as go:

        def script(seen: Any, number: int) -> Reply:
            if len(up.seen) == before + 1:
                return gated(Reply([b"{}"], status=500), go)
            return numbered(seen, number)

        before = len(up.seen)
        up.script = script
        leader = call(gw, prompt)
        listening(gw, 1)
        heir = call(gw, prompt)
        listening(gw, 2)
        time.sleep(PAUSE)
        go.set()
        found = spans(gw, heir.result())
        error_of(leader.result(), 500)
    assert list(found) == ["auth", "parse", "exact", "join", "upstream", "first_byte", "other"]
    assert found["join"]["ms"] >= PAUSE * 1000
    assert found["upstream"]["start"] >= found["join"]["ms"]


def test_phases_of_an_error(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = fixed(Reply([b"{}"], status=500, first_pause=PAUSE))
    found = spans(gw, gw.chat(prompt))
    assert found["upstream"]["ms"] >= PAUSE * 1000 * 0.9
    assert list(spans(gw, gw.raw(b"{"))) == ["auth", "other"]


def test_a_backend_that_is_gone() -> None:
    with running(config_text(f"http://127.0.0.1:{free_port()}/v1")) as gw:
        record = decision(gw, gw.chat())
        assert [span["name"] for span in record["spans"]][-2:] == ["upstream", "other"]
        assert record["predicted_ms"] is None


def test_a_stream_that_was_left(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as go:
        up.script = fixed(streaming(chat_answer("one two three"), {2: go}))
        caller = call(gw, prompt).hears("one ")
        caller.leave()
        listening(gw, 0)

        def left() -> bool:
            record = gw.admin("GET", "/admin/decisions?limit=1").json()["decisions"][0]
            return bool(record["error"] == "client_disconnected")

        until(left)
        id = caller.headers["x-request-id"]
        record = gw.admin("GET", f"/admin/decisions?id={id}").json()
        shares = [span["share"] for span in record["spans"] if "within" not in span]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert record["first_ms"] < record["ms"]


# What is learnt


def known(gw: Running, model: str) -> Json:
    """What is known of this model; empty where nothing is."""
    found = gw.admin("GET", "/admin/stats").json()["backends"]["fake"]["models"]
    return dict(found.get(model, {}))


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["streamed", "whole"])
def test_a_good_call_is_learnt_and_a_hit_is_not(gw: Running, prompt: str, path: str) -> None:
    model = f"model of {path}"
    assert known(gw, model) == {}
    gw.chat(prompt, path=path, model=model)
    first = known(gw, model)
    assert first.keys() == {"overhead_ms", "prefill_tps", "decode_tps", "samples", "error"}
    assert (first["samples"], first["error"]) == (1, None)
    gw.chat(prompt, path=path, model=model)
    assert known(gw, model)["samples"] == 1
    gw.chat(f"{prompt} again", path=path, model=model)
    second = known(gw, model)
    assert second["samples"] == 2
    assert second["error"] >= 0


def _no_usage() -> Reply:
    answer = chat_answer("one two")
    del answer["usage"]
    return Reply([json.dumps(answer).encode()])


@pytest.mark.parametrize(
    "reply",
    [
        Reply([b"{}"], status=500),
        Reply([b"{}"], status=400),
        Reply([b"no JSON"]),
        Reply(streaming(chat_answer("one two three")).pieces[:3], content_type="text/event-stream", cut=True),
        _no_usage(),
    ],
    ids=["500", "400", "no JSON", "cut", "no usage"],
)
def test_a_call_that_failed_is_not_learnt(gw: Running, up: Upstream, prompt: str, reply: Reply) -> None:
    up.script = fixed(reply)
    gw.chat(prompt, model=prompt)
    assert known(gw, prompt) == {}


def test_a_call_that_was_left_is_not_learnt(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as go:
        up.script = fixed(streaming(chat_answer("one two three"), {2: go}))
        call(gw, prompt, model=prompt).hears("one ").leave()
        settled(gw)
    assert known(gw, prompt) == {}


def test_only_an_admin_sees_it(gw: Running, prompt: str) -> None:
    gw.chat(prompt, model=prompt)
    assert known(gw, prompt)
    seen = gw.admin("GET", "/admin/stats", key=EVE)
    assert seen.status_code == 200
    assert prompt not in seen.text
