"""`refrain serve`: the gateway, under uvicorn, with a few lines that say what to try."""

import asyncio
import gc
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config import Config

GRACE = 10
"""Seconds that open streams get to finish after SIGTERM."""
BACKLOG = 2048
LINE_EVERY = 5.0
"""Seconds between two lines of progress, where there is no terminal to draw a bar on."""


def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The file; refrain.yaml where it exists.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Listen on this address (server.host).")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Listen on this port (server.port).")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes (server.workers).")] = None,
) -> None:
    """Start the gateway. Without a configuration: a local model, an embedded store, no key, on 127.0.0.1:8080."""
    import uvicorn

    from gateway.app import create_app
    from gateway.config import ConfigError, find_config, load_config, notes
    from gateway.http import BoundedProtocol
    from gateway.logs import configure

    configure()
    path = find_config(config)
    given = {"host": host, "port": port, "workers": workers}
    server = {name: value for name, value in given.items() if value is not None}
    try:
        loaded = load_config(path, server=server)
    except ConfigError as error:
        _stop(f"{path or 'The command line'} cannot be used:\n{error}")
    for note in notes(loaded):
        say(f"note: {note}")
    listener = _listen(loaded)
    _check_store(loaded)

    app = create_app(loaded, path=path, server=server, announce=_announcement(listener, path))
    uvicorn_config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        loop="uvloop",
        ws="none",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    uvicorn.Server(uvicorn_config).run(sockets=[listener])


def _listen(config: "Config") -> socket.socket:
    """Take the address before anything else is started, so that a port in use is a short message."""
    host, port = config.server.host, config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Listening already: SO_REUSEADDR lets a second process bind, but not listen, on a port in use.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        _stop(f"Cannot listen on {host}:{port}: {error.strerror}. Choose another port with --port.")
    return listener


def _check_store(config: "Config") -> None:
    """Open the store once ahead of the server, which would bury the reason in a traceback."""
    from cache.stores import open_store
    from cache.stores.base import StoreError
    from gateway.batch.store import BatchStore, BatchStoreError, InUse, batches_path
    from gateway.state import State, StateError, state_path

    async def check() -> None:
        store = await open_store(config.store.url, max_bytes=config.store.max_bytes, max_entry=config.store.max_entry)
        if store is not None:
            await store.aclose()
        await (await State.open(state_path(config.store.url, config.store.durable_url))).aclose()
        if (path := batches_path(config.store.url, config.store.durable_url)) is not None:
            with suppress(InUse):  # it is said when the gateway starts, which does without
                await (await BatchStore.open(path)).aclose()

    try:
        asyncio.run(check())
    except (StateError, BatchStoreError) as error:
        _stop(f"What is kept beside the store cannot be opened: {error}")
    except StoreError as error:
        _stop(f"The store cannot be opened (store.url): {error}")


def _announcement(listener: socket.socket, path: Path | None) -> Callable[["Gateway"], Coroutine[Any, Any, None]]:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  shown, not bound
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def announce(gateway: "Gateway") -> None:
        """Say where the gateway listens, follow the local model while it loads, then say what to try."""
        _calm_collector()
        say(f"Refrain listens on {base} (configuration: {path or 'none, so the defaults'}).")
        said: dict[str, str] = {}
        while waiting := gateway.starting():
            for name, detail in waiting.items():
                if said.get(name) != detail:
                    say(f"  backend '{name}': {detail}")
            said = waiting
            await asyncio.sleep(0.2)
        for name, backend in gateway.snapshot().backends.items():
            say(f"  backend '{name}': {backend.detail}")
        for name, managed in gateway.snapshot().retrievers.items():
            say(f"  documents '{name}': {managed.retriever.detail}")
        if (tier := gateway.semantics.tier) is not None:
            say(f"  semantic tier: {tier.embedder.detail}")
        say(f"\nReady. Point any OpenAI client at {base}/v1, or try, twice:\n")
        say(f'  {_command()} ask --url {base} "What is the capital of France?"\n')
        say("Stop with Ctrl-C.")
        await follow(gateway)

    return announce


async def follow(gateway: "Gateway") -> None:
    """Show how far the reading of documents is: a bar on a terminal, a line now and then elsewhere. (Nobody waits for
    it who asks for no documents.)"""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    reading = {name: r for name, r in gateway.snapshot().retrievers.items() if r.state == "starting"}
    columns = (TextColumn("  documents '{task.fields[name]}'"), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {name: bars.add_task("", name=name, total=None) for name in reading}
        said = time.monotonic()
        while reading:
            await asyncio.sleep(0.2)
            due = time.monotonic() - said >= LINE_EVERY
            said = time.monotonic() if due else said
            for name, managed in list(reading.items()):
                retriever = managed.retriever
                done, total = progress_of(retriever)
                bars.update(tasks[name], description=retriever.detail, completed=done, total=total)
                if retriever.state != "starting":
                    del reading[name]
                if not console.is_terminal and (due or name not in reading):
                    say(f"  documents '{name}': {retriever.detail}")


def progress_of(retriever: object) -> tuple[int, int | None]:
    """Pieces done and in all; (0, None) where it does not say."""
    progress = getattr(retriever, "progress", None)
    return (0, None) if progress is None else (progress.done, progress.total or None)


def _calm_collector() -> None:
    """A full garbage collection looks at everything that lives, for a tenth of a second on a small machine, and every
    stream waits. What the start has made lives for ever and is not looked at again; what requests leave behind is found
    while it is young, so full collections may be rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 100)


def _command() -> str:
    """How to call this program again from here."""
    return "refrain" if shutil.which("refrain") else os.path.relpath(sys.argv[0])


def say(text: str) -> None:
    typer.echo(text, err=True)
    sys.stderr.flush()


def _stop(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)
