"""The command line, `refrain`. A command is a module beside this one and a line at the end of it.

Modules import what is heavy (pydantic, the app, torch) inside their commands, so that `refrain --help` is fast.
"""

from typing import Annotated

import typer

from gateway.cli import ask, batch, cache, check, engine, estimate, keys, serve, why

# No pretty tracebacks: with the values of variables in them, they would show secrets.
app = typer.Typer(
    name="refrain",
    help="A caching gateway in front of LLM backends: the cheapest inference is the one you skip.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("refrain-gateway"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command()(serve.serve)
app.command()(check.check)
app.command()(ask.ask)
app.command()(why.why)
app.command()(estimate.estimate)
app.add_typer(engine.app)
app.add_typer(keys.app)
app.add_typer(cache.app)
app.add_typer(batch.app)


def main() -> None:
    app()
