"""`refrain engine`: the local model server alone, as the gateway runs it beside itself."""

from typing import Annotated

import typer


def engine(
    model: Annotated[
        str, typer.Option("--model", help="A built-in name, a folder, a .gguf file, or a name on the hub.")
    ] = "SmolLM2-135M-Instruct",
    precision: Annotated[str, typer.Option("--precision", help="auto, fp32 or bf16.")] = "auto",
    quantize: Annotated[str, typer.Option("--quantize", help="none; int8 and int4 come later.")] = "none",
    host: Annotated[str, typer.Option("--host", help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option("--port", help="Listen on this port.")] = None,
    uds: Annotated[str | None, typer.Option("--uds", help="Listen on this Unix socket instead.")] = None,
) -> None:
    """Serve a local model as an OpenAI-style server, without the gateway."""
    if (port is None) == (uds is None):
        typer.echo("Say where to listen: --port PORT or --uds PATH.", err=True)
        raise typer.Exit(2)
    if quantize != "none":
        typer.echo("--quantize: only none is supported yet.", err=True)
        raise typer.Exit(2)
    from backends.local.engine import run_engine

    run_engine(model=model, precision=precision, uds=uds, host=host, port=port)
