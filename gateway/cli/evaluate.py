"""What `refrain engine eval` does and prints."""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from backends.local.evaluate import Evaluation

USE, DO_NOT_USE, NOT_TRIED = 0, 1, 2


def run_evaluation(model: str, precision: str, quantize: str, data: Path, as_json: bool) -> int:
    """The exit status. Progress goes to standard error, the result to standard output."""
    from backends.local.cpu import worker_threads
    from backends.local.examples import BadExamples, read_examples
    from backends.local.models import ModelNotFound, find
    from backends.local.precision import check_quantization, resolve_precision
    from backends.local.progress import StartProgress

    progress = StartProgress()
    resolved, quantization = resolve_precision(precision), check_quantization(quantize)
    form = resolved if quantization == "none" else f"{quantization} and {resolved}"
    try:
        if form == "fp32":
            raise ValueError("fp32 without quantization is full precision itself. Give --precision or --quantize.")
        examples, source = read_examples(data), find(model)
        threads = worker_threads()
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # torch's thread pools are sized when it is imported
        progress("importing torch")
        from backends.local.evaluate import evaluate

        found = evaluate(source, examples, precision=resolved, quantize=quantization, threads=threads, report=progress)
    except (BadExamples, ModelNotFound, ValueError) as error:
        progress.close()
        typer.echo(json.dumps({"error": str(error)}) if as_json else f"error: {error}", err=not as_json)
        return NOT_TRIED
    progress.close()
    if as_json:
        typer.echo(json.dumps(_plain({"model": source.name, "form": form, **dataclasses.asdict(found)}), indent=2))
    else:
        _print(source.name, form, found)
    return USE if found.advice.use else DO_NOT_USE


def _plain(value: object) -> object:
    """As JSON can have it: it knows no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(name: str, form: str, found: "Evaluation") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    seen = found.comparison
    if seen is not None:
        table = Table("", "fp32", form, "", title=name, title_justify="left")
        full, low = seen.full, seen.low
        table.add_row("perplexity", f"{full.perplexity:.3f}", f"{low.perplexity:.3f}", f"{seen.perplexity_ratio:.3f}x")
        for label, one, other in (
            ("reading, tokens/s", full.prefill, low.prefill),
            ("writing, tokens/s", full.decode, low.decode),
            ("weights, MiB", full.weights / 2**20, low.weights / 2**20),
        ):
            table.add_row(label, f"{one:,.0f}", f"{other:,.0f}", f"{other / one:.2f}x")
        table.add_row("same next token", "", f"{seen.agreement:.1%}", f"of {seen.tokens:,}")
        table.add_row("same answer", "", f"{seen.same_answers / seen.answers:.1%}", f"of {seen.answers:,}")
        console.print(table)
    console.print(f"[bold]{'Use' if found.advice.use else 'Do not use'} {form}.[/bold]")
    for reason in found.advice.reasons:
        console.print(reason, markup=False)
