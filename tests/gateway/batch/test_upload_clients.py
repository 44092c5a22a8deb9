"""Files as real clients send them: the official one over a socket, and httpx's encoder."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import uvicorn

from gateway.asgi import Receive, Scope, Send, read_headers, send_error, send_json
from gateway.batch.upload import read_upload
from gateway.errors import ApiError
from gateway.http import BoundedProtocol
from tests.gateway.batch.forms import Taking, messages

LIMIT = 4_000_000


class Server:
    """Takes in files and answers as `POST /v1/files` does."""

    def __init__(self) -> None:
        self.port = 0
        self.taking = Taking()
        self.lives: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.taking = Taking()
        try:
            upload = await read_upload(read_headers(scope), receive, self.taking.piece, limit=LIMIT)
        except ApiError as error:
            await send_error(send, error)
            return
        self.lives = upload.lives
        answer = {"id": "file-1", "object": "file", "bytes": upload.size, "created_at": 1, "status": "processed"}
        named = {"filename": upload.filename, "purpose": upload.purpose}
        await send_json(send, 200, msgspec.json.encode({**answer, **named}))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    app = Server()
    started = threading.Event()

    class Started(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, http=BoundedProtocol, log_level="critical", lifespan="off", timeout_keep_alive=5
    )
    running = Started(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    assert started.wait(10)
    app.port = running.servers[0].sockets[0].getsockname()[1]
    yield app
    running.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="sk-none", max_retries=0) as found:
        yield found


CONTENT = "".join(f'{{"custom_id": "é{i}"}}\r\n' for i in range(50_000)).encode()


def test_the_official_client_sends_a_file_of_the_disk(server: Server, client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "été 1.jsonl"
    path.write_bytes(CONTENT)
    with path.open("rb") as file:
        found = client.files.create(file=file, purpose="batch")
    assert (found.filename, found.bytes, found.purpose) == ("été 1.jsonl", len(CONTENT), "batch")
    assert (server.taking.content, server.lives) == (CONTENT, None)
    assert len(server.taking.handed) > 1


def test_the_official_client_says_how_long_it_lives(server: Server, client: openai.OpenAI) -> None:
    lives: Any = {"anchor": "created_at", "seconds": 3_600}
    client.files.create(file=("a.jsonl", CONTENT), purpose="batch", expires_after=lives)
    assert (server.taking.content, server.lives) == (CONTENT, 3_600.0)


@pytest.mark.parametrize(
    ("file", "filename"),
    [
        pytest.param(b"content", "upload", id="bytes"),
        pytest.param(("a.jsonl", b"content", "application/jsonl"), "a.jsonl", id="with-its-type"),
        pytest.param(('a "b".jsonl', b"content"), "a %22b%22.jsonl", id="quotes"),  # as browsers write them
    ],
)
def test_the_official_client_sends_what_it_has(server: Server, client: openai.OpenAI, file: Any, filename: str) -> None:
    assert client.files.create(file=file, purpose="batch").filename == filename
    assert server.taking.content == b"content"


def test_the_official_client_is_told_what_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="only files of batches") as caught:
        client.files.create(file=("a.jsonl", CONTENT), purpose="fine-tune")
    assert caught.value.param == "purpose"


def test_the_official_client_is_told_that_a_file_is_too_large(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match=f"over {LIMIT} bytes") as caught:
        client.files.create(file=("a.jsonl", b"x" * (LIMIT + 100_000)), purpose="batch")
    assert (caught.value.status_code, caught.value.param) == (413, "file")
    assert server.taking.handed == []


def _encoded(**options: Any) -> tuple[dict[bytes, bytes], list[bytes]]:
    request = httpx.Request("POST", "http://refrain/v1/files", **options)
    assert isinstance(request.stream, httpx.SyncByteStream)
    headers = {name.lower(): value for name, value in request.headers.raw}
    return headers, list(request.stream)


@pytest.mark.parametrize("first", [False, True], ids=["as-written", "file-first"])
async def test_httpx_sends_a_file(first: bool) -> None:
    fields = [("purpose", (None, b"batch")), ("file", ("a.jsonl", CONTENT))]
    headers, pieces = _encoded(files=list(reversed(fields)) if first else fields)
    taking = Taking()
    upload = await taking(messages(pieces), headers, limit=LIMIT)
    assert (upload.filename, upload.size, taking.content) == ("a.jsonl", len(CONTENT), CONTENT)


async def test_a_boundary_in_quotes_is_the_same() -> None:
    kind = {"content-type": 'multipart/form-data; charset=utf-8; boundary="a b:c"'}
    headers, pieces = _encoded(data={"purpose": "batch"}, files={"file": ("a.jsonl", CONTENT)}, headers=kind)
    taking = Taking()
    await taking(messages(pieces), headers, limit=LIMIT)
    assert taking.content == CONTENT


def test_a_body_in_chunks_is_taken_in(server: Server) -> None:
    headers, pieces = _encoded(data={"purpose": "batch"}, files={"file": ("a.jsonl", CONTENT)})
    kind = {"content-type": headers[b"content-type"].decode()}
    answer = httpx.post(f"http://127.0.0.1:{server.port}/v1/files", content=iter(pieces), headers=kind)
    assert (answer.status_code, answer.json()["bytes"]) == (200, len(CONTENT))
    assert server.taking.content == CONTENT
