"""`POST /webhooks/{retriever}`: a service tells of its documents, in messages signed as standardwebhooks.com says."""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from tests.support.documents import ANN, SECRET, Library, documents_text, library, purged, shelf_of_two
from tests.support.gateway import ADMIN, EVE, running
from tests.support.retrievers import serving
from tests.support.traffic import error_of, outcome
from tests.support.upstream import Upstream
from tests.support.wire import Answer, chunked, talk
from tests.support.wire import head as request_head

pytestmark = pytest.mark.slow

Json = dict[str, Any]
KEPT = {"chat": 1, "search": 2, "chunk": 1}
GONE: Json = {"id": "hr/leave.md", "deleted": True}
_numbers = count(1)


@pytest.fixture
def lib(up: Upstream) -> Iterator[Library]:
    with library(up.url) as found:
        yield found


def head(body: bytes, *, secret: bytes | str = SECRET, id: str | None = None, late: float = 0) -> dict[str, str]:
    """The three headers that the official package sends with this body, sent so many seconds ago."""
    id = id or f"msg_{next(_numbers)}"
    at = int(datetime.now(tz=UTC).timestamp() - late)
    signature = Webhook(secret).sign(id, datetime.fromtimestamp(at, tz=UTC), body.decode())
    return {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": signature}


def send(
    lib: Library, body: Json | bytes, *, to: str = "handbook", more: Json | None = None, **how: Any
) -> httpx.Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lib.gw.client.post(f"/webhooks/{to}", content=raw, headers={**head(raw, **how), **(more or {})})


def untouched(lib: Library) -> bool:
    return lib.kept("hr/leave.md") == lib.kept("pay.md") == KEPT and outcome(lib.search()) == "exact"


def test_a_signed_message_needs_no_key(lib: Library) -> None:
    lib.fill()
    response = send(lib, GONE)
    assert purged(response) == 4
    assert response.headers["cache-control"] == "private, no-store"
    assert lib.kept("hr/leave.md") == {}
    assert lib.search().json()["data"] == []
    (line,) = lib.lines(ANN)  # its tenant sees it
    assert (
        line.items()
        >= {
            "tenant": "acme",
            "user": "webhook:handbook",
            "role": "webhook",
            "action": "documents_changed",
            "details": {"retriever": "handbook", "documents": [GONE]},
            "request_id": response.headers["x-request-id"],
            "result": {"purged": 4},
        }.items()
    )
    assert lib.lines(EVE) == []


def test_one_message_tells_of_many_documents(lib: Library) -> None:
    lib.fill()
    lib.shelf.put("pay.md", "pay comes never", version="2")
    others = [{"id": f"other{n}.md", "version": "1"} for n in range(998)]
    assert purged(send(lib, {"documents": [GONE, *others, {"id": "pay.md", "version": "2"}]})) == 8
    assert lib.lines()[0]["details"]["documents"][-1] == {"id": "pay.md", "version": "2"}
    assert lib.ask("When do we get our pay?").headers["x-refrain-documents"] == "handbook/pay.md@2"


def test_a_secret_may_be_a_plain_word(lib: Library) -> None:
    outcome(lib.search(retriever="shared"))
    assert purged(send(lib, GONE, to="shared", secret=b"a plain word")) == 2
    assert lib.lines()[0]["tenant"] == ""  # of two tenants, so it is for the gateway's admin
    assert lib.lines(ANN) == lib.lines(EVE) == []


def test_what_is_not_signed_right_is_refused(lib: Library) -> None:
    lib.fill()
    raw = json.dumps(GONE).encode()
    good = head(raw)
    refused = {
        "another secret": head(raw, secret="whsec_" + b64encode(b"x" * 24).decode()),
        "another retriever's": head(raw, secret=b"a plain word"),
        "another body's": head(b"{}"),
        "another id": {**good, "webhook-id": "msg_other"},
        "an admin's key instead": {"authorization": f"Bearer {ADMIN}"},
        "an admin's key beside it": {**good, "webhook-signature": "v1,xyz", "authorization": f"Bearer {ADMIN}"},
        "nothing": {},
    }
    for name, headers in refused.items():
        response = lib.gw.client.post("/webhooks/handbook", content=raw, headers=headers)
        assert error_of(response, 401)["code"] == "invalid_signature", name
    assert untouched(lib)
    assert lib.lines() == []


@pytest.mark.parametrize("late", [301, -301], ids=["too late", "too early"])
def test_a_message_that_is_not_of_now_is_refused(lib: Library, late: int) -> None:
    lib.gw.clock.frozen = float(int(datetime.now(tz=UTC).timestamp()))
    lib.fill()
    assert error_of(send(lib, GONE, late=late + (1 if late > 0 else -3)), 401)["code"] == "stale_timestamp"
    assert untouched(lib)
    assert purged(send(lib, GONE, late=late - (10 if late > 0 else -10))) == 4


def test_the_gateways_clock_counts(lib: Library) -> None:
    raw = json.dumps(GONE).encode()
    headers = head(raw)
    for offset in (600, -600):
        lib.gw.clock.offset = offset
        assert error_of(lib.gw.client.post("/webhooks/handbook", content=raw, headers=headers), 401)
    lib.gw.clock.offset = 0
    assert purged(lib.gw.client.post("/webhooks/handbook", content=raw, headers=headers)) == 0


def test_while_a_secret_changes_a_message_has_two_signatures(lib: Library) -> None:
    lib.fill()
    raw = json.dumps(GONE).encode()
    right = head(raw, id="msg_two")
    wrong = head(raw, id="msg_two", secret=b"the next one")["webhook-signature"]
    both = {**right, "webhook-signature": f"v1a,abc {wrong} {right['webhook-signature']}"}
    assert purged(lib.gw.client.post("/webhooks/handbook", content=raw, headers=both)) == 4


# Twice


def test_a_message_that_comes_again_is_done_once(lib: Library) -> None:
    lib.fill()
    assert purged(send(lib, GONE, id="msg_again")) == 4
    lib.shelf.put("hr/leave.md", "leave is thirty days", version="2")
    purged(lib.change(version="2"))  # it is back
    outcome(lib.search())
    assert purged(send(lib, GONE, id="msg_again", late=2)) == 4  # what it gave the first time
    assert len(lib.search().json()["data"]) == 1
    assert [line["role"] for line in lib.lines()] == ["admin", "webhook"]
    assert purged(send(lib, GONE, id="msg_new")) > 0
    assert lib.search().json()["data"] == []


def test_another_message_under_the_id_of_an_earlier_one_is_another_one(lib: Library) -> None:
    """A sender may have begun to count anew."""
    lib.fill()
    for document in ("hr/leave.md", "pay.md"):
        assert send(lib, {"id": document, "deleted": True}, id="msg_1").json()["purged"] > 0


def test_a_message_that_comes_many_times_at_once_is_done_once(lib: Library) -> None:
    lib.fill()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: purged(send(lib, GONE, id="msg_same")), range(20)))
    assert answers == [4] * 20
    assert len(lib.lines()) == 1


