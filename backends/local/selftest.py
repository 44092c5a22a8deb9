"""Is the loaded model still itself? A broken number format is refused at load, not found out by a user.

Two checks. Each linear layer that is replaced is compared with what it replaces, on random input: this finds operators
that compute something else, and wrong scales. The whole model is compared with itself before, on a fixed text: this
finds what harms real activations only (as torch's dynamic int8 does, which quantizes those as well).
"""

from typing import Any

import torch
from torch import nn

from backends.local.tokenizer import Tokenizer

LAYER_TOLERANCE = 0.25
"""How far the output of a replaced layer may be from the layer's own, as a share of its length. Rounding to 16 levels
in a group of 32 cannot make it more than 0.16; measured on usual weights: 0.06 for int4, 0.005 for int8."""
MODEL_TOLERANCE = 0.4
"""How far the scores of the whole model may be from those before, as a share of their spread. Measured on the bundled
model: 0.01 for int4, 0.03 for int8; 0.29 for int4 with groups that are not those of its file, which loses quality but
writes sense (perplexity 1.4 times); 0.51 for torch's dynamic int8, which does not (3 to 4 times)."""
TEXT = (
    "The library opens at nine in the morning and closes at six in the evening, except on Sundays. To borrow a book "
    "you need a card, which is free for everyone who lives in the town. Children under twelve may take three books "
    "home, and adults ten. If a book is late, please bring it back as soon as you can."
)
TOKENS = 64


class SelfTestFailed(Exception):
    """This number format is broken, for this model or on this machine. The text, a clause, says how."""


@torch.inference_mode()
def check_linear(low: nn.Module, linear: nn.Linear, name: str) -> None:
    """Raises SelfTestFailed where `low` is not `linear` but for rounding."""
    x = torch.randn(4, linear.in_features, generator=torch.Generator().manual_seed(0))
    bias = None if linear.bias is None else linear.bias.float()
    expected = nn.functional.linear(x, linear.weight.float(), bias)
    found = low(x)
    if found.shape != expected.shape:
        raise SelfTestFailed(f"the output of {name} has another shape")
    far = float((found - expected).norm() / expected.norm().clamp(min=1e-12))
    if not far <= LAYER_TOLERANCE:  # NaN is far, too
        raise SelfTestFailed(f"the output of {name} is off by {far:.2f} of its length")


class Reference:
    """What the model says to a fixed text before its number format is changed."""

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self._tokens = tokenizer.encode_text(TEXT)[:TOKENS]
        self._scores = _scores(model, self._tokens)

    def distance(self, model: Any) -> float:
        """Of the scores from those before, as a share of these's spread."""
        expected, found = _centred(self._scores), _centred(_scores(model, self._tokens))
        return float((found - expected).norm() / expected.norm().clamp(min=1e-12))

    def check(self, model: Any) -> None:
        """Raises SelfTestFailed where `model` says something else."""
        far = self.distance(model)
        if not far <= MODEL_TOLERANCE:
            raise SelfTestFailed(f"its scores are off by {far:.2f} of their spread")


def check_finite(model: Any, tokenizer: Tokenizer) -> None:
    """Raises SelfTestFailed for a model that computes no numbers on a fixed text."""
    if not _scores(model, tokenizer.encode_text(TEXT)[:TOKENS]).isfinite().all():
        raise SelfTestFailed("its scores are not finite")


@torch.inference_mode()
def _scores(model: Any, tokens: list[int]) -> torch.Tensor:
    """After every token, (tokens, vocabulary) in fp32, by the model's own attention."""
    scores: torch.Tensor = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits[0]
    return scores.float()


def _centred(scores: torch.Tensor) -> torch.Tensor:
    """A number added to all scores of a token changes nothing."""
    return scores - scores.mean(dim=1, keepdim=True)
