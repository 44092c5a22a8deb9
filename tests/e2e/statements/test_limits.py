"""Statements 30 and 38: bounds on what is kept, and on what is read."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import ALICE, Running, config_text, running
from tests.support.process import Served, serve
from tests.support.traffic import error_of, outcome, until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, reply_for
from tests.support.wire import Answer, chunked, head, talk

KIB = 1024
MIB = 2**20

# Statement 30

SMALL = "memory: 256KiB, max_entry: 64KiB"


def small(up: Upstream, url: str, bounds: str) -> str:
    return config_text(up.url).replace('store: {url: "memory://"}', f'store: {{url: "{url}", {bounds}}}')


def long_answer(size: int) -> Callable[[Seen, int], Reply]:
    """Answers of so many characters, another one at every call."""

    def script(seen: Seen, number: int) -> Reply:
        word = f"word{number}".ljust(500, "o") + " "
        return reply_for(seen, chat_answer((word * (size // 500 + 1))[:size]))

    return script


def exact(gw: Running, layer: str) -> dict[str, Any]:
    return dict(gw.admin("GET", "/admin/stats").json()["tiers"]["exact"][layer])


def cached(gw: Running, content: str, **more: Any) -> bool:
    return gw.chat(content, headers={"cache-control": "only-if-cached"}, **more).status_code == 200


@pytest.fixture(scope="module")
def tight(up: Upstream) -> Iterator[Running]:
    with running(small(up, "memory://", SMALL)) as gateway:
        yield gateway


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_statement_30_memory_stays_under_its_bound(tight: Running, up: Upstream, prompt: str, stream: bool) -> None:
    """Statement 30: with a day to live and many answers, memory stays bounded; rendered streams and aliases count."""
    up.script = long_answer(10_000)
    for i in range(50):
        for _ in range(2):  # the second time makes and uses the short way
            outcome(tight.chat(f"{prompt} {i}", stream=stream))
        kept = exact(tight, "memory")
        assert kept["bytes"] <= kept["max_bytes"] == 256 * KIB
    assert kept["evicted"] > 0
    assert kept["entries"] < 30


@pytest.mark.slow
def test_statement_30_spellings_of_one_request_are_bounded_too(tight: Running, up: Upstream, prompt: str) -> None:
    """Statement 30: one entry asked for in ever new spellings does not grow without end, nor push the others out."""
    up.script = long_answer(100)
    outcome(tight.chat(f"{prompt} another"))
    with upstream_calls(up, 1):
        for i in range(300):
            outcome(tight.chat(prompt, user=f"u{i}"))
    kept = exact(tight, "memory")
    assert kept["bytes"] <= kept["max_bytes"]
    assert cached(tight, f"{prompt} another")


def test_statement_30_the_least_recently_used_goes_first(tight: Running, up: Upstream, prompt: str) -> None:
    """Statement 30: what is used stays, by whichever way it is used; what is not goes."""
    up.script = long_answer(10_000)
    for name in ("parsed", "same bytes", "forgotten"):
        outcome(tight.chat(f"{prompt} {name}", path="/rr/v1"))
    for i in range(40):
        outcome(tight.chat(f"{prompt} {i}", path="/rr/v1"))
        assert outcome(tight.chat(f"{prompt} same bytes", path="/rr/v1")) == "exact"
        assert outcome(tight.chat(f"{prompt} parsed", path="/rr/v1", user=str(i))) == "exact"
    assert not cached(tight, f"{prompt} forgotten", path="/rr/v1")
    assert cached(tight, f"{prompt} 39", path="/rr/v1")
    assert not cached(tight, f"{prompt} 0", path="/rr/v1")


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_statement_30_an_oversize_answer_is_delivered_but_not_kept(
    tight: Running, up: Upstream, prompt: str, path: str, stream: bool
) -> None:
    """Statement 30: an answer over `max_entry` reaches the client whole and is not stored."""
    up.script = long_answer(70_000)
    before = exact(tight, "memory")["entries"]
    with upstream_calls(up, 2):
        for _ in range(2):
            response = tight.chat(prompt, path=path, stream=stream)
            assert outcome(response) == "miss"
            assert len(response.content) > 70_000
    assert exact(tight, "memory")["entries"] == before


@pytest.mark.slow
def test_statement_30_the_file_stays_under_its_bound(up: Upstream, tmp_path: Any, prompt: str) -> None:
    """Statement 30: the SQLite store keeps to `max_bytes` and drops the least recently used first."""
    up.script = lambda seen, number: reply_for(seen, chat_answer(incompressible(20_000, number)))
    url = f"sqlite:///{tmp_path}/cache.db"
    with running(small(up, url, "max_bytes: 256KiB, memory: 64KiB, max_entry: 64KiB")) as gw:
        outcome(gw.chat(f"{prompt} used", path="/rr/v1"))
        outcome(gw.chat(f"{prompt} forgotten", path="/rr/v1"))
        for i in range(30):
            outcome(gw.chat(f"{prompt} {i}", path="/rr/v1"))
            if i % 4 == 0:
                gw.admin("GET", "/admin/entries")  # waits until all is written
                with upstream_calls(up, 0):
                    outcome(gw.chat(f"{prompt} used", path="/rr/v1"))
        gw.admin("GET", "/admin/entries")
        kept = exact(gw, "store")
        assert kept["bytes"] <= kept["max_bytes"] == 256 * KIB
        assert kept["evicted"] > 0
        assert exact(gw, "memory")["bytes"] <= 64 * KIB
        assert cached(gw, f"{prompt} used", path="/rr/v1")
        assert not cached(gw, f"{prompt} forgotten", path="/rr/v1")
    assert (tmp_path / "cache.db").stat().st_size < 4 * MIB


def incompressible(size: int, seed: int) -> str:
    import random

    return random.Random(seed).randbytes(size // 2).hex()


# Statement 38


@pytest.fixture(scope="module")
def roomy(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway with the default bound of 10 MiB, in a process of its own: what is timed is its work alone."""
    home = tmp_path_factory.mktemp("home")
    (home / "refrain.yaml").write_text(config_text(up.url))
    with serve(home) as served:
        served.wait_ready()
        yield served


