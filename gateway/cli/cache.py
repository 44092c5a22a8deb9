"""`refrain cache`: what a running gateway keeps, and taking it away."""

import json
from typing import Annotated, Any

import typer

from gateway.cli.remote import DEFAULT_URL, AsJson, Url, call, stop

app = typer.Typer(name="cache", help="The caches of a running gateway.", no_args_is_help=True)


@app.command()
def stats(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """What was reused and saved since the start, and how much is kept. Needs a key with the role `admin` or
    `tenant_admin`, in REFRAIN_KEY."""
    found = call("GET", url, "/admin/stats", as_json=as_json)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    requests = Table("outcome", "requests", title="since the start", title_justify="left")
    for outcome, count in sorted(found["requests"].items()):
        requests.add_row(outcome, f"{count:,}")
    sums = Table("", *found["tokens"])
    sums.add_row("tokens", *(f"{value:,}" for value in found["tokens"].values()))
    sums.add_row("USD", *(f"{value:.4f}" for value in found["usd"].values()))
    kept = Table("tier", "layer", "entries", "bytes", "of", "evicted", "healthy")
    for tier, layers in found["tiers"].items():
        for layer, s in layers.items():
            numbers = (f"{s[name]:,}" for name in ("entries", "bytes", "max_bytes", "evicted"))
            kept.add_row(tier, layer, *numbers, "yes" if s["healthy"] else "no")
    console.print(requests, sums)
    if found["tiers"]:  # whoever sees one tenant only does not see what all take
        console.print(kept)


@app.command()
def purge(
    key: Annotated[str | None, typer.Option(help="The entry of this key.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Entries with this tag; may be given several times.")] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(help="What came from this document: `retriever/id`, or its id alone; `@version` for one version."),
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="Entries of this endpoint.")] = None,
    model: Annotated[str | None, typer.Option(help="Entries of this model.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Entries of this tenant.")] = None,
    user: Annotated[str | None, typer.Option(help="Entries that this user's requests have made.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Entries made longer ago than this, such as 24h.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All entries.")] = False,
    soft: Annotated[bool, typer.Option("--soft", help="Mark them stale instead of removing them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Remove stored answers, by criteria that must all hold. Needs a key with the role `admin` or `tenant_admin` (for
    its own tenant), in REFRAIN_KEY. Purges are kept in the audit log."""
    criteria: dict[str, Any] = {
        "key": key,
        "tags": tag,
        "documents": document,
        "endpoint": endpoint,
        "model": model,
        "tenant": tenant,
        "user": user,
        "older_than": older_than,
    }
    body = {name: value for name, value in criteria.items() if value}
    if everything == bool(body):
        stop("Say what to purge: criteria such as --tag or --endpoint, or --all alone.", as_json)
    if everything:
        body["older_than"] = "0s"
    purged = call("POST", url, "/admin/purge", {**body, "soft": soft, "dry_run": dry_run}, as_json=as_json)["purged"]
    if as_json:
        typer.echo(json.dumps({"purged": purged, "soft": soft, "dry_run": dry_run}))
        return
    what = "1 entry" if purged == 1 else f"{purged:,} entries"
    done = "stale now" if soft else "gone"
    typer.echo(f"{what} would be {done} (dry run)." if dry_run else f"{what} {'is' if purged == 1 else 'are'} {done}.")
