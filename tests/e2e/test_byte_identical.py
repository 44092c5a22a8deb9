"""The short way of a request that comes again byte for byte: when it is taken, and all that ends it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.support.gateway import ALICE, BOB, EVE, KEYS, Running, config_text, running
from tests.support.traffic import byte_identical, decision, error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, chat_chunks, numbered, sse

FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])


@MODES
@FORMS
def test_the_second_request_comes_the_short_way(
    gw: Running, up: Upstream, prompt: str, path: str, stream: bool
) -> None:
    with upstream_calls(up, 1):
        answers = [gw.chat(prompt, path=path, stream=stream) for _ in range(3)]
    assert [outcome(a) for a in answers] == ["miss", "exact", "exact"]
    assert [byte_identical(gw, a) for a in answers] == [False, True, True]
    assert answers[1].content == answers[2].content
    assert text_of(answers[0]) == text_of(answers[1])


CONTROLS = [
    ({"cache-control": "no-cache"}, "miss"),
    ({"cache-control": "no-store"}, "bypass"),
    ({"cache-control": "max-age=0"}, "miss"),
    ({"cache-control": "max-age=3600"}, "exact"),
    ({"cache-control": "max-stale=60"}, "exact"),
    ({"cache-control": "only-if-cached"}, "exact"),
    ({"x-refrain-ttl": "1s"}, "exact"),
    ({"x-refrain-tags": "red"}, "exact"),
    ({"x-refrain-tier": "exact"}, "exact"),
    ({"x-refrain-tier": "prefix"}, "bypass"),
    ({"prefer": "wait=1"}, "exact"),
    ({"anthropic-version": "2023-06-01"}, "miss"),
    ({"anthropic-beta": "x"}, "miss"),
    ({"openai-beta": "x"}, "miss"),
]


@pytest.mark.parametrize(("headers", "expected"), CONTROLS, ids=lambda v: str(v))
def test_a_header_that_changes_behaviour_goes_the_long_way(
    gw: Running, up: Upstream, prompt: str, headers: dict[str, str], expected: str
) -> None:
    """The same bytes with a control are looked at, each time, and give no short way to others."""
    for _ in range(2):
        gw.chat(prompt)
    for _ in range(2):
        with upstream_calls(up, expected != "exact"):
            response = gw.chat(prompt, headers=headers)
        assert outcome(response) == expected
        assert not byte_identical(gw, response)
        if "beta" in str(headers) or "version" in str(headers):
            expected = "exact"  # a key of its own
    assert outcome(gw.chat(prompt)) == "exact"


@pytest.mark.parametrize(
    ("cache", "expected"),
    [({"no-cache": True}, "miss"), ({"no-store": True}, "bypass"), ({"ttl": 5}, "exact"), ({}, "exact")],
    ids=str,
)
def test_a_cache_object_goes_the_long_way(
    gw: Running, up: Upstream, prompt: str, cache: dict[str, Any], expected: str
) -> None:
    gw.chat(prompt)
    for _ in range(3):
        with upstream_calls(up, expected != "exact"):
            response = gw.chat(prompt, cache=cache)
        assert outcome(response) == expected
        assert not byte_identical(gw, response)


def test_requests_that_bypass_never_get_a_short_way(gw: Running, up: Upstream, prompt: str) -> None:
    for more in (
        {"store": True},
        {"path": "/uncached/v1"},
        {"path": "/careful/v1"},
        {"tools": [{"type": "web_search"}]},
    ):
        with upstream_calls(up, 3):
            for _ in range(3):
                assert outcome(gw.chat(prompt, **more)) == "bypass"


def test_the_short_way_belongs_to_one_credential(gw: Running, up: Upstream, prompt: str) -> None:
    """Same bytes, other keys: a colleague gets the shared answer after being looked at, a stranger does not."""
    with upstream_calls(up, 1):
        for _ in range(2):
            gw.chat(prompt, key=ALICE)
        colleague = gw.chat(prompt, key=BOB)
    assert outcome(colleague) == "exact"
    assert not byte_identical(gw, colleague)
    assert decision(gw, colleague)["user"] == "bob"
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, key=EVE)) == "miss"
    with upstream_calls(up, 0):
        error_of(gw.chat(prompt, key="rf-wrong"), 401)
        error_of(gw.client.post("/v1/chat/completions", content=gw.chat(prompt).request.content), 401)


def test_a_users_own_answers_stay_his(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 2):
        texts = [text_of(gw.chat(prompt, key=k, path="/personal/v1")) for k in (ALICE, BOB, ALICE, BOB)]
    assert texts[:2] == texts[2:]
    assert texts[0] != texts[1]


def test_authorization_sent_twice_is_refused(gw: Running, up: Upstream, prompt: str) -> None:
    """Two headers are no credential, not even the same twice, and not by the short way of the single one."""
    for _ in range(2):
        content = gw.chat(prompt).request.content
    for pair in ((ALICE, ALICE), (ALICE, BOB), ("rf-wrong", ALICE), (ALICE, "rf-wrong")):
        headers = [("authorization", f"Bearer {key}") for key in pair] + [("content-type", "application/json")]
        with upstream_calls(up, 0):
            error_of(gw.client.post("/v1/chat/completions", content=content, headers=headers), 401)
    headers = [("authorization", f"Bearer {ALICE}"), ("x-api-key", ALICE), ("x-api-key", BOB)]
    with upstream_calls(up, 0):
        error_of(gw.client.post("/v1/chat/completions", content=content, headers=headers), 401)


def test_paths_and_queries_are_part_of_the_bytes(gw: Running, up: Upstream, prompt: str) -> None:
    """The same body on another endpoint, another API or with another api-version is another request."""
    content = json.dumps({"model": "test-model", "messages": [{"role": "user", "content": prompt}], "prompt": prompt})
    head = {"authorization": f"Bearer {ALICE}", "content-type": "application/json"}
    paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/rr/v1/chat/completions",
        "/twin/v1/chat/completions",
        "/v1/chat/completions?api-version=1",
        "/v1/chat/completions?api-version=2",
    ]
    with upstream_calls(up, len(paths)):
        first = [gw.client.post(p, content=content, headers=head) for p in paths]
        again = [gw.client.post(p, content=content, headers=head) for p in paths]
    assert {outcome(a) for a in again} == {"exact"}
    assert [a.content for a in first] == [a.content for a in again]


def test_streams_with_and_without_usage_keep_apart(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        for _ in range(3):
            with_usage = gw.chat(prompt, stream=True, stream_options={"include_usage": True})
            without = gw.chat(prompt, stream=True)
            plain = gw.chat(prompt)
    assert '"total_tokens"' in with_usage.text
    assert '"usage"' not in without.text
    assert plain.json()["usage"]["total_tokens"] == 18


@FORMS
def test_a_purge_ends_it(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    for _ in range(3):
        first = gw.chat(prompt, stream=stream)
    key = decision(gw, first)["key"]
    assert gw.admin("POST", "/admin/purge", json={"key": key}).json() == {"purged": 1}
    with upstream_calls(up, 1):
        again = gw.chat(prompt, stream=stream)
    assert outcome(again) == "miss"
    assert text_of(again) != text_of(first)


@FORMS
def test_a_newer_answer_takes_its_place(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    """After no-cache the short way leads to the new answer, in every form."""
    for form in (stream, not stream, stream, not stream):
        gw.chat(prompt, stream=form)
    fresh = text_of(gw.chat(prompt, stream=stream, headers={"cache-control": "no-cache"}))
    with upstream_calls(up, 0):
        for form in (stream, not stream, stream, not stream):
            assert text_of(gw.chat(prompt, stream=form)) == fresh


# A changed configuration


Change = Callable[[Callable[[str], str]], None]


@pytest.fixture
def changing(up: Upstream, tmp_path: Path) -> Iterator[tuple[Running, Change]]:
    """A gateway, and a function that changes its file and waits until that is applied."""
    path = tmp_path / "refrain.yaml"
    text = config_text(up.url)
    number = 0

    with running(text, path=path) as gw:

        def change(edit: Callable[[str], str]) -> None:
            nonlocal number
            number += 1
            changed = edit(text)
            assert changed != text
            path.write_text(changed.replace("\nendpoints:\n", f"\nendpoints:\n  applied{number}: {{mode: stream}}\n"))
            until(lambda: gw.admin("GET", f"/applied{number}/v1/models").status_code in (200, 401))

        yield gw, change


def without(key: str) -> Callable[[str], str]:
    line = next(line for line in KEYS.splitlines() if key in line)
    return lambda text: text.replace(line + "\n", "")


def instead(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


@FORMS
def test_a_removed_key_ends_it(changing: tuple[Running, Change], up: Upstream, prompt: str, stream: bool) -> None:
    gw, change = changing
    for _ in range(2):
        last = gw.chat(prompt, stream=stream)
    assert byte_identical(gw, last)
    change(without(ALICE))
    with upstream_calls(up, 0):
        error_of(gw.chat(prompt, stream=stream), 401)


def test_a_moved_key_ends_it(changing: tuple[Running, Change], up: Upstream, prompt: str) -> None:
    """The key now belongs to another tenant: it sees that tenant's answers."""
    gw, change = changing
    for _ in range(2):
        gw.chat(prompt)
    change(instead(f"{{key: {ALICE}, tenant: acme", f"{{key: {ALICE}, tenant: initech"))
    with upstream_calls(up, 1):
        response = gw.chat(prompt)
    assert outcome(response) == "miss"
    assert decision(gw, response)["tenant"] == "initech"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("default: {mode: stream, share: tenant}", "default: {mode: stream, share: user}", "miss"),
        ("default: {mode: stream, share: tenant}", "default: {mode: stream, cache: {exact: off}}", "bypass"),
        ("default: {mode: stream, share: tenant}", "default: {mode: stream, cache: {exact: {ttl: 1ms}}}", "miss"),
    ],
    ids=["share", "off", "ttl"],
)
def test_another_policy_ends_it(
    changing: tuple[Running, Change], up: Upstream, prompt: str, old: str, new: str, expected: str
) -> None:
    gw, change = changing
    for _ in range(2):
        last = gw.chat(prompt)
    assert byte_identical(gw, last)
    change(instead(old, new))
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt)) == expected


