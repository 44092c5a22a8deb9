"""One loaded model with its scheduler, and what is done with it. Imports torch."""

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from backends.local.attention import Segment
from backends.local.kv import Budget, SequenceKv
from backends.local.limits import KV_MEMORY, MAX_QUEUE, MAX_RUNNING
from backends.local.load import load
from backends.local.metrics import Metrics
from backends.local.models import DEFAULT_MODEL, find
from backends.local.opening import Opener
from backends.local.precision import Precision, Quantization
from backends.local.prefix import BLOCK
from backends.local.scheduler import Scheduler
from backends.local.work import Begun, Event, Failed, Sampling, Usage, Work
from benchmarks.rounds import say

TEXT = Path(__file__).with_name("engine_text.txt")
"""A fixed copy of some of our pages, so that figures do not change with them."""
PATIENCE = 600.0


class Pass(NamedTuple):
    """A forward pass: when it began and ended, and how many tokens of each sequence it took."""

    begun: float
    ended: float
    sizes: list[int]


class Watched:
    """A runner whose passes are written down, and can be waited for."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.shape = runner.shape
        self.passes: list[Pass] = []
        self._before: Callable[[list[int]], None] = lambda sizes: None

    def wait(self, times: int, kind: Callable[[list[int]], bool]) -> None:
        """Until so many more passes have begun whose sizes are of this kind."""
        seen, reached = itertools.count(1), threading.Event()

        def before(sizes: list[int]) -> None:
            if kind(sizes) and next(seen) == times:
                reached.set()

        self._before = before
        if not reached.wait(PATIENCE):
            sys.exit("the engine does not go on")

    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        sizes = [len(segment.tokens) for segment in segments]
        self._before(sizes)
        begun = time.perf_counter()
        scores: torch.Tensor = self._runner.forward(segments)
        self.passes.append(Pass(begun, time.perf_counter(), sizes))
        return scores


class Asked:
    """A greedy request of so many new tokens, on its way."""

    def __init__(self, scheduler: Scheduler, prompt: Sequence[int], tokens: int, salt: str) -> None:
        self.first = 0.0
        self.cached = 0
        self._end: Event | None = None
        self._ended = threading.Event()
        work = Work(tuple(prompt), Sampling(temperature=0), 1, tokens, (), ignore_eos=True, salt=salt)
        self.submitted = time.perf_counter()
        self.job = scheduler.submit(work, self._take)

    def _take(self, event: Event) -> None:
        if isinstance(event, Begun):
            self.first, self.cached = time.perf_counter(), event.cached
        elif isinstance(event, Usage | Failed):
            self._end = event
            self._ended.set()

    def wait(self) -> None:
        self._ended.wait(PATIENCE)
        if not isinstance(self._end, Usage):
            sys.exit(f"the engine did not answer: {self._end}")

    def stop(self, scheduler: Scheduler) -> None:
        scheduler.cancel(self.job)
        self._ended.wait(PATIENCE)


class Engine:
    def __init__(self, precision: Precision, quantize: Quantization) -> None:
        say(f"engine: loading {DEFAULT_MODEL}, {precision}, quantize {quantize}")
        loaded = load(find(DEFAULT_MODEL), precision, quantize, 1, lambda phase, done=None: None)
        self.tokenizer = loaded.tokenizer
        self.text = loaded.tokenizer.encode_text(TEXT.read_text())
        self.runner = loaded.runner
        self.watched: Any = Watched(loaded.runner)
        self.scheduler = Scheduler(
            self.watched,
            Opener(loaded.tokenizer, loaded.end_tokens, loaded.vocabulary),
            kv_tokens=KV_MEMORY // loaded.runner.shape.token_bytes,
            max_running=MAX_RUNNING,
            max_queue=MAX_QUEUE,
            metrics=Metrics(),
            log=say,
        )
        self._salts = map(str, itertools.count())

    def part(self, start: int, tokens: int) -> list[int]:
        """So many tokens of the text, which begins anew at its end."""
        start %= len(self.text) - tokens
        return self.text[start : start + tokens]

    def ask(self, prompt: Sequence[int], tokens: int, salt: str | None = None) -> Asked:
        """Without `salt` the prefix cache knows nothing of it."""
        return Asked(self.scheduler, prompt, tokens, next(self._salts) if salt is None else salt)

    def rate(self, prompts: Sequence[Sequence[int]], tokens: int, *, at_once: bool) -> float:
        """New tokens in a second, prompts included in the time."""
        begun = time.perf_counter()
        if at_once:
            for asked in [self.ask(prompt, tokens) for prompt in prompts]:
                asked.wait()
        else:
            for prompt in prompts:
                self.ask(prompt, tokens).wait()
        return len(prompts) * tokens / (time.perf_counter() - begun)

    def first_token(self, prompt: Sequence[int], salt: str | None = None, known: int = 0) -> float:
        """Milliseconds to the first token. The prefix cache has to have the first `known` ones, in whole blocks."""
        asked = self.ask(prompt, 1, salt)
        asked.wait()
        if asked.cached < known // BLOCK * BLOCK:
            sys.exit(f"the prefix cache had {asked.cached} of {known} tokens")
        return (asked.first - asked.submitted) * 1000

    def decode_rate(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """New tokens in a second, of all together, while every one is being written."""
        self.watched.passes.clear()
        for asked in [self.ask(prompt, tokens) for prompt in prompts]:
            asked.wait()
        begins = [p.begun for p in self.watched.passes if p.sizes == [1] * len(prompts)]
        return len(prompts) * (len(begins) - 1) / (begins[-1] - begins[0])

    def bare_decode_rate(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """The same by a loop over the forward pass that does nothing else."""
        budget = Budget(MAX_RUNNING * 4096)
        kvs = [SequenceKv(self.runner.shape, budget) for _ in prompts]
        latest: list[Sequence[int]] = list(prompts)
        begins = []
        for _ in range(tokens):
            begins.append(time.perf_counter())
            for kv, new in zip(kvs, latest, strict=True):
                kv.grow(kv.length + len(new))
            scores = self.runner.forward([Segment(new, kv) for kv, new in zip(kvs, latest, strict=True)])
            latest = [[token] for token in scores.argmax(-1).tolist()]
        # The first pass takes the prompts.
        return len(prompts) * (len(begins) - 2) / (begins[-1] - begins[1])

    def perplexity(self, windows: int, tokens: int) -> float:
        """Of so many windows of the text, token by token as an answer is written."""
        budget = Budget(windows * (tokens + 256))
        kvs = [SequenceKv(self.runner.shape, budget) for _ in range(windows)]
        rows = [self.part(number * tokens, tokens) for number in range(windows)]
        losses: list[float] = []
        for place in range(tokens - 1):
            for kv in kvs:
                kv.grow(place + 1)
            scores = self.runner.forward([Segment([row[place]], kv) for row, kv in zip(rows, kvs, strict=True)])
            wanted = torch.tensor([row[place + 1] for row in rows], device=scores.device)
            losses.append(float(torch.nn.functional.cross_entropy(scores.float(), wanted)))
        return float(torch.tensor(statistics.fmean(losses)).exp())
