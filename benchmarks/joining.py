"""Identical requests at once: how often the upstream is called, and how long one who comes late waits."""

import asyncio
import statistics
from collections.abc import Sequence
from functools import partial

from benchmarks import client, load
from benchmarks.report import Figures, Row
from benchmarks.streaming import Pace

CLIENTS = 100
FORMS = {"streams": (True,), "json": (False,), "mixed": (True, False)}
"""What the clients ask for, in turn: a stream or not."""
SECOND = Pace(tokens=50, pause=20, first=50)  # an answer that takes a second
LATE = 0.3


def measure(ours: int, upstream: int, joiners: int) -> Figures:
    figures: Figures = {}
    for name, forms in FORMS.items():
        figures |= _at_once(ours, upstream, name, forms)
    return figures | _late(ours, upstream, joiners)


def _at_once(ours: int, upstream: int, name: str, forms: Sequence[bool]) -> Figures:
    seed = f"at once {name} {SECOND}"
    requests = [load.request(ours, load.body(seed, stream=forms[i % len(forms)])) for i in range(CLIENTS)]

    async def ask_all() -> list[client.Exchange]:
        exchanges = [await client.connect(ours) for _ in requests]
        for exchange, request in zip(exchanges, requests, strict=True):
            exchange.ask(request)
        await asyncio.gather(*(exchange.done for exchange in exchanges))
        return exchanges

    before = load.calls(upstream)
    exchanges = client.run(ask_all)
    answers = {exchange.text() for exchange in exchanges}
    return {
        f"{name}_calls": load.calls(upstream) - before,
        f"{name}_joined": sum(exchange.headers[b"x-refrain-cache"] == b"joined" for exchange in exchanges),
        f"{name}_answers": len(answers),
    }


def _late(ours: int, upstream: int, joiners: int) -> Figures:
    """Milliseconds to the first token of one who asks 0.3 s after the first, and of the first."""
    waited, first, answers = [], [], 0
    before = load.calls(upstream)
    for number in range(joiners):
        seed = f"late {number} {SECOND}"
        request = load.request(ours, load.body(seed, stream=True))
        leader, joiner = client.run(partial(_one_late, ours, request))
        waited.append((joiner.tokens()[0][0] - joiner.asked) * 1000)
        first.append((leader.tokens()[0][0] - leader.asked) * 1000)
        answers += len({leader.text(), joiner.text()})
    return {
        "joiners": joiners,
        "joiner_first_p50_ms": statistics.median(waited),
        "joiner_first_max_ms": max(waited),
        "leader_first_p50_ms": statistics.median(first),
        "joiner_calls": (load.calls(upstream) - before) / joiners,
        "joiner_answers": answers / joiners,
    }


async def _one_late(port: int, request: bytes) -> tuple[client.Exchange, client.Exchange]:
    leader, joiner = await client.connect(port), await client.connect(port)
    leader.ask(request)
    await asyncio.sleep(LATE)
    joiner.ask(request)
    await asyncio.gather(leader.done, joiner.done)
    return leader, joiner


def rows(f: Figures) -> list[Row]:
    what = {"streams": "cold streams", "json": "cold JSON requests", "mixed": "cold requests, half of them streams"}
    at_once = [
        Row(
            f"{CLIENTS} identical {text}",
            f"{f[f'{name}_joined']:.0f} joined, {_count(f[f'{name}_answers'], 'answer')}",
            "",
            _count(f[f"{name}_calls"], "upstream call"),
            "1 upstream call",
        )
        for name, text in what.items()
    ]
    late = Row(
        f"joiner {LATE * 1000:.0f} ms late, first content, worst of {f['joiners']:.0f}",
        f"{f['joiner_first_max_ms']:.2f} ms (p50 {f['joiner_first_p50_ms']:.2f} ms)",
        f"the first asker: {f['leader_first_p50_ms']:.1f} ms",
        f"{f['joiner_first_max_ms']:.1f} ms, {_count(f['joiner_calls'], 'upstream call')}",
        "<= 20 ms",
    )
    return [*at_once, late]


def _count(number: float, of: str) -> str:
    return f"{number:g} {of}{'' if number == 1 else 's'}"
