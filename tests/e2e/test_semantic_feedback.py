"""`POST /admin/feedback`, and `like` in a purge: what people say about answers that were given by meaning."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.embedders import MakeEmbedder
from tests.support.dashboard import person
from tests.support.embedders import Unready
from tests.support.gateway import ADMIN, ALICE, EVE, Running, config_text, running
from tests.support.semantic import ASKED, OTHER, REWORDED, TWICE_REWORDED, Json, Room, by_wording, said, stats
from tests.support.traffic import decision, error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Upstream, chat_answer, reply_for

CHIEF = "rf-test-chief-key"
MORE = f"    - {{key: {CHIEF}, tenant: acme, user: chief, role: tenant_admin}}\n"


def text(up: Upstream, store: str = "memory://") -> str:
    return config_text(up.url, store=store).replace("\nendpoints:", f"{MORE}\nendpoints:", 1)


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    embedder = by_wording()
    with running(text(up), embedders=lambda config: embedder) as gateway:
        yield gateway


@pytest.fixture
def room(gw: Running) -> Room:
    return Room(gw)


def judge(gw: Running, answer: httpx.Response, correct: bool, *, key: str = ADMIN) -> httpx.Response:
    body = {"request_id": answer.headers["x-request-id"], "correct": correct}
    return gw.admin("POST", "/admin/feedback", key=key, json=body)


def wrong(gw: Running, answer: httpx.Response, *, key: str = ADMIN) -> None:
    done = judge(gw, answer, False, key=key)
    assert (done.status_code, done.json()["recorded"]) == (200, True)
    assert done.json()["source"] == said(gw, answer)["source"]


@pytest.mark.parametrize("by_alias", [False, True])
def test_a_wrong_answer_is_not_given_to_that_question_again(room: Room, up: Upstream, by_alias: bool) -> None:
    """Not by its alias, not to the same bytes, not once it has lost its own answer. Others go on."""
    answer = room.told(ASKED)
    served = room.serves(REWORDED, answer)
    if by_alias:
        served = room.serves(REWORDED, answer)
        assert said(room.gw, served)["why"] == "alias"
    wrong(room.gw, served)
    with upstream_calls(up, 1):
        own = text_of(room.refuses(REWORDED, why="reported_wrong"))
        for _ in range(3):
            again = room.ask(REWORDED)
            assert (outcome(again), text_of(again)) == ("exact", own)
    room.gw.admin("POST", "/admin/purge", json={"key": decision(room.gw, again)["key"]})
    room.refuses(REWORDED, why="reported_wrong")
    assert outcome(room.ask(ASKED)) == "exact"


def test_an_answer_is_marked_wrong_from_the_dashboard(room: Room) -> None:
    answer = room.told(ASKED)
    served = room.serves(REWORDED, answer)
    body = {"request_id": served.headers["x-request-id"], "correct": False}
    with person(room.gw, EVE) as eve:
        error_of(eve.ask("POST", "/admin/feedback", json=body), 404)
    with person(room.gw, CHIEF) as chief:
        error_of(chief.bare("POST", "/admin/feedback", json=body, headers={"origin": "https://evil.example"}), 403)
        room.serves(REWORDED, answer)
        assert chief.ask("POST", "/admin/feedback", json=body).json()["recorded"] is True
    room.refuses(REWORDED, why="reported_wrong")


def test_it_holds_in_every_form(room: Room) -> None:
    answer = room.told(ASKED)
    wrong(room.gw, room.serves(REWORDED, answer, stream=True))
    refused = room.ask(REWORDED, headers={"cache-control": "only-if-cached"})
    error_of(refused, 504)
    assert said(room.gw, refused)["why"] == "reported_wrong"
    assert text_of(room.refuses(REWORDED, stream=True)) != answer


def test_another_question_with_the_same_answer_does_not_stand_in(room: Room, up: Upstream) -> None:
    """What was wrong of one is wrong of all that are known to have that answer."""
    up.script = lambda seen, number: reply_for(seen, chat_answer("Click on the link that says Forgot password."))
    room.told(ASKED)
    room.gw.clock.offset = 100
    second = room.refuses(TWICE_REWORDED, why="expired", headers={"cache-control": "max-age=50"})
    time.sleep(0.3)  # the two answers are compared in the background
    served = room.ask(REWORDED)
    wrong(room.gw, served)
    sources = {decision(room.gw, answer)["key"] for answer in (room.ask(ASKED), second)}
    assert said(room.gw, served)["source"] in sources
    room.refuses(REWORDED, why="reported_wrong")


def test_a_right_answer_goes_on(room: Room) -> None:
    answer = room.told(ASKED)
    before = stats(room.gw)["reported"]
    assert judge(room.gw, room.serves(REWORDED, answer), True).status_code == 200
    assert stats(room.gw)["reported"] == {"right": before["right"] + 1, "wrong": before["wrong"]}
    room.serves(REWORDED, answer)


def test_the_audit_log_has_it(room: Room) -> None:
    served = room.serves(REWORDED, room.told(ASKED))
    wrong(room.gw, served, key=CHIEF)
    line = room.gw.admin("GET", "/admin/audit").json()["lines"][0]
    assert (line["action"], line["tenant"], line["user"], line["role"]) == ("feedback", "acme", "chief", "tenant_admin")
    details = line["details"]
    assert details["request_id"] == served.headers["x-request-id"]
    assert details["correct"] is False
    assert (details["key"], details["source"]) == (decision(room.gw, served)["key"], said(room.gw, served)["source"])
    assert line["result"] == {"recorded": True}
    assert ASKED not in json.dumps(line)


# Who may, and what it is about


def test_only_admins_may_and_of_their_own_tenant(room: Room) -> None:
    answer = room.told(ASKED)
    served = room.serves(REWORDED, answer)
    error_of(judge(room.gw, served, False, key=ALICE), 403)
    assert error_of(judge(room.gw, served, False, key=EVE), 404)["code"] == "decision_not_found"
    error_of(judge(room.gw, served, False, key="rf-nobody"), 401)
    room.serves(REWORDED, answer)
    wrong(room.gw, served, key=CHIEF)
    room.refuses(REWORDED, why="reported_wrong")


def test_there_must_be_an_answer_given_by_meaning(room: Room) -> None:
    first = room.ask(ASKED)
    for answer in (first, room.ask(ASKED), room.refuses(OTHER)):
        error = error_of(judge(room.gw, answer, False), 409)
        assert (error["code"], error["param"]) == ("not_semantic", "request_id")
    unknown = room.gw.admin("POST", "/admin/feedback", json={"request_id": "req_none", "correct": False})
    assert error_of(unknown, 404)["param"] == "request_id"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "request_id"),
        ({"request_id": "x"}, "correct"),
        ({"correct": False}, "request_id"),
        ({"request_id": 5, "correct": False}, "request_id"),
        ({"request_id": "", "correct": False}, "request_id"),
        ({"request_id": "x", "correct": "no"}, "correct"),
        ({"request_id": "x", "correct": 0}, "correct"),
        ({"request_id": "x", "correct": None}, "correct"),
        ({"request_id": "x", "correct": False, "tenant": "globex"}, "tenant"),
    ],
)
def test_feedback_that_cannot_be_read(gw: Running, body: Json, param: str) -> None:
    assert error_of(gw.admin("POST", "/admin/feedback", json=body), 400)["param"] == param


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b'{"request_id": "a", "request_id": "b", "correct": true}'])
def test_feedback_that_is_no_object(gw: Running, raw: bytes) -> None:
    error_of(gw.admin("POST", "/admin/feedback", content=raw), 400)


def test_a_wrong_pair_outlives_a_restart(up: Upstream, tmp_path: Path) -> None:
    """And the answer is not found by the index that is made anew, either."""
    config, system = text(up, f"sqlite:///{tmp_path}/cache.db"), "You are the one of before."
    with running(config, embedders=lambda _: by_wording()) as gw:
        room = Room(gw, system=system)
        answer = room.told(ASKED)
        wrong(gw, room.serves(REWORDED, answer))
        room.serves(TWICE_REWORDED, answer)
    with running(config, embedders=lambda _: by_wording()) as gw:
        room = Room(gw, system=system)
        until(lambda: stats(gw)["questions"] == 1)
        room.serves(TWICE_REWORDED, answer)
        assert text_of(room.refuses(REWORDED, why="reported_wrong")) != answer


# Purge by what is like a text


def like(gw: Running, wanted: str, *, key: str = ADMIN, **more: Any) -> int:
    done = gw.admin("POST", "/admin/purge", key=key, json={"like": wanted, **more})
    assert done.status_code == 200, done.text
    return int(done.json()["purged"])


def test_like_takes_what_is_near_and_no_more(room: Room, up: Upstream) -> None:
    """In every context and scope that the one who purges may touch, also what no vector was made of."""
    like(room.gw, ASKED)
    rooms = [Room(room.gw), Room(room.gw, "/personal/v1"), Room(room.gw, "/rr/v1")]
    answers = [each.told(ASKED) for each in rooms]
    foreign = room.told(ASKED, key=EVE)
    far = room.told(OTHER)
    rooms[0].serves(REWORDED, answers[0])
    assert like(room.gw, REWORDED, dry_run=True) == 4
    assert like(room.gw, REWORDED, endpoint="personal", dry_run=True) == 1
    assert like(room.gw, REWORDED, key=CHIEF) == 3
    for each, answer in zip(rooms, answers, strict=True):
        assert text_of(each.refuses(ASKED)) != answer
    again, others = room.ask(OTHER), room.ask(ASKED, key=EVE)
    assert [(outcome(a), text_of(a)) for a in (again, others)] == [("exact", far), ("exact", foreign)]
    assert like(room.gw, "Nothing is like this.") == 0


def test_like_can_be_soft(room: Room) -> None:
    like(room.gw, ASKED)
    answer = room.told(ASKED)
    assert like(room.gw, ASKED, soft=True) == 1
    assert text_of(room.refuses(REWORDED)) != answer


@pytest.mark.parametrize("value", ["", 5, None, ["a"], {}])
def test_like_must_be_a_text(gw: Running, value: Any) -> None:
    assert error_of(gw.admin("POST", "/admin/purge", json={"like": value}), 400)["param"] == "like"


def test_like_without_vectors_purges_nothing(up: Upstream) -> None:
    def refused(config: str, embedders: MakeEmbedder) -> Json:
        with running(config, embedders=embedders) as gw:
            Room(gw).told(ASKED)
            status = 409 if embedders is not Unready else 503
            error = error_of(gw.admin("POST", "/admin/purge", json={"like": ASKED}), status)
            assert gw.admin("GET", "/admin/entries").json()["entries"]
            return error

    off = text(up).partition("\nendpoints:")[0] + "\nendpoints: {default: {cache: {semantic: off}}}\n"
    assert refused(off, lambda _: by_wording())["code"] == "semantic_off"
    assert refused(text(up), Unready)["code"] == "semantic_unavailable"
