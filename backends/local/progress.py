"""What the engine is busy with while it starts: kept for /readyz, and shown on standard error."""

import sys
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn


class Report(Protocol):
    def __call__(self, phase: str, done: float | None = None) -> None:
        """`phase` has begun, or `done` (0 to 1) of it is done."""
        ...


class StartProgress:
    """A Report. On a terminal a progress bar, else a line for each phase and each tenth of it."""

    def __init__(self) -> None:
        self.detail = "starting"
        self._printed = ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._phase = ""

    def __call__(self, phase: str, done: float | None = None) -> None:
        percent = None if done is None else int(done * 100)
        self.detail = phase if percent is None else f"{phase} {percent}%"
        if sys.stderr.isatty():
            self._draw(phase, percent)
        else:
            self._print(phase if percent is None else f"{phase} {percent // 10 * 10}%")

    def finish(self, line: str) -> None:
        """The start is over: say how it went."""
        self.close()
        self.detail = line
        self._print(line)

    def close(self) -> None:
        """Remove the bar; it hides the terminal's cursor."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str) -> None:
        if line != self._printed:
            self._printed = line
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def _draw(self, phase: str, percent: int | None) -> None:
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
        if phase != self._phase:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._phase = self._bar.add_task(phase, total=None), phase
        if percent is not None and self._task is not None:
            self._bar.update(self._task, completed=percent, total=100)
