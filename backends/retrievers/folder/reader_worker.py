"""`python -m backends.retrievers.folder.reader_worker ROOT`: the process that reads documents. Speaks frames on its
standard streams.

Parsers of foreign files may hang, grow and die; here they take nobody with them. It ends when its standard input does,
at once, and by the clock of the system where a parser lets nothing else of this process run. Ctrl-C in a terminal is
not for it. Whatever a library prints goes to standard error, which the gateway turns into log lines.
"""

import contextlib
import hashlib
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from backends.retrievers.folder import files, formats
from backends.retrievers.folder.chunking import chunks
from backends.retrievers.folder.formats_base import Unreadable
from backends.retrievers.folder.reader_wire import (
    HEAD,
    Broken,
    Document,
    Read,
    Ready,
    Reply,
    Unread,
    frame,
    request,
    size,
)

MEMORY = 2 * 2**30
"""Bytes of address space."""
VERSION = 16
"""Hex digits of a document's version."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    # pypdf tells of every small fault in a file, thousands of them.
    logging.disable(logging.CRITICAL)
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests: SimpleQueue[Read] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), name="requests", daemon=True).start()
    _serve(Path(sys.argv[1]), int(sys.argv[2]), requests, out)


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    with contextlib.suppress(ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _read(stream: BinaryIO, requests: "SimpleQueue[Read]") -> None:
    try:
        while len(head := stream.read(HEAD)) == HEAD:
            requests.put(request(stream.read(size(head))))
    finally:
        os._exit(0)  # a parser may be at work for long, and nothing is left to tidy up


def _serve(root: Path, last_resort: int, requests: "SimpleQueue[Read]", out: BinaryIO) -> None:
    """`last_resort`: seconds after which the system ends the process when it is still at one document. The gateway ends
    it earlier, if there still is one."""
    _send(out, frame(Ready()))
    while True:
        wanted = requests.get()
        signal.alarm(last_resort)
        reply = _document(root, wanted)
        signal.alarm(0)
        try:
            data = frame(reply)
        except Broken:
            data = frame(Unread("has too many headings"))
        _send(out, data)
        if isinstance(reply, Unread) and reply.ends:
            return


def _document(root: Path, wanted: Read) -> Reply:
    try:
        data = files.read(root, wanted.id)
        version = hashlib.blake2b(data).hexdigest()[:VERSION]
        return Document(wanted.id, version, chunks(formats.read(wanted.id, data), most=wanted.most))
    except Unreadable as error:
        return Unread(str(error))
    except MemoryError:
        return Unread(f"takes more than {MEMORY // 2**30} GiB of memory to read", ends=True)
    except Exception as error:
        return Unread(f"is broken, or of a kind that cannot be read ({type(error).__name__})")


def _send(out: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[out.write(rest) :]
    except BrokenPipeError:
        os._exit(0)  # the gateway has gone


if __name__ == "__main__":
    main()
