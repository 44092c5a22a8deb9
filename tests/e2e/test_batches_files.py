"""Files of the batch lane: what is kept, for how long, for whom; and what is refused."""

import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.batches import CHAT, DAY, Lane, at, chat_lines, counts, jsonl, lane, lane_config
from tests.support.gateway import ALICE, BOB, EVE, Running, config_text, running
from tests.support.traffic import error_of, until
from tests.support.upstream import Reply, Seen, Upstream, numbered

HOUR = 3_600
FORM: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}")}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lane")


@pytest.fixture(scope="module")
def gw(up: Upstream, folder: Path) -> Iterator[Running]:
    with running(lane_config(up, folder, extra="server: {max_body: 10KiB}\n")) as gateway:
        yield gateway


@pytest.fixture
def alice(gw: Running) -> Iterator[Lane]:
    with lane(gw) as found:
        yield found


def asked(gw: Running, method: str, path: str, *, key: str = ALICE, **more: Any) -> httpx.Response:
    return gw.client.request(method, f"/v1/{path}", headers={"authorization": f"Bearer {key}"}, **more)


def is_gone(alice: Lane, id: str) -> bool:
    for look in (alice.client.files.retrieve, alice.client.files.content):
        try:
            look(id)
        except openai.NotFoundError:
            continue
        return False
    return True


# Kept, and for how long


@pytest.mark.parametrize("content", [b"{}", b"\x00\xff\r\n--\r\n" * 5, b"x" * 3_000_001], ids=["short", "odd", "long"])
def test_what_comes_back_is_what_was_sent(alice: Lane, content: bytes) -> None:
    file = alice.upload(content, "Anfragen für März.jsonl")
    assert (file.bytes, file.filename) == (len(content), "Anfragen für März.jsonl")
    assert alice.content(file.id) == content


def test_deleted(alice: Lane, prompt: str) -> None:
    """A batch outlives its files."""
    batch = alice.run(chat_lines(prompt, 3))
    for id in (batch.input_file_id, batch.output_file_id):
        assert id is not None
        gone = alice.client.files.delete(id)
        assert (gone.id, gone.object, gone.deleted) == (id, "file", True)
        assert is_gone(alice, id)
        with pytest.raises(openai.NotFoundError):
            alice.client.files.delete(id)
    after = alice.get(batch.id)
    assert (after.status, counts(after), after.usage) == ("completed", (3, 3, 0), batch.usage)


def test_an_input_file_deleted_at_once_leaves_no_batch_without_an_end(alice: Lane, prompt: str) -> None:
    batch = alice.start(chat_lines(prompt, 3))
    alice.client.files.delete(batch.input_file_id)
    batch = alice.ended(batch.id)
    if batch.status == "completed":
        assert counts(batch) == (3, 3, 0)
    else:
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data


