"""`refrain keys`: API keys."""

import json
from typing import Annotated, Literal

import typer

app = typer.Typer(name="keys", help="API keys.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    """Keeps `new` a command of its own name while it is the only one."""


@app.command()
def new(
    tenant: Annotated[str, typer.Option(help="The tenant that the key belongs to.")] = "default",
    user: Annotated[str | None, typer.Option(help="The user; without it a new name is made up.")] = None,
    permissions: Annotated[str, typer.Option(help="Permissions, separated by commas.")] = "",
    role: Annotated[Literal["member", "tenant_admin", "admin"], typer.Option(help="What it may do.")] = "member",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
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
    }
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
