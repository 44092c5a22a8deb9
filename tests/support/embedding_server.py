"""An OpenAI-style embedding server on a real socket, which lies, hangs and goes as it is told."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.semantic import ASKED, REWORDED, TWICE_REWORDED, Json


class EmbeddingServer:
    """An OpenAI-style one on a real socket. Texts that `place` puts together have the same vector, others are
    orthogonal; `spoil` makes of a good body what is sent instead, after `hang` seconds, under `status`."""

    def __init__(self) -> None:
        self.port = 0
        self.size = 64
        self.place: Callable[[str], str] = lambda text: ASKED if text in (REWORDED, TWICE_REWORDED) else text
        self.reset()

    def reset(self) -> None:
        self.spoil: Callable[[Json], bytes] = lambda body: json.dumps(body).encode()
        self.status, self.hang = 200, 0.0
        self.seen: list[tuple[str, Json]] = []  # what authorization, and the body
        self._places: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def config(self, *, model: str = "placed", port: int | None = None) -> str:
        url = f"http://127.0.0.1:{port or self.port}/v1"
        return f'embedder: {{base_url: "{url}", api_key: sk-embedder-secret, model: {model}}}\n'

    def vector(self, text: str) -> list[float]:
        number = self._places.setdefault(self.place(text), len(self._places)) % self.size
        return [2.0 if i == number else 0.0 for i in range(self.size)]  # not of unit length: nobody has promised it

    def answer(self, authorization: str, asked: Json) -> bytes:
        self.seen.append((authorization, asked))
        data = [{"object": "embedding", "index": i, "embedding": self.vector(t)} for i, t in enumerate(asked["input"])]
        begun = time.monotonic()
        while time.monotonic() < begun + self.hang:  # until it is told not to
            time.sleep(0.005)
        return self.spoil({"object": "list", "model": asked["model"], "data": data})


@contextmanager
def embedding_server(port: int = 0) -> Iterator[EmbeddingServer]:
    """With `port` at just that one, so that it can go and come back."""
    app = EmbeddingServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = app.answer(self.headers["authorization"], asked)
            with suppress(ConnectionError):  # who asked may have given up
                self.send_response(app.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads, server.block_on_close = True, False
    app.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield app
    finally:
        server.shutdown()
        server.server_close()
