"""Load: one connection by hand (latency), 32 connections by wrk (throughput)."""

import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.apps import WORDS

KEY = "rf-bench-key"
PATH = "/v1/chat/completions"

# wrk posts the bodies of a file in turn and prints one line of JSON.
LUA = """
local bodies, i = {}, 0
function init(args)
  for line in io.lines(args[1]) do
    bodies[#bodies + 1] = wrk.format("POST", nil, {["Content-Type"] = "application/json",
      ["Authorization"] = "Bearer " .. args[2]}, line)
  end
end
function request() i = i % #bodies + 1; return bodies[i] end
function done(s)
  io.write(string.format('JSON {"requests":%d,"us":%d,"errors":%d}\\n', s.requests, s.duration,
    s.errors.connect + s.errors.read + s.errors.write + s.errors.timeout + s.errors.status))
end
"""


def url(port: int, path: str = PATH) -> str:
    return f"http://127.0.0.1:{port}{path}"


def prompt(seed: str, words: int = 225) -> str:
    """A prompt of about 300 tokens."""
    rnd = random.Random(seed)
    return f"Question {seed}: " + " ".join(rnd.choice(WORDS) for _ in range(words))


def body(seed: str, *, stream: bool = False) -> bytes:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": prompt(seed)},
    ]
    asked = {"model": "bench", "messages": messages, "temperature": 0}
    return json.dumps({**asked, "stream": True} if stream else asked).encode()


def request(port: int, data: bytes, path: str = PATH) -> bytes:
    """A whole request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def one_by_one(port: int, bodies: Sequence[bytes], outcome: str | None = None, path: str = PATH) -> float:
    """Median milliseconds from sending a request to having its whole answer, one connection. `outcome` is what every
    answer's x-refrain-cache must say."""
    times = []
    with _connection(port) as s:
        for wire in [request(port, data, path) for data in bodies]:
            begun = time.perf_counter()
            s.sendall(wire)
            head, rest = _read_until(s, b"", b"\r\n\r\n")
            length = next(int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:"))
            while len(rest) < length:
                rest += s.recv(65536)
            times.append(time.perf_counter() - begun)
            _check(head, outcome)
    return statistics.median(times) * 1000


def first_events(port: int, bodies: Sequence[bytes], outcome: str | None = None) -> float:
    """Median milliseconds from sending a request to having the first event of its stream, one connection."""
    times = []
    with _connection(port) as s:
        for wire in [request(port, data) for data in bodies]:
            begun = time.perf_counter()
            s.sendall(wire)
            head, rest = _read_until(s, b"", b"\r\n\r\n")
            _, rest = _read_until(s, rest, b"\n\n")
            times.append(time.perf_counter() - begun)
            _check(head, outcome)
            _read_until(s, rest, b"\r\n0\r\n\r\n")
    return statistics.median(times) * 1000


def _connection(port: int) -> socket.socket:
    s = socket.create_connection(("127.0.0.1", port), timeout=30)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def _read_until(s: socket.socket, data: bytes, end: bytes) -> tuple[bytes, bytes]:
    """What comes up to `end`, `data` being here already, and what has come after it."""
    while end not in data:
        if not (more := s.recv(65536)):
            sys.exit(f"the connection ended in the middle of an answer: {data[:500]!r}")
        data += more
    before, _, after = data.partition(end)
    return before, after


def _check(head: bytes, outcome: str | None) -> None:
    good = head.startswith(b"HTTP/1.1 200 ")
    if not good or (outcome is not None and f"x-refrain-cache: {outcome}".encode() not in head.split(b"\r\n")):
        sys.exit(f"this was to be {outcome or 'an answer'}, and is not: {head!r}")


def throughput(port: int, bodies: Sequence[bytes], seconds: int) -> float:
    """Requests per second over 32 connections."""
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("This benchmark needs wrk: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        script, lines = Path(folder, "post.lua"), Path(folder, "bodies")
        script.write_text(LUA)
        lines.write_bytes(b"\n".join(bodies))
        command = [wrk, "-t1", "-c32", f"-d{seconds}s", "-s", str(script), url(port), "--", str(lines), KEY]
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 30).stdout
    result = json.loads(next(line for line in out.splitlines() if line.startswith("JSON "))[5:])
    if result["errors"]:
        sys.exit(f"wrk saw {result['errors']} errors at {url(port)}")
    return float(result["requests"] / result["us"] * 1e6)


def misses(port: int) -> int:
    """How many requests the gateway has sent on, by its own count."""
    return requests(port, "miss")


def requests(port: int, outcome: str) -> int:
    """How many requests had this outcome, by the gateway's own count."""
    asked = urllib.request.Request(url(port, "/admin/stats"), headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked, timeout=10) as response:
        return int(json.load(response)["requests"].get(outcome, 0))


def calls(port: int) -> int:
    """How many requests the streaming upstream at this port has seen, by its own count."""
    with urllib.request.urlopen(url(port, "/calls"), timeout=10) as response:
        return int(json.load(response)["calls"])