def test_the_id_of_a_message_is_its_retrievers_own(lib: Library) -> None:
    lib.fill()
    outcome(lib.search(retriever="shared"))
    assert purged(send(lib, GONE, id="msg_1")) == 4
    assert purged(send(lib, GONE, id="msg_1", to="shared", secret=b"a plain word")) == 2


# Nowhere, and too much


def test_where_no_webhook_is_expected_there_is_nothing_to_be_learnt(lib: Library) -> None:
    no_secret, unknown = (error_of(send(lib, GONE, to=name), 404) for name in ("open", "nowhere"))
    assert no_secret["message"].replace("open", "nowhere") == unknown["message"]
    assert no_secret["code"] == unknown["code"] == "webhook_not_found"
    assert error_of(lib.gw.client.get("/webhooks/handbook"), 405)
    for path in ("/webhooks", "/webhooks/", "/webhooks/handbook/", "/webhooks/handbook/x", "/x/webhooks/handbook"):
        assert error_of(lib.gw.client.post(path, content=b"{}"), 404)["code"] == "unknown_url"


BAD: dict[str, tuple[bytes, str | None]] = {
    "no JSON": (b"leave.md", None),
    "a list": (b"[]", None),
    "nothing": (b"{}", "id"),
    "no documents": (b'{"documents": []}', "documents"),
    "documents that are no list": (b'{"documents": {"id": "a", "version": "1"}}', "documents"),
    "a text": (b'{"documents": ["a"]}', "documents[0]"),
    "neither": (b'{"documents": [{"id": "a", "version": "1"}, {"id": "b"}]}', "documents[1].version"),
    "both": (b'{"id": "a", "version": "1", "deleted": true}', "deleted"),
    "a number": (b'{"documents": [{"id": 1, "deleted": true}]}', "documents[0].id"),
    "a retriever": (b'{"retriever": "shared", "id": "a", "deleted": true}', "retriever"),
    "beside": (b'{"documents": [{"id": "a", "deleted": true}], "id": "b"}', "id"),
    "twice": (b'{"id": "a", "id": "b", "deleted": true}', "id"),
    "too many": (json.dumps({"documents": [{"id": "a", "version": "1"}] * 1001}).encode(), "documents"),
    "one bad beside a good one": (b'{"documents": [{"id": "hr/leave.md", "deleted": true}, {}]}', "documents[1].id"),
}


