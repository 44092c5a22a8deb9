"""`refrain engine`: the local model server alone, as the gateway runs it beside itself. `refrain engine eval`: is a
number format worth using?"""

from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from backends.local import DEFAULT_MODEL
from backends.local.limits import KV_MEMORY, MAX_QUEUE, MAX_RUNNING
from gateway.cli.remote import AsJson

Model = Annotated[str, typer.Option("--model", help="A built-in name, a folder, a .gguf file, or a name on the hub.")]
Precision = Annotated[Literal["auto", "fp32", "bf16"], typer.Option("--precision", help="What is computed in.")]
Quantize = Annotated[Literal["none", "int8", "int4"], typer.Option("--quantize", help="The bits of the weights.")]

app = typer.Typer(name="engine", invoke_without_command=True)


@app.callback()
def engine(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    precision: Precision = "auto",
    quantize: Quantize = "none",
    host: Annotated[str, typer.Option("--host", help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option("--port", help="Listen on this port.")] = None,
    uds: Annotated[str | None, typer.Option("--uds", help="Listen on this Unix socket instead.")] = None,
    max_running: Annotated[int, typer.Option("--max-running", min=1, help="Answers written at once.")] = MAX_RUNNING,
    max_queue: Annotated[int, typer.Option("--max-queue", min=0, help="Requests that may wait.")] = MAX_QUEUE,
    kv_memory: Annotated[
        str, typer.Option("--kv-memory", metavar="SIZE", help="Memory for keys and values.")
    ] = f"{KV_MEMORY >> 20}MiB",
) -> None:
    """Serve a local model as an OpenAI-style server, without the gateway."""
    if context.invoked_subcommand is not None:
        # They are options of `engine`, not of the command after it, which would run without them.
        for name in context.params:
            given = context.get_parameter_source(name)
            if given is not None and given.name != "DEFAULT":
                _refuse(f"--{name.replace('_', '-')} belongs behind `{context.invoked_subcommand}`.")
        return
    if (port is None) == (uds is None):
        _refuse("Say where to listen: --port PORT or --uds PATH.")
    from backends.local.engine import run_engine
    from gateway.config.units import parse_size

    try:
        memory = parse_size(kv_memory)
    except ValueError as error:
        _refuse(f"--kv-memory {error}.")
    run_engine(
        model=model,
        precision=precision,
        quantize=quantize,
        uds=uds,
        host=host,
        port=port,
        max_running=max_running,
        max_queue=max_queue,
        kv_memory=memory,
    )


@app.command(name="eval")
def evaluate(
    data: Annotated[Path, typer.Option("--data", help="Your examples: a .jsonl file, or a plain text.")],
    model: Model = DEFAULT_MODEL,
    precision: Precision = "auto",
    quantize: Quantize = "none",
    as_json: AsJson = False,
) -> None:
    """Compare a precision or quantization with full precision (fp32) on your own examples: quality, speed, memory.

    A line of a .jsonl file has one of {"messages": [...]}, {"prompt": ..., "completion": ...} and {"text": ...}.
    Exit status: 0 use it, 1 do not use it, 2 it could not be tried.
    """
    from gateway.cli.evaluate import run_evaluation

    raise typer.Exit(run_evaluation(model, precision, quantize, data, as_json))


def _refuse(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(2)
