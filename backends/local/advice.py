"""What an evaluation comes to: use a number format, or do not, and why."""

from dataclasses import dataclass

MAX_PERPLEXITY = 1.03
"""Times that of full precision. int4 and int8 of weights alone stay below 1.01 on the bundled model; what quantizes
activations per token, which changes half of its longer answers, is at 1.06."""
MIN_AGREEMENT = 0.93
"""Of the tokens that full precision would choose next. Measured on the same: 0.97 and 0.90."""
MIN_GAIN = 1.1
"""Below this a difference in speed or memory is not worth another number format, nor surely one."""
FEW_TOKENS = 1000
"""Under so many scored tokens the figures say little about other texts."""


@dataclass(frozen=True, slots=True)
class Figures:
    """`prefill` and `decode` in tokens/s with one request at a time, NaN where it was not tried; `weights` in bytes."""

    perplexity: float
    prefill: float
    decode: float
    weights: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A number format beside full precision, on the same `tokens` of `examples`.

    `agreement`: share of the tokens at which both would choose the same next one, given the same text before it.
    `same_answers`: of `answers` that both wrote freely, those that are equal."""

    full: Figures
    low: Figures
    examples: int
    tokens: int
    agreement: float
    answers: int
    same_answers: int

    @property
    def perplexity_ratio(self) -> float:
        return self.low.perplexity / self.full.perplexity


@dataclass(frozen=True, slots=True)
class Advice:
    use: bool
    reasons: tuple[str, ...]


def advise(found: Comparison, refused: str | None) -> Advice:
    """`refused` is what the checks at load have against the number format, if anything."""
    against = []
    if refused is not None:
        against.append(refusal(refused))
    ratio = found.perplexity_ratio
    if not ratio <= MAX_PERPLEXITY:  # NaN is not
        against.append(
            f"It makes the model worse on your examples: perplexity {found.full.perplexity:.2f} becomes "
            f"{found.low.perplexity:.2f}, {ratio:.2f} times as much (bearable: {MAX_PERPLEXITY})."
        )
    if not found.agreement >= MIN_AGREEMENT:
        against.append(
            f"It would choose the same next token at {found.agreement:.1%} of the places only "
            f"(bearable: {MIN_AGREEMENT:.0%})."
        )
    gains = _gains(found)
    if not gains:
        against.append("It is neither faster nor smaller than full precision here.")
    if found.low.decode * MIN_GAIN <= found.full.decode:
        against.append(f"It is slower at writing: {_speeds(found.low.decode, found.full.decode)}.")
    few = f"These are {found.tokens:,} tokens only: try it on more of your examples before you rely on this."
    caution = (few,) if found.tokens < FEW_TOKENS else ()
    if against:
        return Advice(False, (*against, *caution))
    kept = f"Answers keep their quality: perplexity {ratio:.3f} times, the same next token at {found.agreement:.1%}."
    return Advice(True, (f"It is {' and '.join(gains)}.", kept, *_losses(found), *caution))


def refusal(why: str) -> str:
    return f"The engine refuses it at load: {why}."


def _gains(found: Comparison) -> list[str]:
    full, low = found.full, found.low
    gains = []
    if low.decode >= full.decode * MIN_GAIN:
        gains.append(f"{low.decode / full.decode:.1f} times as fast at writing")
    if low.prefill >= full.prefill * MIN_GAIN:
        gains.append(f"{low.prefill / full.prefill:.1f} times as fast at reading prompts")
    if low.weights * MIN_GAIN <= full.weights:
        gains.append(f"{1 - low.weights / full.weights:.0%} smaller in memory")
    return gains


def _losses(found: Comparison) -> list[str]:
    full, low = found.full, found.low
    if not low.prefill * MIN_GAIN <= full.prefill:
        return []
    return [f"But it is slower at reading prompts: {_speeds(low.prefill, full.prefill)}."]


def _speeds(low: float, full: float) -> str:
    return f"{low:.0f} tokens/s, {full:.0f} in full precision"
