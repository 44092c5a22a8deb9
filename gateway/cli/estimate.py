"""`refrain estimate`: latency and cost on paper, from a few figures and no gateway."""

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

import typer

from gateway.cli.remote import AsJson
from gateway.latency.phases import shares
from gateway.prices.hourly import call_parts, per_thousand, responses_per_second

OVERHEAD = 80.0
"""Milliseconds of a call whatever its tokens, where nobody says otherwise."""
SMALLEST, LARGEST = 1e-9, 1e12
LARGEST_DENOMINATOR = 1000
"""A share is shown as a fraction up to this one; beyond it the per cent say more."""
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)


def _above_zero(value: float | None) -> float | None:
    if value is not None and not SMALLEST <= value <= LARGEST:  # NaN neither
        raise typer.BadParameter(f"must be a number above 0 ({SMALLEST:g} to {LARGEST:g}).")
    return value


def _not_negative(value: float | None) -> float | None:
    if value is not None and not 0 <= value <= LARGEST:
        raise typer.BadParameter(f"must be a number of 0 or more (up to {LARGEST:g}).")
    return value


def _part(value: float | None) -> float | None:
    if value is not None and not SMALLEST <= value <= 1:
        raise typer.BadParameter("must be above 0 and at most 1 (0.70 is 70 %).")
    return value


def estimate(
    input: Annotated[float | None, typer.Option("--input", help="Tokens of the prompt.", callback=_above_zero)] = None,
    output: Annotated[
        float | None, typer.Option("--output", help="Tokens of the answer.", callback=_above_zero)
    ] = None,
    prefill: Annotated[
        float | None, typer.Option("--prefill", help="Tokens of a prompt read in a second.", callback=_above_zero)
    ] = None,
    decode: Annotated[
        float | None,
        typer.Option(
            "--decode",
            help="Tokens written in a second: of one answer for the latency, of all together for the cost.",
            callback=_above_zero,
        ),
    ] = None,
    overhead: Annotated[
        float | None,
        typer.Option(
            "--overhead", help=f"Milliseconds beside the tokens. [default: {OVERHEAD:.0f}]", callback=_not_negative
        ),
    ] = None,
    hourly: Annotated[
        float | None, typer.Option("--hourly", help="USD of the hardware for an hour.", callback=_above_zero)
    ] = None,
    utilization: Annotated[
        float | None,
        typer.Option("--utilization", help="The part of the time in which it works, 0 to 1.", callback=_part),
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", help="Phases of a request: name=seconds,name=seconds,...")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Work out on paper what a request takes and costs: its latency (--input, --output, --prefill, --decode), what
    1,000 answers cost on own hardware (--decode, --output, --utilization, --hourly), and the shares of its phases
    (--trace)."""
    given = {
        "--input": input,
        "--output": output,
        "--prefill": prefill,
        "--decode": decode,
        "--overhead": overhead,
        "--hourly": hourly,
        "--utilization": utilization,
    }
    found: dict[str, Any] = {}
    if any(given[name] is not None for name in ("--input", "--prefill", "--overhead")):
        of = _all(given, "--input", "--prefill", "--output", "--decode")
        parts = call_parts(OVERHEAD if overhead is None else overhead, *of)
        found["latency"] = {"ms": sum(parts.values()), "phases": _phases(parts)}
    if any(given[name] is not None for name in ("--hourly", "--utilization")):
        tokens, speed, busy = _all(given, "--output", "--decode", "--utilization")
        found["throughput"] = {"responses_per_second": responses_per_second(speed, busy, tokens)}
        if hourly is not None:
            found["cost"] = {"usd_per_1000": per_thousand(hourly, speed, busy, tokens)}
    if trace is not None:
        found["trace"] = _trace(trace)
    if not found:
        message = "Give --input and --prefill for a latency, --utilization and --hourly for a cost, or --trace."
        raise typer.BadParameter(message, param_hint=_there(given) or "no option")
    typer.echo(json.dumps(found, indent=2) if as_json else _text(found))


def _all(given: Mapping[str, float | None], *names: str) -> list[float]:
    """These options, which are needed together."""
    missing = [name for name in names if given[name] is None]
    if missing:
        raise typer.BadParameter(f"must be given with {_there(given)}.", param_hint=" ".join(missing))
    return [value for name in names if (value := given[name]) is not None]


def _there(given: Mapping[str, float | None]) -> str:
    return " ".join(name for name, value in given.items() if value is not None)


def _phases(parts: Mapping[str, float]) -> dict[str, dict[str, float]]:
    return {name: {"ms": parts[name], "share": share} for name, share in shares(parts).items()}


def _trace(text: str) -> dict[str, dict[str, Any]]:
    """Exact: seconds are read as the fractions that they are."""
    parts: dict[str, Fraction] = {}
    for piece in text.split(","):
        name, equals, seconds = (part.strip() for part in piece.partition("="))
        if not (equals and name and name.isprintable()):
            raise typer.BadParameter("needs name=seconds, separated by commas.", param_hint="--trace")
        if name in parts:
            raise typer.BadParameter(f"names {name!r} twice.", param_hint="--trace")
        if not _SECONDS.fullmatch(seconds):
            message = f"needs seconds of 0 or more for {name!r}, such as 2 or 0.35."
            raise typer.BadParameter(message, param_hint="--trace")
        parts[name] = Fraction(seconds)
    if not any(parts.values()):
        raise typer.BadParameter("needs a phase that takes more than 0 seconds.", param_hint="--trace")
    return {
        name: {"seconds": float(parts[name]), "share": float(share), "fraction": str(share)}
        for name, share in shares(parts).items()
    }


def _text(found: Mapping[str, Any]) -> str:
    groups = []
    if "latency" in found:
        phases = found["latency"]["phases"]
        rows = [(name, f"{_ms(phase['ms'])} ms", f"{phase['share']:.1%}") for name, phase in phases.items()]
        groups.append(_table([*rows, ("latency", f"{_ms(found['latency']['ms'])} ms", "")]))
    if "throughput" in found:
        lines = [f"throughput  {_amount(found['throughput']['responses_per_second'])} responses/s"]
        if "cost" in found:
            lines.append(f"cost        {_amount(found['cost']['usd_per_1000'])} USD per 1,000 responses")
        groups.append("\n".join(lines))
    if "trace" in found:
        groups.append(
            _table([(name, _fraction(p["fraction"]), f"{p['share']:.1%}") for name, p in found["trace"].items()])
        )
    return "\n\n".join(groups)


def _table(rows: list[tuple[str, str, str]]) -> str:
    wide, wider = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{name:<{wide}}  {value:>{wider}}  {share:>6}".rstrip() for name, value, share in rows)


def _fraction(text: str) -> str:
    return text if Fraction(text).denominator <= LARGEST_DENOMINATOR else ""


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _amount(value: float) -> str:
    """Four digits that count."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
