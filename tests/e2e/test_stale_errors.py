"""`stale_if_error`: past its life an answer serves when the backend fails."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import EVE, Clock, Running, config_text, running
from tests.support.live import FORMS, TOKENS, answer_of, gate, listening, settled, together
from tests.support.traffic import decision, error_of, fixed, outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, chat_chunks, sse, upstream

Json = dict[str, Any]
NOON = 1_750_000_000.0
SSE = "text/event-stream"
EXTRA = """
  soft: {mode: stream, cache: {exact: {ttl: 100s, stale_while_revalidate: 50s}}}
  patient: {mode: stream, cache: {exact: {ttl: 100s, stale_if_error: 1h}}}
  patient_whole: {mode: request_response, cache: {exact: {ttl: 100s, stale_if_error: 1h}}}
  both: {mode: stream, cache: {exact: {ttl: 100s, stale_while_revalidate: 50s, stale_if_error: 1h}}}
"""
PATIENT = pytest.mark.parametrize("path", ["/patient/v1", "/patient_whole/v1"], ids=["stream", "request_response"])
BROKEN = Reply([b'{"error": {"message": "no"}}'], status=500)


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _settled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins at noon; after it no flight is left, and the sums are in balance."""
    gw = request.getfixturevalue("gw") if "gw" in request.fixturenames else None
    if gw is not None:
        gw.clock.frozen = NOON
    yield
    if gw is not None:
        settled(gw)


DEAD: dict[str, Reply] = {
    "500": BROKEN,
    "503": Reply([b"busy"], status=503),
    "refused credentials": Reply([b"no"], status=401),
    "cut": Reply([], cut=True),
    "garbage": Reply([b"<html>"]),
    "error event": Reply([b'data: {"error": {"message": "no"}}\n\n'], content_type=SSE),
}


@PATIENT
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("failure", DEAD)
def test_a_failing_backend_is_covered_by_the_old_answer(
    gw: Running, up: Upstream, prompt: str, path: str, form: str, failure: str
) -> None:
    old = answer_of(gw.chat(prompt, path=path, **FORMS[form]))
    gw.clock.frozen = NOON + 3000
    up.script = fixed(DEAD[failure])
    with upstream_calls(up, 1):
        answer = gw.chat(prompt, path=path, **FORMS[form])
    assert outcome(answer) == "stale"
    assert answer_of(answer) == old
    assert answer.headers["age"] == "3000"
    record = decision(gw, answer)
    assert (record["outcome"], record["status"], record["tokens"]["saved"]) == ("stale", 200, TOKENS)


def test_a_backend_that_is_gone_is_covered(prompt: str) -> None:
    """Nobody listens at its address any more."""
    with ExitStack() as passing:
        text = config_text(passing.enter_context(upstream()).url, extra=EXTRA)
        with running(text, clock=Clock(frozen=NOON)) as gw:
            old = text_of(gw.chat(prompt, path="/patient/v1"))
            passing.close()
            gw.clock.frozen = NOON + 3000
            for form in FORMS.values():
                answer = gw.chat(prompt, path="/patient/v1", **form)
                assert (outcome(answer), text_of(answer)) == ("stale", old)
            settled(gw)


def test_a_backend_that_does_not_answer_in_time_is_covered(up: Upstream, prompt: str) -> None:
    text = config_text(up.url, extra=EXTRA).replace("kind: remote,", "kind: remote, timeouts: {first_byte: 200ms},")
    with running(text, clock=Clock(frozen=NOON)) as gw:
        old = text_of(gw.chat(prompt, path="/patient/v1"))
        gw.clock.frozen = NOON + 3000
        up.script = fixed(Reply([b"{}"], first_pause=5))
        answer = gw.chat(prompt, path="/patient/v1")
        assert (outcome(answer), text_of(answer)) == ("stale", old)
        settled(gw)


