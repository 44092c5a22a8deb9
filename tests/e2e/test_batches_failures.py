"""Lines that fail, and backends that do: what is waited for, what is tried again, and what is told."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import (
    CHAT,
    EMBEDDINGS,
    Json,
    Lane,
    at,
    chat_line,
    chat_lines,
    counts,
    lane,
    lane_config,
    line,
    prompt_of,
    replies,
    text_in,
)
from tests.support.gateway import Running, config_text, running
from tests.support.traffic import until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, free_port, numbered, upstream

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    text = lane_config(up, tmp_path_factory.mktemp("lane"))
    with running(text.replace('models: {"*": fake}', 'models: {"test-model": fake}')) as gateway:
        yield gateway


@pytest.fixture
def alice(gw: Running) -> Iterator[Lane]:
    with lane(gw) as found:
        yield found


def error(status: int, **more: Any) -> Reply:
    body = {"error": {"message": "No.", "type": "server_error", "param": None, "code": None}}
    return Reply([json.dumps(body).encode()], status=status, **more)


def test_what_is_tried_how_often(alice: Lane, up: Upstream, prompt: str) -> None:
    """By the code of the answers that a line gets, until it gets a good one."""
    answers = {
        "400": [400],
        "404": [404],
        "422": [422],
        "500 for ever": [500] * 9,
        "500 twice": [500, 500],
        "429": [429] * 4,
        "503": [503],
        "cut": [0],
        "good": [],
    }
    asked: Counter[str] = Counter()

    def script(seen: Seen, number: int) -> Reply:
        kind = prompt_of(seen).removeprefix(f"{prompt} ")
        asked[kind] += 1
        if asked[kind] > len(answers[kind]):
            return numbered(seen, number)
        status = answers[kind][asked[kind] - 1]
        if status == 0:
            return Reply([b'{"id": '], cut=True)
        return error(status, headers={"retry-after": "1"} if status in (429, 503) else {})

    up.script = script
    batch = alice.run([chat_line(kind, f"{prompt} {kind}") for kind in answers])
    assert asked == {
        "400": 1,
        "404": 1,
        "422": 1,
        "500 for ever": 3,
        "500 twice": 3,
        "429": 5,
        "503": 2,
        "cut": 2,
        "good": 1,
    }
    assert alice.answers(batch).keys() == {"500 twice", "429", "503", "cut", "good"}
    failures = {kind: result["response"]["status_code"] for kind, result in alice.failures(batch).items()}
    assert failures == {"400": 400, "404": 404, "422": 422, "500 for ever": 500}
    assert counts(batch) == (9, 5, 4)


def test_what_the_gateway_itself_refuses(alice: Lane, up: Upstream, prompt: str) -> None:
    """As it would online, and the others go on."""
    lines = [
        line("no messages", CHAT, messages=[]),
        chat_line("no such model", prompt, model="other-model"),
        chat_line("n", prompt, n=0),
        chat_line("good", prompt),
    ]
    with upstream_calls(up, 1):
        batch = alice.run(lines)
    assert alice.answers(batch).keys() == {"good"}
    told = {
        id: (response["status_code"], response["body"]["error"]["param"])
        for id, response in ((id, result["response"]) for id, result in alice.failures(batch).items())
    }
    assert told == {"no messages": (400, "messages"), "no such model": (404, "model"), "n": (400, "n")}


def test_embeddings_that_fail(alice: Lane, up: Upstream, prompt: str) -> None:
    up.script = lambda seen, number: error(400) if seen.body["input"] == ["bad"] else numbered(seen, number)
    lines = [line("good", EMBEDDINGS, input=prompt), line("bad", EMBEDDINGS, input=["bad"])]
    batch = alice.run([*lines, line("none", EMBEDDINGS)], url=EMBEDDINGS)
    assert alice.answers(batch).keys() == {"good"}
    assert alice.failures(batch).keys() == {"bad", "none"}


def refusals(gw: Running) -> list[Json]:
    """The latest requests that have failed."""
    query = {"status": "error", "limit": "100"}
    return list(gw.admin("GET", "/admin/decisions", params=query).json()["decisions"])


def test_lines_wait_for_a_backend_that_comes_back(tmp_path: Path) -> None:
    port = free_port()
    text = config_text(f"http://127.0.0.1:{port}/v1", store=at(tmp_path))
    with running(text) as gw, lane(gw) as alice:
        id = alice.start(chat_lines("Is anybody there?", 40)).id
        until(lambda: len(refusals(gw)) >= 64)  # all that are tried have been so twice
        assert {decision["error"] for decision in refusals(gw)} == {"backend_unreachable"}
        assert counts(alice.get(id)) == (40, 0, 0)
        with upstream(port=port) as up:
            batch = alice.ended(id, 60)
            assert (batch.status, counts(batch), up.calls) == ("completed", (40, 40, 0), 40)


def test_a_batch_whose_backend_stays_away_expires(tmp_path: Path) -> None:
    """However little of its time was left when its lines were tried last."""
    text = config_text(f"http://127.0.0.1:{free_port()}/v1", store=at(tmp_path))
    with running(text) as gw, lane(gw) as alice:
        gw.clock.frozen = float(int(time.time()))  # so that the end is at a full second, as it is shown
        batch = alice.start(chat_lines("Is anybody there?", 3))
        assert batch.expires_at is not None
        until(lambda: len(refusals(gw)) >= 3)
        gw.clock.frozen = batch.expires_at - 0.25
        before = len(refusals(gw))
        until(lambda: len(refusals(gw)) >= before + 3)
        gw.clock.frozen = batch.expires_at + 1
        batch = alice.ended(batch.id)
        assert (batch.status, counts(batch)) == ("expired", (3, 0, 3))


def test_a_slow_line_holds_up_no_other(alice: Lane, up: Upstream, prompt: str) -> None:
    gate = threading.Event()

    def slow(content: str) -> Reply | None:
        if not content.endswith(" 1"):
            return None
        reply = numbered(up.seen[-1], up.calls)
        reply.gates = {0: gate}
        return reply

    up.script = replies(slow)
    id = alice.start(chat_lines(prompt, 200)).id
    assert counts(alice.done(id, 199)) == (200, 199, 0)
    gate.set()
    assert counts(alice.ended(id)) == (200, 200, 0)


def test_a_restart_in_the_middle(up: Upstream, tmp_path: Path) -> None:
    """A gateway that is stopped goes on where it was; what it had begun is asked again, the rest is not."""

    def slowly(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.first_pause = 0.1
        return reply

    up.script = slowly
    before, text = up.calls, lane_config(up, tmp_path)
    with running(text) as gw, lane(gw) as alice:
        id = alice.start(chat_lines("Again?", 150)).id
        alice.done(id, 40)
    until(lambda: up.open == 0)
    with running(text) as gw, lane(gw) as alice:
        batch = alice.ended(id)
        answers = alice.answers(batch)
    assert counts(batch) == (150, 150, 0)
    assert len({text_in(answer) for answer in answers.values()}) == 150
    assert 150 <= up.calls - before <= 150 + 32


def test_stopping_does_not_wait_for_a_batch(up: Upstream, tmp_path: Path) -> None:
    up.script = lambda seen, number: Reply([], first_pause=600)
    with running(lane_config(up, tmp_path)) as gw, lane(gw) as alice:
        alice.start(chat_lines("Who waits?", 40))
        until(lambda: up.open == 32)
        begun = time.monotonic()
    assert time.monotonic() - begun < 5
    until(lambda: up.open == 0)


def test_cancelling_in_the_midst_of_results(alice: Lane, prompt: str) -> None:
    """Whatever is being written at that moment, the end does not have to be tried again."""
    for attempt in range(10):
        id = alice.start(chat_lines(f"{prompt} {attempt}", 400)).id
        alice.done(id, 40)
        alice.client.batches.cancel(id)
        total, completed, failed = counts(alice.ended(id, 4))
        assert (total, completed + failed) == (400, 400)