def test_a_bad_body_names_the_field_and_changes_nothing(lib: Library) -> None:
    lib.fill()
    for name, (raw, param) in BAD.items():
        assert error_of(send(lib, raw), 400)["param"] == param, name
    assert untouched(lib)
    assert lib.lines() == []
    # It is not what was said first that counts: the same message may be sent right.
    assert error_of(send(lib, b"{}", id="msg_corrected"), 400)
    assert purged(send(lib, GONE, id="msg_corrected")) == 4


def on_the_wire(lib: Library, raw: bytes, pieces: Iterable[bytes], *framing: str) -> Answer:
    """What a message of these bytes is answered, sent in pieces, with these lines about their length."""
    signed = [f"{name}: {value}" for name, value in head(raw).items()]
    return talk(lib.gw.url, [request_head("/webhooks/handbook", *signed, *framing), *pieces])


def test_a_huge_body_is_not_read(lib: Library) -> None:
    lib.fill()
    huge = json.dumps({"documents": [GONE], "more": "x" * 100_000}).encode()
    for more in ({}, {"authorization": f"Bearer {ADMIN}"}):
        error = error_of(send(lib, huge, more=more), 413)
        assert error["code"] == "request_too_large"
        assert "100000 bytes (the most for a webhook" in error["message"]
    # Nothing of it has to be there.
    answer = on_the_wire(lib, huge, [], "Content-Length: 100001")
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert error_of(lib.gw.client.post("/webhooks", content=huge), 401), "no way around the key for other paths"
    assert untouched(lib)
    assert lib.lines() == []


def test_of_a_chunked_body_no_more_is_read_than_a_message_may_have(lib: Library) -> None:
    """It has no end, so an answer shows that it is not waited for."""
    lib.fill()
    endless = (b"%x\r\n%s\r\n" % (10_000, b"x" * 10_000) for _ in range(11))
    answer = on_the_wire(lib, b"{}", endless, "Transfer-Encoding: chunked")
    assert (answer.status, answer.error["code"], answer.headers["connection"]) == (413, "request_too_large", "close")
    assert untouched(lib)


@pytest.mark.parametrize("size", [1, 1000])
def test_a_chunked_body_is_as_good_as_another(lib: Library, size: int) -> None:
    lib.fill()
    raw = json.dumps({"documents": [GONE, *({"id": f"other{n}.md", "version": "1"} for n in range(30))]}).encode()
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)]
    wrong = on_the_wire(lib, raw + b" ", chunked(pieces), "Transfer-Encoding: chunked")
    assert (wrong.status, wrong.error["code"]) == (401, "invalid_signature")
    assert untouched(lib)
    right = on_the_wire(lib, raw, chunked(pieces), "Transfer-Encoding: chunked")
    assert (right.status, right.body) == (200, b'{"purged":4}')


def test_a_message_of_just_the_most_bytes(lib: Library) -> None:
    lib.fill()
    raw = json.dumps(GONE).encode().ljust(100_000)
    assert error_of(send(lib, raw + b" "), 413)
    assert untouched(lib)
    assert purged(send(lib, raw)) == 4


def test_the_bound_of_all_bodies_holds_for_messages_too(up: Upstream) -> None:
    with serving(shelf_of_two()) as url:
        text = documents_text(up.url, url).replace("\nauth:", "\nserver: {max_body: 20KiB}\nauth:", 1)
        with running(text) as gw:
            lib = Library(gw, shelf_of_two())
            raw = json.dumps(GONE).encode()
            assert purged(send(lib, raw.ljust(20 * 1024))) == 0
            assert "server.max_body" in error_of(send(lib, raw.ljust(20 * 1024 + 1)), 413)["message"]
            answer = on_the_wire(lib, raw, chunked([b" " * 10_000] * 3), "Transfer-Encoding: chunked")
            assert answer.status == 413
