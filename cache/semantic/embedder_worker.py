"""`python -m cache.semantic.embedder_worker MODEL`: the process with the model. Speaks frames on its standard streams.

It ends when its standard input does, at once and wherever it is, so that it never outlives the gateway. Ctrl-C in a
terminal is not for it. Whatever a library prints goes to standard error, which the gateway turns into log lines.
"""

import os
import signal
import sys
import threading
from queue import SimpleQueue
from typing import BinaryIO

from cache.semantic.embedder_wire import HEAD, Embed, Failed, Loading, Ready, Reply, Vectors, frame, request, size


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests: SimpleQueue[Embed] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), name="requests", daemon=True).start()
    _serve(sys.argv[1], requests, out)


def _read(stream: BinaryIO, requests: "SimpleQueue[Embed]") -> None:
    try:
        while len(head := stream.read(HEAD)) == HEAD:
            requests.put(request(stream.read(size(head))))
    finally:
        os._exit(0)  # a thread may be inside torch for seconds, and nothing is left to tidy up


def _serve(name: str, requests: "SimpleQueue[Embed]", out: BinaryIO) -> None:
    _send(out, Loading(f"loading the model '{name}'"))
    # Seconds of imports: only now, when the end of the input is being watched.
    from cache.semantic.embedder_model import ModelError, load

    try:
        model = load(name)
    except ModelError as error:
        _send(out, Failed(str(error)))
        return
    _send(out, Ready(model.identity, model.dimensions))
    while True:
        vectors, problems = model.embed(requests.get().texts)
        _send(out, Vectors(vectors.tobytes(), problems))


def _send(out: BinaryIO, message: Reply) -> None:
    rest = memoryview(frame(message))
    try:
        while rest:
            rest = rest[out.write(rest) :]
    except BrokenPipeError:
        os._exit(0)  # the gateway has gone


if __name__ == "__main__":
    main()
