"""What a look-up of the semantic tier costs: beside the bare embedding of the same question, and in memory."""

import asyncio
import gc
import os
import random
import statistics
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.report import Figures, Row
from benchmarks.rounds import Size
from cache.exact import ExactCache
from cache.semantic.embedder import LocalEmbedder
from cache.semantic.questions import Row as Question
from cache.semantic.tier import Query, SemanticTier
from cache.stores.memory import MemoryStore

ENTRIES = 10_000
"""Questions in the one context that is searched."""
CONTEXTS = 200_000
"""Contexts of one question each, whose memory is measured."""
QUESTIONS = 300
CONTEXT = bytes(32)
WORDS = """
    account address amount answer bank battery bill book booking button camera card change charge city code colour
    company contract customer date delivery device document email error event file flight folder form hotel
    invoice language letter limit list machine meeting message model money month number office order page party
    password payment phone photo plan price printer product question receipt refund report room rule screen
    service store student summary table team ticket time tool train translation trip user video visit weather week
    word year
"""


def measure(size: Size) -> Figures:
    count = min(QUESTIONS, 30 * size.rounds)
    return {**asyncio.run(_times(count)), **_memory(CONTEXTS if size.rounds > 1 else CONTEXTS // 20)}


def rows(figures: Figures) -> list[Row]:
    return [
        Row(
            f"look-up among {ENTRIES:,} questions, 10 words, p95",
            f"{figures['lookup_p95']:.2f} ms",
            f"bare embedding call: {figures['embedding_p95']:.2f} ms",
            f"{figures['lookup_p95'] / figures['embedding_p95']:.2f}x",
            "<= 1.4x",
        ),
        Row(
            "event loop held up while look-ups run, p99.9",
            f"{figures['stall_p999']:.2f} ms",
            f"while it is idle: {figures['idle_p999']:.2f} ms",
            f"{figures['stall_p999']:.2f} ms",
            "<= 5 ms",
        ),
        Row(
            f"{CONTEXTS:,} contexts of one question, memory of each",
            f"{figures['context_bytes']:,.0f} bytes",
            "",
            f"{figures['context_bytes'] / 1024:.2f} KB",
            "<= 3 KB",
        ),
    ]


async def _times(count: int) -> Figures:
    rng = random.Random(5)
    embedder = LocalEmbedder("all-MiniLM-L6-v2")
    tier = _tier(embedder)
    await embedder.start()
    while embedder.state != "ready":
        if embedder.state == "failed":
            sys.exit(f"the embedder cannot be used: {embedder.detail}")
        await asyncio.sleep(0.1)
    await _fill(tier, embedder, rng)
    bare, lookups = [], []
    idle: list[float] = []
    ticker = asyncio.create_task(_tick(idle))
    await asyncio.sleep(1)
    ticker.cancel()
    stalls: list[float] = []
    ticker = asyncio.create_task(_tick(stalls))
    for number in range(count):
        one, other = _question(rng), _question(rng)
        # In turns, so that whatever else the machine does disturbs both alike.
        for step in (0, 1) if number % 2 else (1, 0):
            begun = perf_counter()
            if step:
                await tier.find(Query(number.to_bytes(32), CONTEXT, CONTEXT, one), lambda _: True)
                lookups.append(perf_counter() - begun)
            else:
                await embedder.embed([other], deadline=10)
                bare.append(perf_counter() - begun)
    ticker.cancel()
    await tier.aclose()
    return {
        "idle_p999": float(np.percentile(idle, 99.9)) * 1000,
        "stall_p999": float(np.percentile(stalls, 99.9)) * 1000,
        "lookup_p50": statistics.median(lookups) * 1000,
        "lookup_p95": float(np.percentile(lookups, 95)) * 1000,
        "embedding_p50": statistics.median(bare) * 1000,
        "embedding_p95": float(np.percentile(bare, 95)) * 1000,
    }


async def _tick(late: list[float]) -> None:
    """How much later than asked for the event loop comes back, every half millisecond."""
    while True:
        begun = perf_counter()
        await asyncio.sleep(0.0005)
        late.append(perf_counter() - begun - 0.0005)


async def _fill(tier: SemanticTier, embedder: LocalEmbedder, rng: random.Random) -> None:
    """Real vectors are made of a few questions only; the others lie near those, as rewordings do."""
    seeds = [_question(rng) for _ in range(256)]
    vectors = np.concatenate([await embedder.embed(seeds[i : i + 32], deadline=60) for i in range(0, 256, 32)])
    noise = np.random.default_rng(5)
    for number in range(ENTRIES):
        vector = vectors[number % 256] + 0.03 * noise.standard_normal(vectors.shape[1]).astype(np.float32)
        vector = (vector / np.linalg.norm(vector)).astype(np.float32)
        tier.known.add(Question((1 << 64 | number).to_bytes(32), CONTEXT, _question(rng)), vector)


def _question(rng: random.Random) -> str:
    return "How do I " + " ".join(rng.sample(WORDS.split(), 7)) + "?"


def _memory(contexts: int) -> Figures:
    """Resident bytes of each, the objects that hold its key, context and text among them."""

    async def grown() -> float:
        tier = _tier(LocalEmbedder("all-MiniLM-L6-v2"))
        rng = random.Random(6)
        gc.collect()
        before = _resident()
        for number in range(contexts):
            key = number.to_bytes(32)
            tier.known.add(Question(key, (1 << 65 | number).to_bytes(32), _question(rng)), None)
        gc.collect()
        taken = _resident() - before
        await tier.aclose()
        return taken / contexts

    return {"context_bytes": asyncio.run(grown())}


def _tier(embedder: LocalEmbedder) -> SemanticTier:
    cache = ExactCache(MemoryStore(2**30), max_entry=2**20)
    return SemanticTier(cache, embedder, max_bytes=2**30, answer_text=lambda entry: None)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
