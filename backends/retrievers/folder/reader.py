"""Reads the documents of a folder in a process of its own, since parsers of foreign files hang, grow and die.

The process is started when it is needed, ended when nothing has been read for a while, killed when a file takes too
long, and started anew after that. It reads one document at a time.
"""

import asyncio
from pathlib import Path

from backends.retrievers.folder import files
from backends.retrievers.folder.formats_base import Unreadable
from backends.retrievers.folder.reader_process import LAST_WORDS, ReadingProcess
from backends.retrievers.folder.reader_wire import Broken, Document, Read, Ready, Reply, Unread

START = 30.0  # seconds for an empty process, which takes less than one on an idle machine
TIMEOUT = 60.0  # seconds for a document; a PDF file takes about 50 ms a page
IDLE = 60.0  # seconds after the last one until the process ends
LAST_RESORT = 30.0  # seconds more; then the system ends a process that nobody has killed


class Reader:
    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._turn = asyncio.Lock()
        self._process: ReadingProcess | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[str]] = set()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process, where one is running."""
        return None if self._process is None else self._process.pid

    async def read(self, document: str, *, most: int) -> Document:
        """The document with this id in pieces of at most `most` characters.

        Raises Unreadable where the file is to blame, and OSError where it is not: no process can be started.
        """
        files.check(document)
        async with self._turn:
            if self._closed:
                raise RuntimeError("the reader is closed")
            process = await self._running()
            answered = False
            try:
                reply = await self._answer(process, Read(document, most))
                answered = not (isinstance(reply, Unread) and reply.ends)
            finally:
                if answered:
                    self._idle = asyncio.get_running_loop().call_later(IDLE, self._retire)
                else:
                    self._retire()
        if not isinstance(reply, Document):
            raise Unreadable(reply.reason if isinstance(reply, Unread) else "was not read")
        return reply

    async def aclose(self) -> None:
        """Ends the process, whatever it is at. Harmless when called twice."""
        self._closed = True
        self._retire()
        async with self._turn:  # whoever was about to start a process has seen that they may not
            pass
        if self._ending:
            await asyncio.wait(self._ending)

    async def _running(self) -> ReadingProcess:
        """Raises OSError."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._process is not None and self._process.gone:
            self._retire()
        if self._process is None:
            process = await self._started()
            if self._closed:
                self._end(process)
                raise RuntimeError("the reader is closed")
            self._process = process
        return self._process

    async def _started(self) -> ReadingProcess:
        """Raises OSError."""
        process = await ReadingProcess.spawn(self._root, round(TIMEOUT + LAST_RESORT))
        ready = False
        try:
            async with asyncio.timeout(START):
                ready = isinstance(await process.receive(), Ready)
        except (TimeoutError, Broken, asyncio.IncompleteReadError):
            pass
        finally:
            if not ready:
                self._end(process)
        if not ready:
            raise ChildProcessError("the reading process does not start; its last lines are in the log")
        return process

    async def _answer(self, process: ReadingProcess, request: Read) -> Reply:
        """Raises Unreadable where there is none."""
        try:
            async with asyncio.timeout(TIMEOUT):
                await process.send(request)
                return await process.receive()
        except TimeoutError:
            raise Unreadable(f"takes more than {TIMEOUT:g} s to read") from None
        except (ConnectionError, asyncio.IncompleteReadError):
            raise Unreadable(f"cannot be read: {await process.end(patience=LAST_WORDS)}") from None
        except Broken:
            raise Unreadable("cannot be read: the reading process does not say what it should") from None

    def _retire(self) -> None:
        """End the process, in the background."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._process is not None:
            self._end(self._process)
            self._process = None

    def _end(self, process: ReadingProcess) -> None:
        ending = asyncio.create_task(process.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
