"""The main of the engine process: a socket that listens at once, a thread that loads the model, a quick end."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from backends.local.cpu import worker_threads
from backends.local.errors import CannotServe
from backends.local.limits import KV_MEMORY, MAX_QUEUE, MAX_RUNNING
from backends.local.models import ModelNotFound
from backends.local.server import create_app
from backends.local.service import Service, log

STOP_TIMEOUT = 1  # seconds for running requests to end with an error event


def run_engine(
    *,
    model: str,
    precision: str = "auto",
    quantize: str = "none",
    uds: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    parent_pipe: bool = False,
    max_running: int = MAX_RUNNING,
    max_queue: int = MAX_QUEUE,
    kv_memory: int = KV_MEMORY,
    any_model: bool = False,
) -> None:
    """Serve `model` on the Unix socket `uds`, or on `host` and `port`, until SIGTERM or SIGINT. Never returns. The rest
    is as in Service.

    With `parent_pipe` the process also ends when its standard input does, so that it never outlives its parent. Exit
    status 1, after a line "error: ..." on standard error, where it cannot serve.
    """
    # torch's thread pools are sized when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(worker_threads()))
    try:
        service = Service(
            model=model,
            precision=precision,
            quantize=quantize,
            max_running=max_running,
            max_queue=max_queue,
            kv_memory=kv_memory,
            any_model=any_model,
        )
    except (ModelNotFound, ValueError, OSError) as error:
        log(f"error: {error}")
        sys.exit(1)
    try:
        listener = _listen(uds, host, port)
    except (OSError, OverflowError, ValueError) as error:
        log(f"error: cannot listen on {uds or f'{host}:{port}'}: {error}")
        sys.exit(1)
    if parent_pipe:
        threading.Thread(target=_end_with_parent, args=(uds,), name="parent", daemon=True).start()
    if uds is None:
        log(f"listening on http://{host}:{listener.getsockname()[1]}/v1")
    status = asyncio.run(_serve(service, listener))
    service.progress.close()
    _unlink(uds)
    # Not sys.exit: a thread may be inside torch for seconds, and nothing is left to tidy up.
    os._exit(status)


async def _serve(service: Service, listener: socket.socket) -> int:
    """The exit status."""
    config = uvicorn.Config(
        create_app(service),
        log_level="warning",
        access_log=False,
        lifespan="off",
        loop="none",
        ws="none",
        timeout_graceful_shutdown=STOP_TIMEOUT,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    status = 0

    def stop() -> None:
        server.should_exit = True
        # Requests get an error event at once; uvicorn waits for their replies to be sent.
        threading.Thread(target=service.close, args=(STOP_TIMEOUT,), daemon=True).start()

    def failed() -> None:
        nonlocal status
        status = 1
        stop()

    def load() -> None:
        try:
            service.load()
        except Exception as error:
            if not isinstance(error, ModelNotFound | CannotServe):
                log(traceback.format_exc())  # there is no request yet whose text it could quote
            service.progress.finish(f"error: {error or type(error).__name__}")
            loop.call_soon_threadsafe(failed)

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop)
    threading.Thread(target=load, name="load", daemon=True).start()
    await server.serve(sockets=[listener])
    return status


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours are set in _serve: uvicorn's own would raise the signal again at the end and skip the tidying up."""
        yield


def _listen(uds: str | None, host: str, port: int | None) -> socket.socket:
    """A listening socket. A Unix socket is for its owner only; one left by a dead process is replaced."""
    if uds is None:
        if port is None:
            raise ValueError("give a Unix socket or a port")
        return socket.create_server((host, port))
    path = Path(uds)
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(uds)
            except OSError:
                path.unlink()
            else:
                raise OSError("another process does")
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(uds)
    finally:
        os.umask(mask)
    listener.listen()
    return listener


def _end_with_parent(uds: str | None) -> None:
    while os.read(0, 4096):
        pass
    _unlink(uds)
    if uds is not None:
        # A parent that was killed could not remove the folder that it made for the socket. One with files in it stays.
        with contextlib.suppress(OSError):
            Path(uds).parent.rmdir()
    os._exit(0)


def _unlink(uds: str | None) -> None:
    if uds is not None:
        Path(uds).unlink(missing_ok=True)
