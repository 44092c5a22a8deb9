"""Rounds: what is compared takes turns, so that whatever else the machine does disturbs all alike."""

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.report import Figures

Steps = Sequence[tuple[str, Callable[[], float]]]


class Size(NamedTuple):
    """How much is measured."""

    rounds: int = 7
    seconds: int = 2  # of each throughput measurement
    prompts: int = 200
    joiners: int = 10
    streams: int = 500
    tokens: int = 20  # of each of these streams,
    pause: int = 500  # one in so many milliseconds


QUICK = Size(rounds=1, seconds=1, prompts=50, joiners=2, streams=50, tokens=6, pause=300)


def in_turns(name: str, rounds: int, steps: Callable[[int], Steps], compare: Callable[[Figures], Figures]) -> Figures:
    """Medians over the rounds, of the figures and of what `compare` makes of each round's. What is compared is
    measured one right after the other; every second round goes backwards."""
    measured: dict[str, list[float]] = {}
    for number in range(rounds):
        say(f"{name}: round {number + 1} of {rounds}")
        turn = steps(number)
        figures = {step: measure() for step, measure in (turn if number % 2 == 0 else reversed(turn))}
        for figure, value in (figures | compare(figures)).items():
            measured.setdefault(figure, []).append(value)
    return {figure: statistics.median(values) for figure, values in measured.items()}


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)