def test_an_input_file_is_not_needed_once_its_lines_run(alice: Lane, up: Upstream, prompt: str) -> None:
    gate = threading.Event()

    def script(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.gates = {0: gate}
        return reply

    up.script = script
    batch = alice.start(chat_lines(prompt, 100))
    until(lambda: up.open == 32)
    alice.client.files.delete(batch.input_file_id)
    gate.set()
    assert counts(alice.ended(batch.id)) == (100, 100, 0)


@pytest.mark.slow
def test_files_end_when_they_were_said_to(gw: Running, alice: Lane, prompt: str) -> None:
    file = alice.upload(jsonl(chat_lines(prompt, 1)), expires_after={"anchor": "created_at", "seconds": HOUR})
    assert file.expires_at == file.created_at + HOUR
    batch = alice.run(chat_lines(prompt, 1), output_expires_after={"anchor": "created_at", "seconds": 2 * HOUR})
    output = batch.output_file_id
    assert output is not None
    written = alice.client.files.retrieve(output)
    assert written.expires_at == written.created_at + 2 * HOUR
    gw.clock.offset = HOUR + 60
    until(lambda: is_gone(alice, file.id))
    assert not is_gone(alice, output)
    gw.clock.offset = 2 * HOUR + 60
    until(lambda: is_gone(alice, output))
    assert not is_gone(alice, batch.input_file_id)
    assert alice.get(batch.id).status == "completed"
    gw.clock.offset = 31 * DAY
    until(lambda: is_gone(alice, batch.input_file_id))
    until(lambda: asked(gw, "GET", f"batches/{batch.id}").status_code == 404)


def test_who_pages_and_deletes_comes_to_the_end(alice: Lane) -> None:
    ids = {alice.upload(b"{}").id for _ in range(5)}
    seen = set()
    for file in alice.client.files.list(limit=2):
        alice.client.files.delete(file.id)
        seen.add(file.id)
    assert seen >= ids
    assert alice.client.files.list().data == []


# For whom


@pytest.mark.parametrize("other", [BOB, EVE], ids=["same tenant", "other tenant"])
def test_those_of_others_are_not_there(gw: Running, alice: Lane, prompt: str, other: str) -> None:
    batch = alice.run(chat_lines(prompt, 1))
    assert batch.output_file_id is not None
    asks = [("GET", f"batches/{batch.id}"), ("POST", f"batches/{batch.id}/cancel")]
    for id in (batch.input_file_id, batch.output_file_id):
        asks += [("GET", f"files/{id}"), ("GET", f"files/{id}/content"), ("DELETE", f"files/{id}")]
    for method, path in asks:
        kind = path.split("/")[0]
        error = error_of(asked(gw, method, path, key=other), 404)
        nobody = error_of(asked(gw, method, path.replace(path.split("/")[1], "nothing"), key=other), 404)
        assert error["code"] == nobody["code"] == {"files": "file_not_found", "batches": "batch_not_found"}[kind]
    for listed in ("files", "batches"):
        assert asked(gw, "GET", f"{listed}?limit=100", key=other).json()["data"] == []
        assert error_of(asked(gw, "GET", f"{listed}?after={batch.input_file_id}", key=other), 404)["param"] == "after"
    body = {"input_file_id": batch.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
    error = error_of(asked(gw, "POST", "batches", key=other, json=body), 404)
    assert (error["code"], error["param"]) == ("file_not_found", "input_file_id")
    assert alice.content(batch.input_file_id)  # nobody has deleted it


ROUTES = [
    *(("POST", "files"), ("GET", "files"), ("GET", "files/file-1"), ("DELETE", "files/file-1")),
    *(("GET", "files/file-1/content"), ("POST", "batches"), ("GET", "batches"), ("GET", "batches/batch_1")),
    ("POST", "batches/batch_1/cancel"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_key_is_needed(gw: Running, method: str, path: str) -> None:
    assert error_of(asked(gw, method, path, key="rf-wrong"), 401)["code"] == "invalid_api_key"


def test_without_a_disk_there_are_no_batches(up: Upstream) -> None:
    with running(config_text(up.url)) as gw:
        for method, path in ROUTES:
            response = asked(gw, method, path, json={} if (method, path) == ("POST", "batches") else None)
            assert error_of(response, 501)["code"] == "batches_not_available"
            assert response.headers["x-should-retry"] == "false"
        assert gw.chat("There are answers.").status_code == 200


def test_durable_url_is_another_place(up: Upstream, tmp_path: Path) -> None:
    text = config_text(up.url).replace(
        'store: {url: "memory://"}', f'store: {{url: "memory://", durable_url: "{at(tmp_path)}"}}'
    )
    with running(text) as gw, lane(gw) as alice:
        assert counts(alice.run(chat_lines("Elsewhere?", 2))) == (2, 2, 0)


# Refused


@pytest.mark.parametrize("path", ["files", "files/a", "files/a/content", "batches", "batches/a", "batches/a/cancel"])
def test_another_method(gw: Running, path: str) -> None:
    response = asked(gw, "PUT", path)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"]


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=no", "after")],
)
def test_lists_that_cannot_be(gw: Running, query: str, param: str) -> None:
    status = 404 if param == "after" else 400
    assert error_of(asked(gw, "GET", f"batches?{query}"), status)["param"] == param


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"data": {"purpose": "fine-tune"}}, "purpose"),
        ({"data": {}}, "purpose"),
        ({"files": {"other": ("a.jsonl", b"{}")}}, "file"),
        ({"files": {"file": ("a.jsonl", b"")}}, "file"),
        ({"data": {"purpose": "batch", "expires_after[anchor]": "now", "expires_after[seconds]": "3600"}}, "anchor"),
        ({"data": {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "9"}}, "sec"),
    ],
    ids=["another purpose", "no purpose", "no file", "an empty file", "anchor", "seconds"],
)
def test_uploads_that_are_refused(gw: Running, alice: Lane, changes: dict[str, Any], param: str) -> None:
    before = alice.client.files.list().data
    assert param in str(error_of(asked(gw, "POST", "files", **{**FORM, **changes}), 400)["param"])
    assert alice.client.files.list().data == before


def test_what_is_no_form(gw: Running) -> None:
    assert error_of(asked(gw, "POST", "files", json={"purpose": "batch"}), 415)
    head = {"authorization": f"Bearer {ALICE}", "content-type": "multipart/form-data; boundary=x"}
    for body in (b"", b"--x\r\n", b"nothing of the kind"):
        assert error_of(gw.client.post("/v1/files", content=body, headers=head), 400)


def test_an_upload_that_breaks_off_leaves_nothing(gw: Running, alice: Lane, folder: Path) -> None:
    def rows() -> dict[str, int]:
        with closing(sqlite3.connect(folder / "cache.batches.db")) as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: db.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in tables}

    before, files = rows(), alice.client.files.list().data
    assert before
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ALICE}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 9000000\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", int(gw.url.rsplit(":", 1)[1]))) as s:
        s.sendall(head.encode() + b"y" * 4_000_000)
        until(lambda: rows() != before)  # some of it has been taken in
    until(lambda: rows() == before)
    assert alice.client.files.list().data == files
