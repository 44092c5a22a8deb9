"""`refrain batch run FILE`: the requests in a file through the batch lane of a running gateway, and their answers
beside the file."""

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.remote import DEFAULT_URL, KEY_VARIABLE, AsJson, Url, credentials, message, stop

if TYPE_CHECKING:
    import httpx

app = typer.Typer(name="batch", help="Files of requests that nobody waits for.", no_args_is_help=True)
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
FIRST_LOOK, LONGEST_LOOK = 0.5, 10.0
"""Seconds between two looks: each takes a quarter longer than the one before."""
BUSY = frozenset({429, 502, 503, 504})
"""Statuses that pass; the batch goes on meanwhile."""
PIECE = 2**20
SHOWN_FAULTS = 20


@app.callback()
def _group() -> None:
    """A group, though it has one command."""


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="Requests, one JSON object a line.", exists=True, dir_okay=False)],
    url: Url = DEFAULT_URL,
    endpoint: Annotated[str, typer.Option("--endpoint", help="The endpoint to ask.")] = "default",
    output: Annotated[Path | None, typer.Option("--output", help="Where answers go: FILE.output.jsonl.")] = None,
    batch: Annotated[str | None, typer.Option("--batch", help="Go on with this batch, made of FILE before.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a file of requests and write the answers to FILE.output.jsonl, what failed to FILE.errors.jsonl. When this is
    interrupted the batch goes on at the gateway. The key, if one is needed, is read from REFRAIN_KEY."""
    import httpx

    places = {
        "output_file_id": output or file.with_suffix(".output.jsonl"),
        "error_file_id": (output or file).with_suffix(".errors.jsonl"),
    }
    for path in places.values():
        _check_writable(path, as_json)
    prefix = "/v1" if endpoint == "default" else f"/{endpoint}/v1"
    timeout = httpx.Timeout(600, connect=5)
    try:
        with httpx.Client(base_url=url + prefix, headers=credentials(), timeout=timeout, trust_env=False) as client:
            made = _create(client, file, as_json) if batch is None else _look(client, batch, as_json)
            typer.echo(f"{made['id']} goes on without this command: the same one with --batch ID fetches it.", err=True)
            ended = _watch(client, made, quiet=as_json)
            written = {name: str(path) for name, path in places.items() if _fetch(client, ended[name], path, as_json)}
    except httpx.ConnectError:
        stop(f"No gateway answers at {url}. Start one with `refrain serve`, or name another with --url.", as_json)
    except UnicodeError:
        stop(f"{KEY_VARIABLE} holds characters that no key has.", as_json)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        stop(f"The gateway at {url} gave no answer: {type(error).__name__}.", as_json)
    except (ValueError, KeyError, TypeError):
        stop(f"What answers at {url} is no gateway.", as_json)
    _tell(ended, {"output" if "output" in name else "errors": path for name, path in written.items()}, as_json)
    if ended["status"] != "completed" or ended["request_counts"]["failed"]:
        raise typer.Exit(1)


def _check_writable(path: Path, as_json: bool) -> None:
    """Before anything runs: an answer that has no place is lost."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        stop(f"{path} cannot be written. Name another place with --output.", as_json)


def _create(client: "httpx.Client", file: Path, as_json: bool) -> Any:
    url = _url_in(file, as_json)
    with file.open("rb") as opened:
        sent = {"file": (file.name, opened, "application/jsonl")}
        uploaded = _read(client.post("/files", data={"purpose": "batch"}, files=sent), as_json)
    asked = {"input_file_id": uploaded["id"], "endpoint": url, "completion_window": "24h"}
    return _read(client.post("/batches", json=asked), as_json)


def _url_in(file: Path, as_json: bool) -> str:
    """That of the first request; whether the others agree, the gateway finds out."""
    with file.open(encoding="utf-8-sig") as lines:
        try:
            return str(json.loads(next(line for line in lines if line.strip()))["url"])
        except (StopIteration, ValueError, KeyError, TypeError):
            stop(f"{file} does not begin with a request: a JSON object with custom_id, method, url and body.", as_json)


def _watch(client: "httpx.Client", batch: Any, *, quiet: bool) -> Any:
    """Until it has ended, with progress on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    told, pause = "", FIRST_LOOK
    try:
        with Progress(*columns, console=console) if console.is_terminal else nullcontext() as progress:
            bar = progress.add_task(batch["id"], total=None) if progress is not None else None
            while True:
                counts = batch["request_counts"]
                done = counts["completed"] + counts["failed"]
                if progress is not None and bar is not None:
                    progress.update(bar, total=counts["total"] or None, completed=done, description=batch["status"])
                elif (said := f"{batch['id']}: {batch['status']}, {done} of {counts['total']}") != told:
                    console.print(said, highlight=False)
                    told = said
                if batch["status"] in ENDED:
                    return batch
                time.sleep(pause)
                pause = min(LONGEST_LOOK, pause * 1.25)
                batch = _look(client, batch["id"], quiet)
    except KeyboardInterrupt:
        stop(f"{batch['id']} goes on.", quiet)


def _look(client: "httpx.Client", id: str, as_json: bool) -> Any:
    """The batch as it is now. A gateway that has too much to do is asked again: the batch goes on meanwhile."""
    while (response := client.get(f"/batches/{id}")).status_code in BUSY:
        _wait(response)
    return _read(response, as_json)


def _wait(response: "httpx.Response") -> None:
    """As long as a busy gateway asks for."""
    asked = response.headers.get("retry-after", "")
    time.sleep(min(float(asked), 600) if asked.isdecimal() else LONGEST_LOOK)


def _fetch(client: "httpx.Client", id: str | None, path: Path, as_json: bool) -> bool:
    """Write the file of this id there; False: there is none, and what an earlier run has left there goes."""
    if id is None:
        path.unlink(missing_ok=True)
        return False
    while True:
        with client.stream("GET", f"/files/{id}/content") as response:
            if response.status_code not in BUSY:
                if response.status_code != 200:
                    response.read()
                    _read(response, as_json)
                with path.open("wb") as out:
                    for piece in response.iter_bytes(PIECE):
                        out.write(piece)
                return True
        _wait(response)


def _read(response: "httpx.Response", as_json: bool) -> Any:
    if response.status_code != 200:
        stop(f"{response.status_code}: {message(response.text)}", as_json)
    return response.json()


def _tell(batch: Any, written: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"batch": batch, "files": written}, indent=2))
        return
    faults = (batch["errors"] or {"data": []})["data"]
    for fault in faults[:SHOWN_FAULTS]:
        typer.echo(f"line {fault['line']}: {fault['message']}" if fault["line"] else fault["message"], err=True)
    if len(faults) > SHOWN_FAULTS:
        typer.echo(f"... and {len(faults) - SHOWN_FAULTS} more", err=True)
    counts = batch["request_counts"]
    typer.echo(f"{batch['status']}: {counts['completed']} answered, {counts['failed']} failed, of {counts['total']}")
    for name, path in written.items():
        typer.echo(f"{name:8}{path}")