def test_another_upstream_ends_it(changing: tuple[Running, Change], up: Upstream, prompt: str) -> None:
    """A changed base URL is another backend, whose answers are not those of the former one."""
    gw, change = changing
    for _ in range(2):
        gw.chat(prompt)
    change(instead(f'base_url: "{up.url}"', f'base_url: "{up.url.replace("/v1", "/other/v1")}"'))
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt)) == "miss"
    assert up.seen[-1].path == "/other/v1/chat/completions"


def test_a_broken_file_changes_nothing(
    changing: tuple[Running, Change], up: Upstream, tmp_path: Path, prompt: str
) -> None:
    gw, change = changing
    for _ in range(2):
        gw.chat(prompt)
    (tmp_path / "refrain.yaml").write_text("endpoints: {default: {cache: {exact: {ttl: forever}}}}")
    change(lambda text: text + "# and one that is whole\n")  # applied after the broken one was looked at
    with upstream_calls(up, 0):
        assert outcome(gw.chat(prompt)) == "exact"


def test_a_reload_in_mid_stream_leaves_the_stream_alone(
    changing: tuple[Running, Change], up: Upstream, prompt: str
) -> None:
    """A request keeps the configuration that it began with, and its backend until it ends."""
    gw, change = changing
    pieces = [sse([c], done=False) for c in chat_chunks(chat_answer("word " * 20), include_usage=True)]
    up.script = lambda seen, number: Reply([*pieces, b"data: [DONE]\n\n"], content_type="text/event-stream", pause=0.06)
    answers: list[Any] = []
    before = up.calls
    asking = Thread(target=lambda: answers.append(gw.chat(prompt, stream=True)))
    asking.start()
    until(lambda: up.calls > before)
    change(instead("api_key: sk-upstream-secret", "api_key: sk-another-secret"))
    asking.join()
    assert text_of(answers[0]) == "word " * 20
    up.script = numbered
    gw.chat(f"{prompt} again")
    assert up.seen[-1].headers["authorization"] == "Bearer sk-another-secret"


def test_a_policy_that_ends_in_mid_flight_keeps_nothing(
    changing: tuple[Running, Change], up: Upstream, prompt: str
) -> None:
    """The tier was switched off while the answer was made: it is delivered, but not stored."""
    gw, change = changing
    gate = Event()

    def gated(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.gate = gate
        return reply

    up.script = gated
    answers: list[Any] = []
    before = up.calls
    asking = Thread(target=lambda: answers.append(gw.chat(prompt)))
    asking.start()
    until(lambda: up.calls > before)
    change(instead("default: {mode: stream, share: tenant}", "default: {mode: stream, cache: {exact: off}}"))
    gate.set()
    asking.join()
    assert outcome(answers[0]) == "miss"
    assert decision(gw, answers[0])["stored"] is False
