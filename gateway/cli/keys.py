"""`refrain keys`: API keys. `new` makes one for the configuration; `list` and `revoke` talk to a running gateway."""

import json
from typing import Annotated, Literal

import typer

from gateway.cli.remote import DEFAULT_URL, AsJson, Url, call

app = typer.Typer(name="keys", help="API keys.", no_args_is_help=True)


@app.command()
def new(
    tenant: Annotated[str, typer.Option(help="The tenant that the key belongs to.")] = "default",
    user: Annotated[str | None, typer.Option(help="The user; without it a new name is made up.")] = None,
    permissions: Annotated[str, typer.Option(help="Permissions, separated by commas.")] = "",
    role: Annotated[Literal["member", "tenant_admin", "admin"], typer.Option(help="What it may do.")] = "member",
    delegate: Annotated[bool, typer.Option("--delegate", help="It may speak for users of its tenant.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key: print it once, with the line for the configuration that knows it by its hash."""
    import secrets

    import yaml
    from pydantic import ValidationError

    from gateway.config import ApiKey, new_key
    from gateway.config.problems import from_validation

    token, digest = new_key()
    entry = {
        "hash": digest,
        "tenant": tenant,
        # Not one name for all: keys of one user share that user's answers.
        "user": f"user-{secrets.token_hex(4)}" if user is None else user,
        "permissions": [permission.strip() for permission in permissions.split(",") if permission.strip()],
        "role": role,
    } | ({"delegate": True} if delegate else {})
    try:
        ApiKey.model_validate(entry)
    except ValidationError as error:
        for problem in from_validation(error, ApiKey):
            typer.echo(f"--{problem}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps({"key": token, "entry": entry}, indent=2))
        return
    line = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True).strip()
    typer.echo(token)
    typer.echo("\n# The key above is shown only here. This line belongs under `auth: keys:` and holds only its hash:")
    typer.echo(f"    - {line}")


@app.command(name="list")
def list_keys(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """The keys that a running gateway knows. Needs a key with the role `admin`, or `tenant_admin` for its tenant's, in
    REFRAIN_KEY."""
    found = call("GET", url, "/admin/keys", as_json=as_json)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    columns = ("id", "tenant", "user", "role", "permissions", "limits", "")
    table = Table(*columns)
    for key in found["keys"]:
        limits = ", ".join(f"{limit} {kind}" for kind, limit in key["limits"].items())
        marks = [word for word in ("delegate", "revoked") if key[word]]
        table.add_row(*(key[name] for name in columns[:4]), ", ".join(key["permissions"]), limits, ", ".join(marks))
    Console(highlight=False).print(table)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `refrain keys list` shows it.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Take a key back at once, for good. Needs a key with the role `admin`, or `tenant_admin` for its tenant's, in
    REFRAIN_KEY."""
    done = call("POST", url, "/admin/keys/revoke", {"id": key_id}, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(done))
        return
    typer.echo(f"The key {done['revoked']} is refused from now on. Its line in the configuration may go.")
    if not done["durable"]:
        typer.echo("This gateway keeps nothing on disk: remove that line before it starts again.", err=True)
