"""Keeps the engine process running: starts it, watches it, restarts it after a crash or a hang, ends it.

The engine gets a pipe as its standard input and ends when that closes, so that it never outlives this process, however
this process ends. Its standard error is our log of it.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import backends
from backends import pulse
from backends.base import State

HANG_AFTER = 30.0  # seconds for which an engine that was ready may answer nothing
STOP_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
FIRST_BACKOFF, MAX_BACKOFF = 0.5, 30.0
HEALTHY = 60.0  # an engine that was ready for so many seconds starts with the first backoff again
ENGINE = ("-m", "backends.local")
MAX_LINE = 4096  # bytes of a line of the engine; a longer one is logged in pieces


def backoff(crashes: int) -> float:
    """Seconds to wait before the next start, after so many crashes in a row (1 or more)."""
    return min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(crashes - 1, 16))


class Supervisor:
    """Runs `program`, a command of Python, with `arguments` on a Unix socket of its own (`uds`, after `start`).

    `state` is "starting" until the engine first answers that it is ready, and again after the end of an engine that
    was ready; "down" after a start that failed, until one succeeds. `detail` says in words what is going on. Every line
    that the engine writes to its standard error goes to `log`; why it has ended goes to `warn` (None: there too). An
    engine that answers nothing for `hang_after` seconds is killed.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        hang_after: float = HANG_AFTER,
        program: Sequence[str] = ENGINE,
    ) -> None:
        self._arguments = list(arguments)
        self._log = log
        self._warn = warn or log
        self._hang_after = hang_after
        self._program = list(program)
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # set while the state is "ready" or "down"
        self._unready = asyncio.Event()  # set while it is not "ready"
        self._ready_at: float | None = None  # monotonic; of the running engine, once it is ready
        self._last_error = ""
        self._hang = ""  # why we have killed the running engine
        self._set("down", "not started")

    state: State
    detail: str

    @property
    def uds(self) -> str:
        if self._folder is None:
            raise RuntimeError("the supervisor has not been started")
        return str(self._folder / "engine.sock")

    @property
    def pid(self) -> int | None:
        """Of the running engine; None between two."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the engine; does not wait until it is ready. Raises OSError where no process can be started."""
        # A short path: the address of a Unix socket has room for about 100 bytes. mkdtemp makes it ours alone (0700).
        self._folder = Path(tempfile.mkdtemp(prefix="refrain-"))
        try:
            process = await self._spawn()
        except BaseException:
            self._remove_folder()
            raise
        self._set("starting", "starting")
        self._task = asyncio.create_task(self._watch(process))

    async def wait_ready(self, seconds: float) -> bool:
        """Wait, so many seconds at most, until the engine is ready (True), or it is clear that it is down (False)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.state == "starting":  # it may have ended again by the time that this goes on
                    await self._settled.wait()
        return self.state == "ready"

    async def wait_unready(self, seconds: float) -> bool:
        """Wait, so many seconds at most, until the engine is not ready (True)."""
        try:
            async with asyncio.timeout(seconds):
                await self._unready.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        """End the engine: SIGTERM, after a grace SIGKILL. Removes the socket. Harmless when called twice."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._set("down", "stopped")
        self._remove_folder()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """One engine after the other, until cancelled."""
        crashes = 0
        while True:
            await self._run(process)
            ready_at = self._ready_at
            crashes = 1 if ready_at is not None and time.monotonic() - ready_at >= HEALTHY else crashes + 1
            ending = self._hang or _ending(process.returncode, self._last_error)
            self._set("down" if ready_at is None else "starting", ending)
            self._warn(f"{ending}; next start in {backoff(crashes):g} s")
            await asyncio.sleep(backoff(crashes))
            process = await self._spawn_when_possible()

    async def _spawn_when_possible(self) -> asyncio.subprocess.Process:
        while True:
            try:
                return await self._spawn()
            except OSError as error:
                self._set("down", f"the engine cannot be started: {error.strerror}")
                await asyncio.sleep(MAX_BACKOFF)

    async def _spawn(self) -> asyncio.subprocess.Process:
        # The engine imports the same code as we do, and nothing from the current directory (-P).
        root = str(Path(backends.__file__).parent.parent)
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._last_error = self._hang = ""
        self._ready_at = None
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", *self._program, "--uds", self.uds, "--parent-pipe", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            # Ctrl-C in a terminal is for us alone: the engine must go on while we finish what is running.
            start_new_session=True,
        )

    async def _run(self, process: asyncio.subprocess.Process) -> None:
        """Watch one engine to its end, or end it: when cancelled, or when it hangs."""
        self._process = process
        lines = asyncio.create_task(self._relay(process))
        asking = asyncio.create_task(self._ask(process))
        try:
            await process.wait()
            if self.state == "ready":
                self._set("starting", "the engine has ended")  # the reason follows when its last line has been read
        finally:
            asking.cancel()
            await _end(process)
            await asyncio.gather(lines, asking, return_exceptions=True)
            self._process = None

    async def _ask(self, process: asyncio.subprocess.Process) -> None:
        """Ask the engine how it is until it is ready, and then until it hangs, which ends it."""
        async with pulse.client(self.uds) as engine:
            await pulse.until_ready(engine, self._tell)
            self._ready_at = time.monotonic()
            self._set("ready", "ready")
            self._hang = f"the engine hung: {await pulse.until_hung(engine, self._hang_after)}"
        # Before it is done: who loses the connection by it and asks again at once is to wait for the next engine.
        self._set("starting", self._hang)
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    async def _relay(self, process: asyncio.subprocess.Process) -> None:
        """Log the engine's lines until it closes its standard error."""
        assert process.stderr is not None
        rest = b""
        while data := await process.stderr.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._line(line)
        self._line(rest)

    def _line(self, raw: bytes) -> None:
        line = raw.decode("utf-8", "replace").strip()
        if line:
            self._log(line)
            if line.startswith("error: "):
                self._last_error = line.removeprefix("error: ")

    def _tell(self, detail: str) -> None:
        self.detail = detail

    def _set(self, state: State, detail: str) -> None:
        self.state = state
        self.detail = detail
        _mark(self._settled, state != "starting")
        _mark(self._unready, state != "ready")

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _ending(status: int | None, error: str) -> str:
    """Why the engine ended, in words."""
    if error:
        return error
    if status == -signal.SIGKILL:
        return "the engine was killed by SIGKILL (out of memory?): try a lower kv_memory, quantize, or a smaller model"
    if status is not None and status < 0:
        return f"the engine was killed by {signal.Signals(-status).name}"
    return f"the engine ended with status {status}"


def _mark(event: asyncio.Event, on: bool) -> None:
    if on:
        event.set()
    else:
        event.clear()


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, after a grace SIGKILL; nothing where it has ended."""
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
