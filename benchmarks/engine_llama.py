"""The server of llama-cpp-python on the same weights, where there is one: LLAMA_CPP_PYTHON names the Python that has
it, if it is not this one."""

import importlib.util
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from backends.local.models import DEFAULT_MODEL, find
from benchmarks.procs import Server, free_port, server


def llama_python() -> str | None:
    """The interpreter that has it; None where there is none."""
    named = os.environ.get("LLAMA_CPP_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("llama_cpp") else None)


@contextmanager
def llama(python: str) -> Iterator[Server]:
    """With one thread, and at its best: a new request does not interrupt the running one, and of a prompt only the last
    token gets scores."""
    port = free_port()
    options = {
        "model": find(DEFAULT_MODEL).location,
        "host": "127.0.0.1",
        "port": port,
        "n_threads": 1,
        "n_threads_batch": 1,
        "n_ctx": 2048,
        "logits_all": False,
        "interrupt_requests": False,
        "verbose": False,
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with server([python, "-m", "llama_cpp.server", *arguments], port, ready="/v1/models") as started:
        yield started


def llama_rate(port: int, prompts: Sequence[str], tokens: int, end_token: int | None) -> float:
    """New tokens in a second, of all requests at once, prompts included in the time."""

    def ask(prompt: str) -> int:
        body = {"model": "any", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "repeat_penalty": 1}
        if end_token is not None:
            body["logit_bias"] = {str(end_token): -100}  # it knows no ignore_eos
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            return int(json.load(reply)["usage"]["completion_tokens"])

    with ThreadPoolExecutor(len(prompts)) as threads:
        begun = time.perf_counter()
        made = sum(threads.map(ask, prompts))
        return made / (time.perf_counter() - begun)