HEAD = [f"Authorization: Bearer {ALICE}", "Content-Type: application/json"]
CHAT = "/rr/v1/chat/completions"


def body_with(more: str) -> bytes:
    return (f'{{"model": "m", "messages": [{{"role": "user", "content": "a"}}], {more}}}').encode()


HOSTILE = {
    "nested lists": lambda: body_with('"x": ' + "[" * 100_000 + "]" * 100_000),
    "nested objects": lambda: body_with('"x": ' + '{"a":' * 100_000 + "1" + "}" * 100_000),
    "nested, never closed": lambda: body_with('"x": ' + "[" * 1_000_000),
    "a million keys": lambda: body_with('"x": {' + ",".join(f'"{i:x}":0' for i in range(1_000_000)) + "}"),
    "a million keys at the top": lambda: body_with(",".join(f'"{i:x}":0' for i in range(1_000_000))),
    "a million values": lambda: body_with('"x": [' + "0," * 1_000_000 + "0]"),
    "ten megabytes of digits": lambda: body_with('"x": ' + "9" * (10_000_000)),
    "ten megabytes of decimals": lambda: body_with('"x": 0.' + "9" * (10_000_000)),
    "ten megabytes of exponent": lambda: body_with('"x": 1e' + "9" * (10_000_000)),
    "many long numbers": lambda: body_with('"x": [' + ",".join(["9" * 4_000] * 2_000) + "]"),
    "no JSON": lambda: b"x" * 10_000_000,
    "one open string": lambda: b'{"model": "' + b"a" * 10_000_000,
    "one open string of escapes": lambda: b'{"model": "' + b"\\u0041" * 1_600_000,
    "quotes and backslashes": lambda: b'{"a": ' + b'"\\\\",' * 1_500_000,
    "white space": lambda: b" " * 10_000_000,
}


def posted(url: str, body: bytes) -> Answer:
    return talk(url, [head(CHAT, *HEAD, f"Content-Length: {len(body)}"), body], timeout=30)


