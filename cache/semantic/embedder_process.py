"""One embedding process, from its start to its end: its frames, its log lines, and why it ended.

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

import cache
from cache.semantic.embedder_wire import Embed, Reply, frame, read_reply

STOP_GRACE = 1.0  # seconds from SIGTERM to SIGKILL; the process has nothing to tidy up
MAX_LINE = 4096  # bytes of a line of the process; a longer one is logged in pieces

_log = logging.getLogger(__name__)

ENVIRONMENT = {
    # torch's thread pools are sized when it is imported. One thread: the others are the gateway's and the engine's.
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    # No progress bars: they would be log lines.
    **dict.fromkeys(("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE", "HF_HUB_DISABLE_TELEMETRY"), "1"),
    "TRANSFORMERS_VERBOSITY": "error",
}


class EmbedderProcess:
    """Make it by `spawn`, and `end` it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._relaying = asyncio.create_task(self._relay())

    @classmethod
    async def spawn(cls, model: str) -> "EmbedderProcess":
        """Raises OSError where no process can be started."""
        # It imports the same code as we do, and nothing from the current directory (-P).
        root = str(Path(cache.__file__).parent.parent)
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "cache.semantic.embedder_worker", model),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
                start_new_session=True,
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, message: Embed) -> None:
        """Raises ConnectionError where the process has gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(frame(message))
        await self._process.stdin.drain()

    async def receive(self) -> Reply:
        """Raises Broken, and IncompleteReadError where the process has gone."""
        assert self._process.stdout is not None
        return await read_reply(self._process.stdout)

    async def end(self) -> str:
        """SIGTERM, after a grace SIGKILL; nothing where it has ended by itself. In words, how it ended."""
        process = self._process
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):  # one that has closed its streams is about to end by itself
                await asyncio.wait_for(process.wait(), 0.1)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_GRACE)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        assert process.stdin is not None
        process.stdin.close()
        await self._relaying
        status = process.returncode
        if status is not None and status < 0:
            return f"the embedding process was killed by {signal.Signals(-status).name}"
        return f"the embedding process ended with status {status}"

    async def _relay(self) -> None:
        """Log the lines of the process until it closes its standard error."""
        assert self._process.stderr is not None
        rest = b""
        while data := await self._process.stderr.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._line(line)
        self._line(rest)

    def _line(self, raw: bytes) -> None:
        if line := raw.decode("utf-8", "replace").strip():
            _log.info("embedding process %d: %s", self.pid, line)
