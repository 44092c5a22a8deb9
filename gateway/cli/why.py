"""`refrain why ID`: how one request was answered, and why not from a cache."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli.remote import DEFAULT_URL, AsJson, Url, call
from gateway.why.reasons import tier

if TYPE_CHECKING:
    from rich.table import Table

BAR = 24
"""Characters of the bar of a phase that takes all the time."""

Json = dict[str, Any]


def why(
    id: Annotated[str, typer.Argument(help="The request's id: its x-request-id.", metavar="ID")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show how one request was answered: what each cache said, why none could, where the time went. Needs a key with
    the role `admin` or `tenant_admin`, in REFRAIN_KEY."""
    found = call("GET", url, f"/admin/decisions?id={quote(id, safe='')}", as_json=as_json)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    table = _table()
    for label, text in _lines(found):
        table.add_row(label, Text(text, overflow="fold"))
    console.print(table)
    phases = _table(indent=2)
    for justify in ("left", "right", "right"):
        phases.add_column(justify=justify)
    for span in found["spans"]:
        bar = "#" * max(1, round(span["share"] * BAR)) if span["ms"] else ""
        name = ("  " if "within" in span else "") + plain(span["name"])
        phases.add_row(Text(name), f"{span['ms']:,.2f} ms", f"{span['share']:.1%}", bar)
    console.print(phases)


def _table(indent: int = 0) -> "Table":
    from rich.table import Table

    return Table(show_header=False, box=None, padding=(0, 2, 0, indent))


def _lines(d: Json) -> Iterator[tuple[str, str]]:
    yield "request", plain(d["id"])
    yield "when", datetime.fromtimestamp(d["time"]).astimezone().isoformat(" ", "milliseconds")
    people = " / ".join(part for part in (d["tenant"], d["user"]) if part)
    for label, value in (
        ("who", people),
        ("endpoint", d["endpoint"]),
        ("model", d["model"]),
        ("backend", d["backend"]),
    ):
        if value:
            yield label, plain(value)
    if d["failures"]:
        yield "failed", plain(", ".join(f"{failure['backend']}: {failure['error']}" for failure in d["failures"]))
    error = f", {plain(d['error'])}" if d["error"] else ""
    yield "answered", f"{d['outcome'] or 'error'} ({d['status']}{error}) in {d['ms']:,.2f} ms"
    if d["why"] is not None:
        yield "why", plain(d["why"]["text"])
        if d["why"]["nearest"]:
            yield "nearest", plain(d["why"]["nearest"])
    for said in d["tiers"]:
        yield f"{plain(said['tier'])} tier", _said(said)
    if d["not_stored"]:
        yield "not kept", plain(d["not_stored"])
    yield "tokens", ", ".join(f"{value:,} {name}" for name, value in d["tokens"].items() if value) or "none"
    yield "USD", ", ".join(f"{value:.6f} {name}" for name, value in d["usd"].items() if value) or "none"
    if d["ms_saved"]:
        yield "time saved", f"{d['ms_saved']:,.0f} ms"


def _said(said: Json) -> str:
    """One tier's word, with the sentence that goes with its code."""
    if said["tier"] == "prefix":
        return f"{said['result']}, {said['tokens']:,} tokens of the prompt were there"
    words = tier(said["tier"], said["result"], said.get("why"), said.get("similarity"))
    return plain(f"{said['result']}. {words}".strip())


def plain(text: str) -> str:
    """Names that clients have invented are shown, and move no cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)
