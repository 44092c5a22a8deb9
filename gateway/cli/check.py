"""`refrain check`: is the configuration usable, and what does it come to?"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def check(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The file; refrain.yaml where it exists.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Validate the configuration and print the effective one, secrets masked."""
    import yaml

    from gateway.config import ConfigError, effective, find_config, load_config, notes

    path = find_config(config)
    try:
        loaded = load_config(path)
    except ConfigError as error:
        if as_json:
            problems = [{"path": problem.path, "message": problem.message} for problem in error.problems]
            typer.echo(json.dumps({"valid": False, "problems": problems}, indent=2))
        else:
            typer.echo(f"{path or 'no file'} cannot be used:", err=True)
            typer.echo(str(error), err=True)
        raise typer.Exit(1) from None

    shown = effective(loaded)
    if as_json:
        typer.echo(json.dumps({"valid": True, "config": shown, "notes": notes(loaded)}, indent=2))
        return
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        typer.echo(text, nl=False)
    for note in notes(loaded):
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{path or 'no file, so the defaults'}: ok", err=True)
