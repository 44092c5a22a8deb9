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


def prompt(seed: str, words: int = 225) -> str:
    """A prompt of about 300 tokens."""
    rnd = random.Random(seed)
    return f"Question {seed}: " + " ".join(rnd.choice(WORDS) for _ in range(words))


def body(seed: str) -> bytes:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": prompt(seed)},
    ]
    return json.dumps({"model": "bench", "messages": messages, "temperature": 0}).encode()


def one_by_one(port: int, bodies: Sequence[bytes], outcome: str | None = None) -> float:
    """Median milliseconds from sending a request to having its whole answer, one connection. `outcome` is what every
    answer's x-refrain-cache must say."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    times = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in bodies:
            wire = f"{head}{len(data)}\r\n\r\n".encode() + data
            begun = time.perf_counter()
            s.sendall(wire)
            answer = _read_answer(s)
            times.append(time.perf_counter() - begun)
            if outcome is not None and f"x-refrain-cache: {outcome}\r\n".encode() not in answer:
                sys.exit(f"this was to be {outcome}, and is not: {answer!r}")
    return statistics.median(times) * 1000


def _read_answer(s: socket.socket) -> bytes:
    """The head of the answer, once all of it is there."""
    data = s.recv(65536)
    while b"\r\n\r\n" not in data:
        data += s.recv(65536)
    head, _, rest = data.partition(b"\r\n\r\n")
    if b" 200 " not in head[:16]:
        raise SystemExit(f"unexpected answer: {data[:500]!r}")
    length = next(int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:"))
    while len(rest) < length:
        rest += s.recv(65536)
    return head + b"\r\n"


def throughput(port: int, bodies: Sequence[bytes], seconds: int) -> float:
    """Requests per second over 32 connections."""
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("This benchmark needs wrk: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        script, lines = Path(folder, "post.lua"), Path(folder, "bodies")
        script.write_text(LUA)
        lines.write_bytes(b"\n".join(bodies))
        url = f"http://127.0.0.1:{port}{PATH}"
        command = [wrk, "-t1", "-c32", f"-d{seconds}s", "-s", str(script), url, "--", str(lines), KEY]
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 30).stdout
    result = json.loads(next(line for line in out.splitlines() if line.startswith("JSON "))[5:])
    if result["errors"]:
        sys.exit(f"wrk saw {result['errors']} errors at {url}")
    return float(result["requests"] / result["us"] * 1e6)


def misses(port: int) -> int:
    """How many requests the gateway has sent on, by its own count."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/admin/stats", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return int(json.load(response)["requests"].get("miss", 0))
