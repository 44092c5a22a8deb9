"""What a call takes, worked out on paper: time, and money on hardware that is paid for by the hour.

ms              = overhead + 1000 * input / prefill_tps + 1000 * output / decode_tps
responses/s     = decode_tps * utilization / output
USD per 1,000   = hourly / (responses/s * 3600) * 1000
"""


def call_parts(overhead: float, input: float, prefill_tps: float, output: float, decode_tps: float) -> dict[str, float]:
    """Milliseconds of one call by phase: `overhead` as given, the prompt's tokens read, the answer's tokens written.
    Speeds are tokens a second, above 0."""
    return {
        "overhead": overhead,
        "prefill": 1000 * input / prefill_tps,
        "decode": 1000 * output / decode_tps,
    }


def responses_per_second(decode_tps: float, utilization: float, output: float) -> float:
    """`decode_tps`: tokens a second that the hardware makes, all requests together; `utilization`: the part of the time
    in which it does (0..1); `output`: tokens of one answer. All above 0."""
    return decode_tps * utilization / output


def per_thousand(hourly: float, decode_tps: float, utilization: float, output: float) -> float:
    """USD for 1,000 answers on hardware that costs `hourly` USD an hour."""
    return hourly / (responses_per_second(decode_tps, utilization, output) * 3600) * 1000
