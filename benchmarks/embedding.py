"""Embedding through the process of its own against the same model called directly, one thread; start and memory."""

import asyncio
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, Steps, in_turns
from cache.semantic.embedder import LocalEmbedder
from cache.semantic.embedder_model import Model, load

MODEL = "all-MiniLM-L6-v2"
WORDS = "how do i reset the password of my account on the new portal please tell me what to do when it fails"
BATCH = 16
DEADLINE = 60.0


def measure(size: Size) -> Figures:
    with asyncio.Runner() as runner:
        embedder = LocalEmbedder(MODEL)
        started = runner.run(_start(embedder))
        try:
            assert embedder.pid is not None
            started["memory_mb"] = _memory(embedder.pid) / 2**20
            model = load(MODEL)
            asked = max(5, size.prompts // 10)
            figures = in_turns("embedding", size.rounds, lambda _: _steps(runner, embedder, model, asked), _compare)
            figures["memory_after_mb"] = _memory(embedder.pid) / 2**20
        finally:
            runner.run(embedder.aclose())
    return started | figures


def _text(words: int, number: int = 0) -> str:
    return " ".join((WORDS.split() * 4)[: words - 1]) + f" {number}"


async def _start(embedder: LocalEmbedder) -> Figures:
    """Until it is ready, and the longest that the event loop stood still meanwhile."""
    begun = perf_counter()
    await embedder.start()
    stall = 0.0
    while embedder.state == "starting":
        before = perf_counter()
        await asyncio.sleep(0.001)
        stall = max(stall, perf_counter() - before - 0.001)
    if embedder.state != "ready":
        sys.exit(f"the embedder is not ready: {embedder.detail}")
    return {"start_s": perf_counter() - begun, "start_stall_ms": stall * 1000}


def _steps(runner: asyncio.Runner, embedder: LocalEmbedder, model: Model, asked: int) -> Steps:
    async def call(texts: Sequence[str]) -> None:
        await embedder.embed(texts, deadline=DEADLINE)

    def ours(words: int) -> float:
        return _median(lambda i: runner.run(call([_text(words, i)])), asked)

    def bare(words: int) -> float:
        return _median(lambda i: model.embed([_text(words, i)]), asked)

    async def crowd() -> None:
        await asyncio.gather(*(call([_text(10, i)]) for i in range(BATCH)))

    return [
        ("bare_10_ms", lambda: bare(10)),
        ("ours_10_ms", lambda: ours(10)),
        ("bare_60_ms", lambda: bare(60)),
        ("ours_60_ms", lambda: ours(60)),
        ("bare_crowd_ms", lambda: _median(lambda _: model.embed([_text(10, i) for i in range(BATCH)]), 3)),
        ("ours_crowd_ms", lambda: _median(lambda _: runner.run(crowd()), 3)),
    ]


def _compare(f: Figures) -> Figures:
    return {f"added_{what}_ms": f[f"ours_{what}_ms"] - f[f"bare_{what}_ms"] for what in ("10", "60", "crowd")}


def _median(call: Callable[[int], object], times: int) -> float:
    """Milliseconds."""
    taken = []
    for number in range(times):
        begun = perf_counter()
        call(number)
        taken.append((perf_counter() - begun) * 1000)
    return statistics.median(taken)


def _memory(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rows(f: Figures) -> list[Row]:
    def row(what: str, key: str, bar: str = "") -> Row:
        return Row(
            what,
            f"{f[f'ours_{key}_ms']:.1f} ms",
            f"{f[f'bare_{key}_ms']:.1f} ms",
            f"{f[f'added_{key}_ms']:+.2f} ms",
            bar,
        )

    memory = f"{f['memory_mb']:.0f} MiB, {f['memory_after_mb']:.0f} MiB after"
    return [
        row("embedding 10 words, p50, against the bare model", "10", "<= +1 ms"),
        row("embedding 60 words, p50", "60"),
        row(f"{BATCH} calls at once, until the last, against one batch", "crowd"),
        Row("embedder: start", f"{f['start_s']:.1f} s", "", f"{f['start_stall_ms']:.1f} ms loop stall"),
        Row("embedder: memory of its process", memory, "", ""),
    ]
