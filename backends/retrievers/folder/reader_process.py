"""One reading process, from its start to its end: its frames, its log lines, and why it ended.

It gets a pipe as its standard input and ends when that closes, so that it never outlives this process, however this
process ends. It is in a session of its own: Ctrl-C in a terminal is for the gateway alone.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

import backends
from backends.retrievers.folder.reader_wire import Read, Reply, frame, read_reply

MAX_LINE = 1024  # bytes of a line of the process that are logged
MAX_LINES = 100  # of one process
LAST_WORDS = 1.0  # seconds in which a process that has closed its streams ends by itself

_log = logging.getLogger(__name__)


class ReadingProcess:
    """Make it by `spawn`, and `end` it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._relaying = asyncio.create_task(self._relay())

    @classmethod
    async def spawn(cls, root: Path, last_resort: int) -> "ReadingProcess":
        """`root` is absolute; `last_resort`: see reader_worker. Raises OSError where no process can be started."""
        # It imports the same code as we do, and nothing from the current directory (-P).
        code = str(Path(backends.__file__).parent.parent)
        path = os.pathsep.join([code, *filter(None, [os.environ.get("PYTHONPATH")])])
        # One thread: memory is counted by what the threads have reserved.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        worker = "backends.retrievers.folder.reader_worker"
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", worker, str(root), str(last_resort)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | threads | {"PYTHONPATH": path},
                start_new_session=True,
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gone(self) -> bool:
        return self._process.returncode is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def send(self, message: Read) -> None:
        """Raises ConnectionError where the process has gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(frame(message))
        await self._process.stdin.drain()

    async def receive(self) -> Reply:
        """Raises Broken, and IncompleteReadError where the process has gone."""
        assert self._process.stdout is not None
        return await read_reply(self._process.stdout)

    async def end(self, *, patience: float = 0.0) -> str:
        """Kill it, which has nothing to tidy up, unless it ends by itself within `patience` seconds. In words, how it
        ended."""
        process = self._process
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience)
        self.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        # What it has sent is read away: asyncio does not see the end of a process behind a pipe that nobody empties.
        with contextlib.suppress(RuntimeError):  # somebody else does
            while await process.stdout.read(65536):
                pass
        await process.wait()
        process.stdin.close()
        await self._relaying
        status = process.returncode
        if status is not None and status < 0:
            return f"the reading process was killed by {signal.Signals(-status).name}"
        return f"the reading process ended with status {status}"

    async def _relay(self) -> None:
        """Log the first lines of the process, and read on until it closes its standard error."""
        assert self._process.stderr is not None
        left = MAX_LINES
        rest = b""
        while data := await self._process.stderr.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[:MAX_LINE]
            for line in lines[:left]:
                self._line(line)
            left -= len(lines[:left])
        if left:
            self._line(rest)

    def _line(self, raw: bytes) -> None:
        if line := raw[:MAX_LINE].decode("utf-8", "replace").strip():
            _log.info("reading process %d: %s", self.pid, line)
