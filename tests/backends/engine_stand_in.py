"""A program in the engine's place, for the supervisor: `--uds PATH --parent-pipe WORD ...`.

Each question to /readyz is answered by the next word, the last one for ever: `ready`, `loading`, `stalled`; `late`
(ready, after a moment), `silent` (no answer at all), `killed` (the process ends as if the machine had no memory left).
Every word is a line on standard error.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

LATE = 0.2


async def main(path: str, words: list[str]) -> None:
    questions = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the client has closed
            await converse(reader, writer)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal questions
        while (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /readyz"):
            word = words[min(questions, len(words) - 1)]
            questions += 1
            print(word, file=sys.stderr, flush=True)
            if word == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if word == "silent":
                await asyncio.Event().wait()
            if word == "late":
                await asyncio.sleep(LATE)
                word = "ready"
            body = b'{"status": "%s"}' % word.encode()
            status = b"200 OK" if word == "ready" else b"503 Service Unavailable"
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))
            await writer.drain()

    server = await asyncio.start_unix_server(answer, path)
    await server.serve_forever()


def end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


threading.Thread(target=end_with_parent, daemon=True).start()
_, _, uds, _, *script = sys.argv
Path(uds).unlink(missing_ok=True)
asyncio.run(main(uds, script))
