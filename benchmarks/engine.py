"""The local engine against itself: together and one after another, with and without a known prefix, beside a bare loop
over the same forward pass, in other number formats; and against llama-cpp-python's server where there is one.

Everything runs in this process with one torch thread, greedy, and with `ignore_eos`. Speeds are new tokens in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from backends.local.cpu import cpu_flags
from backends.local.precision import BF16_FLAGS
from benchmarks.engine_llama import llama, llama_python, llama_rate
from benchmarks.report import Figures, Row
from benchmarks.rounds import QUICK, Size, Steps, in_turns

if TYPE_CHECKING:
    from benchmarks.engine_run import Engine

PROMPT = 40
SHARED, OWN = 1000, 30
"""Tokens of prompts."""
ROUNDS = 3
"""A round takes over two minutes."""
KNOWN = "known"
"""The salt of what the prefix cache is to know."""


class Amount(NamedTuple):
    tokens: int = 48  # new ones of a request
    alone: int = 8  # requests one after another
    shared: int = SHARED
    prefill: int = 512
    long: int = 2000  # of the prompt beside the streams
    steady: int = 30  # passes of the streams before it comes,
    after: int = 8  # and with a piece of it before the short one comes
    windows: tuple[int, int] = (16, 128)  # of the perplexity, and tokens of each


LITTLE = Amount(tokens=8, alone=2, shared=200, prefill=128, long=400, steady=4, after=2, windows=(4, 16))


class Engines(NamedTuple):
    """`bf16` only where the processor computes in it; `int4` is in what `auto` chooses."""

    fp32: Engine
    int4: Engine
    bf16: Engine | None
    llama_port: int | None


def measure(size: Size) -> Figures:
    # Seconds of imports, for this group only.
    from backends.local.precision import resolve_precision
    from benchmarks.engine_run import Engine

    amount = LITTLE if size.prompts <= QUICK.prompts else Amount()
    with ExitStack() as stack:
        python = llama_python()
        engines = Engines(
            fp32=Engine("fp32", "none"),
            int4=Engine(resolve_precision("auto"), "int4"),
            bf16=Engine("bf16", "none") if BF16_FLAGS & cpu_flags() else None,
            llama_port=stack.enter_context(llama(python)).port if python else None,
        )
        known = engines.fp32.part(0, amount.shared)
        engines.fp32.first_token(known, salt=KNOWN)
        if amount is not LITTLE:
            for _, warm_up in _steps(engines, LITTLE, 0):
                warm_up()
        figures = in_turns(
            "engine",
            min(ROUNDS, size.rounds),
            lambda number: _steps(engines, amount, number),
            lambda f: _compare(f) | _arrival(engines.fp32, amount),
        )
        figures["fp32_perplexity"] = engines.fp32.perplexity(*amount.windows)
        figures["int4_perplexity"] = engines.int4.perplexity(*amount.windows)
    return figures


def _steps(engines: Engines, amount: Amount, number: int) -> Steps:
    fp32, int4, bf16, port = engines
    prompts = [fp32.part(index * 50, PROMPT) for index in range(16)]
    own = fp32.part(amount.shared + number * OWN, OWN)
    shared = fp32.part(0, amount.shared)
    prefill = fp32.part(0, amount.prefill)
    steps: list[tuple[str, Callable[[], float]]] = [
        ("alone", lambda: fp32.rate(prompts[: amount.alone], amount.tokens, at_once=False)),
        ("at_8", lambda: fp32.rate(prompts[:8], amount.tokens, at_once=True)),
        ("at_16", lambda: fp32.rate(prompts, amount.tokens, at_once=True)),
        ("decode_8", lambda: fp32.decode_rate(prompts[:8], amount.tokens)),
        ("bare_8", lambda: fp32.bare_decode_rate(prompts[:8], amount.tokens)),
        ("cold_ms", lambda: fp32.first_token(shared + own)),
        ("warm_ms", lambda: fp32.first_token(shared + own, salt=KNOWN, known=amount.shared)),
        ("fp32_decode_1", lambda: fp32.decode_rate(prompts[:1], amount.tokens)),
        ("int4_decode_1", lambda: int4.decode_rate(prompts[:1], amount.tokens)),
        ("fp32_prefill_ms", lambda: fp32.first_token(prefill)),
    ]
    if bf16 is not None:
        steps.append(("bf16_prefill_ms", lambda: bf16.first_token(prefill)))
    if port is not None:
        texts, end = [fp32.tokenizer.decode(prompt) for prompt in prompts[:8]], fp32.tokenizer.end_token
        steps.append(("int4_at_8", lambda: int4.rate(prompts[:8], amount.tokens, at_once=True)))
        steps.append(("llama_at_8", lambda: llama_rate(port, texts, amount.tokens, end)))
    return steps


def _arrival(engine: Engine, amount: Amount) -> Figures:
    from benchmarks.engine_arrival import arrival

    figures = arrival(engine, amount.long, amount.steady, amount.after)
    return figures | {"pause": figures["beside_p99_ms"] / figures["quiet_ms"]}


def _compare(f: Figures) -> Figures:
    ratios = {
        "gain_8": f["at_8"] / f["alone"],
        "gain_16": f["at_16"] / f["alone"],
        "warm_share": f["warm_ms"] / f["cold_ms"],
        "engine_share": f["decode_8"] / f["bare_8"],
        "int4_gain": f["int4_decode_1"] / f["fp32_decode_1"],
    }
    if "bf16_prefill_ms" in f:
        ratios["bf16_gain"] = f["fp32_prefill_ms"] / f["bf16_prefill_ms"]
    if "llama_at_8" in f:
        ratios["llama_gain"] = f["int4_at_8"] / f["llama_at_8"]
    return ratios


def rows(f: Figures) -> list[Row]:
    def rate(name: str) -> str:
        return f"{f[name]:.1f} tokens/s"

    perplexity = f["int4_perplexity"] / f["fp32_perplexity"] - 1
    return [
        Row("8 requests at once", rate("at_8"), f"one after another: {rate('alone')}", _x(f["gain_8"]), ">= 2.5x"),
        Row("16 requests at once", rate("at_16"), f"one after another: {rate('alone')}", _x(f["gain_16"]), ">= 3.5x"),
        Row(
            f"first token, {SHARED:,} known tokens and {OWN} new ones",
            f"{f['warm_ms']:.0f} ms",
            f"none known: {f['cold_ms']:.0f} ms",
            _x(f["warm_share"]),
            "<= 0.1x",
        ),
        Row("8 streams, decoding", rate("decode_8"), f"bare loop: {rate('bare_8')}", _x(f["engine_share"]), ">= 0.85x"),
        _bf16(f),
        Row("1 stream, int4", rate("int4_decode_1"), f"fp32: {rate('fp32_decode_1')}", _x(f["int4_gain"]), ">= 1.4x"),
        Row(
            "perplexity of int4",
            f"{f['int4_perplexity']:.3f}",
            f"fp32: {f['fp32_perplexity']:.3f}",
            f"{perplexity:+.2%}",
            "within 1%",
        ),
        Row(
            "30 tokens arriving in a 2,000-token prefill beside 8 streams: first token",
            f"{f['arrival_ms']:.0f} ms",
            "",
            f"{f['arrival_passes']:.0f} passes",
            "<= 3 passes",
        ),
        Row(
            "between two tokens of these streams during that prefill, p99",
            f"{f['beside_p99_ms']:.0f} ms",
            f"without it, median: {f['quiet_ms']:.0f} ms",
            _x(f["pause"]),
            "<= 6x",
        ),
        _llama(f),
    ]


def _bf16(f: Figures) -> Row:
    what = f"prompt of {Amount().prefill} tokens, bf16"
    if "bf16_gain" not in f:
        return Row(what, "this CPU has none", "", "", ">= 1.5x")
    result = _x(f["bf16_gain"])
    return Row(what, f"{f['bf16_prefill_ms']:.0f} ms", f"fp32: {f['fp32_prefill_ms']:.0f} ms", result, ">= 1.5x")


def _llama(f: Figures) -> Row:
    what = "8 requests at once, int4, against llama-cpp-python's server"
    if "llama_gain" not in f:
        return Row(what, "", "not installed", "")
    return Row(what, f"{f['int4_at_8']:.1f} tokens/s", f"{f['llama_at_8']:.1f} tokens/s", _x(f["llama_gain"]))


def _x(ratio: float) -> str:
    return f"{ratio:.2f}x"