class Bystander:
    """Asks for /healthz again and again; `slowest` is the longest that it had to wait, in seconds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.slowest = 0.0

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False, timeout=30) as client:
            while not self._stop.is_set():
                begun = time.monotonic()
                client.get("/healthz").raise_for_status()
                self.slowest = max(self.slowest, time.monotonic() - begun)
                time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_statement_38_hostile_bodies_are_refused_within_a_second(
    roomy: Served, up: Upstream, make: Callable[[], bytes]
) -> None:
    """Statement 38: nesting, a million keys, megabytes of digits: 4xx within a second, while others are served."""
    body = make()
    assert len(body) <= 10 * MIB, "the bound on bodies would refuse it already"
    tries: list[tuple[float, float]] = []
    with upstream_calls(up, 0):
        # The machine may be busy with something else, but what is slow by itself is slow three times.
        while len(tries) < 3:
            with Bystander(roomy.url) as bystander:
                answer = posted(roomy.url, body)
            assert 400 <= answer.status < 500
            assert answer.error.keys() == {"message", "type", "param", "code"}
            tries.append((answer.seconds, bystander.slowest))
            if answer.seconds < 1 and bystander.slowest < 0.5:
                break
    assert min(answer for answer, _ in tries) < 1, f"refused too slowly: (answer, longest wait of others) = {tries}"
    assert min(waited for _, waited in tries) < 0.5, f"others had to wait: (answer, longest wait of others) = {tries}"


def test_statement_38_memory_is_bounded(roomy: Served) -> None:
    """Statement 38: all that was refused above left the process within its bounds."""
    status = Path(f"/proc/{roomy.process.pid}/status")
    if status.exists():
        peak = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    else:  # no /proc, no peak: what it takes now must do
        command = ["ps", "-o", "rss=", "-p", str(roomy.process.pid)]
        peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert peak < 1_000_000, f"{peak} kB at the peak"


def test_statement_38_a_body_declared_too_large_is_refused_before_it_comes(gw: Running, up: Upstream) -> None:
    """Statement 38: Content-Length over the bound is a 413 at once, without a byte of the body."""
    with upstream_calls(up, 0):
        answer = talk(gw.url, [head(CHAT, *HEAD, f"Content-Length: {10 * MIB + 1}")])
    assert answer.status == 413
    assert answer.error["message"]
    assert answer.seconds < 1
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("length", ["99999999999999999999", "9" * 400])
def test_statement_38_an_absurd_content_length(gw: Running, length: str) -> None:
    """Statement 38: a declared length beyond all bounds is a 4xx."""
    answer = talk_bare(gw.url, [head(CHAT, *HEAD, f"Content-Length: {length}")])
    assert answer.split(b" ")[1][:1] == b"4"


def talk_bare(url: str, pieces: list[bytes]) -> bytes:
    """The first line of an answer that the HTTP server itself may give."""
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as s:
        s.sendall(b"".join(pieces))
        return s.recv(65536).split(b"\r\n")[0]


def test_statement_38_a_chunked_body_is_cut_off_at_the_bound(up: Upstream) -> None:
    """Statement 38: a body without a declared length is refused as soon as it is over the bound, not at its end."""
    text = config_text(up.url, extra="server: {max_body: 64KiB}\n")
    piece = b"x" * 4096
    with running(text) as gw, upstream_calls(up, 0):
        endless = (b"%x\r\n%s\r\n" % (len(piece), piece) for _ in range(1_000))  # 4 MB, and no end
        answer = talk(gw.url, [head(CHAT, *HEAD, "Transfer-Encoding: chunked"), *endless])
        assert answer.status == 413
        assert answer.seconds < 1
        fitting = json.dumps({"model": "m", "messages": [{"role": "user", "content": "y" * 70_000}]}).encode()
        assert posted(gw.url, fitting).status == 413
        whole = talk(gw.url, [head(CHAT, *HEAD, "Transfer-Encoding: chunked"), *chunked([fitting])])
        assert whole.status == 413


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_statement_38_compressed_bodies_are_refused(gw: Running, up: Upstream, coding: str) -> None:
    """Statement 38: a small compressed body may be a large one, so none is taken."""
    import gzip

    body = gzip.compress(json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 10_000}]}).encode())
    with upstream_calls(up, 0):
        error = error_of(gw.raw(body, **{"content-encoding": coding}), 415)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/admin/purge", "/nowhere", "/nowhere/v1/chat/completions", "/v1/models"])
def test_statement_38_the_bound_holds_on_every_route(gw: Running, path: str) -> None:
    """Statement 38: not only on the routes that read a body."""
    answer = talk(gw.url, [head(path, *HEAD, f"Content-Length: {10 * MIB + 1}")])
    assert 400 <= answer.status < 500
    assert answer.seconds < 1


def test_statement_38_many_headers_and_a_long_path_are_no_fault(gw: Running) -> None:
    """Statement 38: a flood of headers or a path of 60 KB gets a 4xx, and the next request is served."""
    flood = [f"x-h-{i}: {'v' * 50}" for i in range(2_000)]
    for pieces in ([head(CHAT, *HEAD, *flood, "Content-Length: 0")], [head("/" + "a" * 60_000, *HEAD, method="GET")]):
        assert talk_bare(gw.url, pieces).split(b" ")[1][:1] == b"4"
    assert until(lambda: gw.client.get("/healthz").status_code == 200)