@PATIENT
def test_a_well_backend_is_asked(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Errors only: while the backend is well, nothing stale is served."""
    gw.chat(prompt, path=path)
    gw.clock.frozen = NOON + 100
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path=path)) == "miss"
    assert outcome(gw.chat(prompt, path=path)) == "exact"


@PATIENT
@pytest.mark.parametrize(("after", "covered"), [(3699.999, True), (3700.0, False), (3700.001, False)])
def test_the_end_of_the_cover_is_exact(
    gw: Running, up: Upstream, prompt: str, path: str, after: float, covered: bool
) -> None:
    gw.chat(prompt, path=path)
    gw.clock.frozen = NOON + after
    up.script = fixed(BROKEN)
    answer = gw.chat(prompt, path=path)
    if covered:
        assert outcome(answer) == "stale"
    else:
        error_of(answer, 500)


@PATIENT
@pytest.mark.parametrize("status", [400, 404, 429])
def test_the_clients_own_errors_are_not_covered(gw: Running, up: Upstream, prompt: str, path: str, status: int) -> None:
    gw.chat(prompt, path=path)
    gw.clock.frozen = NOON + 101
    up.script = fixed(Reply([b'{"error": {"message": "no"}}'], status=status))
    error_of(gw.chat(prompt, path=path), status)


@PATIENT
def test_who_asked_for_a_fresh_answer_gets_the_error(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    gw.chat(prompt, path=path)
    gw.clock.frozen = NOON + 101
    up.script = fixed(BROKEN)
    error_of(gw.chat(prompt, path=path, headers={"cache-control": "no-cache"}), 500)
    error_of(gw.chat(prompt, path=path, headers={"cache-control": "no-store"}), 500)
    error_of(gw.chat(prompt, path=path, headers={"cache-control": "max-age=50"}), 500)


def test_nobody_else_s_answer_covers(gw: Running, up: Upstream, prompt: str) -> None:
    """Another tenant's old answer is none of ours."""
    gw.chat(prompt, path="/patient/v1", key=EVE)
    gw.clock.frozen = NOON + 101
    up.script = fixed(BROKEN)
    error_of(gw.chat(prompt, path="/patient/v1"), 500)


def test_half_a_stream_is_not_covered(gw: Running, up: Upstream, prompt: str) -> None:
    """Once the first words are out, there is no other answer to go on with."""
    gw.chat(prompt, path="/patient/v1")
    gw.clock.frozen = NOON + 101
    begun = sse(chat_chunks(chat_answer("one two"), include_usage=True)[:3], done=False)
    up.script = fixed(Reply([begun, b""], content_type=SSE, cut=True, pause=0.02))
    answer = gw.chat(prompt, path="/patient/v1", stream=True)
    assert answer.headers["x-refrain-cache"] == "miss"
    assert '"error"' in answer.text
    assert "[DONE]" not in answer.text


@PATIENT
def test_all_of_a_flight_are_covered(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """The leader at once; the others when the one who took over has failed too."""
    old = gw.chat(prompt, path=path)
    gw.clock.frozen = NOON + 101
    with gate() as go:
        up.script = fixed(Reply(BROKEN.pieces, status=500, gate=go))
        callers = together(gw, prompt, ["sse", "json", "sse+usage", "json"], path=path)
        go.set()
        results = [c.result() for c in callers]
    assert [outcome(r) for r in results] == ["stale"] * 4
    assert {text_of(r) for r in results} == {text_of(old)}


def test_both_settings_one_after_the_other(gw: Running, up: Upstream, prompt: str) -> None:
    """Within the grace stale without a question; after it only because the backend fails."""
    old = text_of(gw.chat(prompt, path="/both/v1"))
    up.script = fixed(BROKEN)
    for seconds in (100, 149.999, 150, 3699.999):
        gw.clock.frozen = NOON + seconds
        answer = gw.chat(prompt, path="/both/v1")
        assert (outcome(answer), text_of(answer)) == ("stale", old)
        settled(gw)
    gw.clock.frozen = NOON + 3700
    error_of(gw.chat(prompt, path="/both/v1"), 500)
    listening(gw, 0)


def test_a_restart_keeps_what_is_past_its_life(up: Upstream, tmp_path: Path, prompt: str) -> None:
    """The store holds an answer until the last instant at which it may be used, and no longer."""
    text = config_text(up.url, store=f"sqlite:///{tmp_path}/cache.db", extra=EXTRA)
    paths = ["/soft/v1", "/patient/v1"]
    with running(text, clock=Clock(frozen=NOON)) as gw:
        old = [text_of(gw.chat(prompt, path=path)) for path in paths]
    up.script = fixed(BROKEN)
    for soft, patient in ((149.999, 3699.999), (150.0, 3700.0)):
        for path, answer, seconds in zip(paths, old, (soft, patient), strict=True):
            with running(text, clock=Clock(frozen=NOON + seconds)) as gw:
                found = gw.chat(prompt, path=path)
                if soft < 150:
                    assert (outcome(found), text_of(found)) == ("stale", answer)
                else:
                    error_of(found, 500)
                settled(gw)
