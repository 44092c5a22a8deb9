"""From figures to advice."""

import math
from dataclasses import replace

import pytest

from backends.local.advice import Comparison, Figures, advise

FULL = Figures(perplexity=11.7, prefill=400, decode=25, weights=538_000_000)
GOOD = Comparison(
    full=FULL,
    low=Figures(perplexity=11.69, prefill=600, decode=56, weights=190_000_000),
    examples=40,
    tokens=9000,
    agreement=0.978,
    answers=32,
    same_answers=30,
)


def with_low(**changes: float) -> Comparison:
    return replace(GOOD, low=replace(GOOD.low, **changes))


def test_a_gain_without_a_loss() -> None:
    advice = advise(GOOD, None)
    assert advice.use
    assert advice.reasons == (
        "It is 2.2 times as fast at writing and 1.5 times as fast at reading prompts and 65% smaller in memory.",
        "Answers keep their quality: perplexity 0.999 times, the same next token at 97.8%.",
    )


@pytest.mark.parametrize(
    ("found", "refused", "reason"),
    [
        (with_low(perplexity=48.0), None, "perplexity 11.70 becomes 48.00, 4.10 times as much"),
        (with_low(perplexity=math.nan), None, "nan times as much"),
        (with_low(perplexity=math.inf), None, "inf times as much"),
        (replace(GOOD, agreement=0.45), None, "the same next token at 45.0% of the places only"),
        (with_low(decode=20), None, "slower at writing: 20 tokens/s, 25 in full precision"),
        (with_low(prefill=400, decode=25, weights=538_000_000), None, "neither faster nor smaller"),
        (GOOD, "its scores are off by 0.52 of their spread", "refuses it at load: its scores are off by 0.52"),
    ],
)
def test_a_loss_decides(found: Comparison, refused: str | None, reason: str) -> None:
    advice = advise(found, refused)
    assert not advice.use
    assert len(advice.reasons) == 1
    assert reason in advice.reasons[0]


def test_slow_prompts_are_told_but_borne() -> None:
    advice = advise(with_low(prefill=100), None)
    assert advice.use
    assert advice.reasons[-1] == "But it is slower at reading prompts: 100 tokens/s, 400 in full precision."


def test_few_tokens_are_a_caution_either_way() -> None:
    for found in (replace(GOOD, tokens=80), replace(with_low(perplexity=48.0), tokens=80)):
        assert "80 tokens only" in advise(found, None).reasons[-1]
