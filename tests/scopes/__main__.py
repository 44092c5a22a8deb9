"""`python -m tests.scopes`: does any answer cross a scope? Random sequences against the gateway, and what they counted.
The exit status is 1 when a rule was broken, and when nothing was reused."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.scopes import documents_run
from tests.scopes.leaks import LEAKS
from tests.scopes.report import ROWS, figures, text
from tests.scopes.run import run

LINES = 10
"""How many lines tell of the progress where there is no terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scopes", description=__doc__)
    parser.add_argument("--sequences", type=int, default=10_000, help="how many; each has a seed of its own")
    parser.add_argument("--seed", type=int, default=0, help="of the first sequence")
    parser.add_argument("--documents", action="store_true", help="answers made from documents, which change meanwhile")
    parser.add_argument("--leak", choices=LEAKS, help="plant a leak, which must be found")
    parser.add_argument("--json", action="store_true", help="the counts as JSON")
    options = parser.parse_args(arguments)
    if options.documents and options.leak is not None:
        parser.error("--leak plants nothing in what is made from documents")
    with _progress(options.sequences) as progress:
        if options.documents:
            result, rows = (
                documents_run.run(options.sequences, seed=options.seed, progress=progress),
                documents_run.ROWS,
            )
        else:
            result = run(options.sequences, seed=options.seed, leak=options.leak, progress=progress)
            rows = ROWS
    print(json.dumps(figures(result, rows), indent=2) if options.json else text(result, rows))
    return int(result.found is not None or (options.leak is None and "exact" in result.unseen))


@contextmanager
def _progress(sequences: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        every = max(1, sequences // LINES)

        def line(done: int) -> None:
            if done % every == 0:
                print(f"{done} of {sequences} sequences", file=sys.stderr)

        yield line
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sequences)
        yield lambda done: bar.update(task, completed=done)


if __name__ == "__main__":
    sys.exit(main())
