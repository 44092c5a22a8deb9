"""Tiny models with random weights, and what their own attention says about the tokens that the engine made."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from backends.local.convert import converted
from backends.local.tokenizer import Tokenizer

CLOSE = 1e-3
"""Where the two likeliest tokens are closer than this, rounding may choose between them."""


@cache
def folder_of(gguf: Path) -> Path:
    """The converted model, not in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(gguf.parent / "cache"))
        return converted(gguf, "tiny", lambda phase, done=None: None)


@cache
def _loaded(gguf: Path) -> Any:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder_of(gguf), dtype=torch.float32, local_files_only=True).eval()


def llama(gguf: Path) -> Any:
    """A copy, since a Runner changes the model that it is given."""
    return copy.deepcopy(_loaded(gguf))


@cache
def tokenizer_of(gguf: Path) -> Tokenizer:
    return Tokenizer(AutoTokenizer.from_pretrained(folder_of(gguf), local_files_only=True))


def random_model(config: Any, seed: int = 0) -> Any:
    """Weights so large that the scores are far apart: those a new model begins with leave them all but equal."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5 * 1.5)
    return model


class Oracle:
    """The same weights with transformers' own attention, one sequence at a time. Counts what it compared."""

    def __init__(self, model: Any, attention: str = "eager") -> None:
        self._model = copy.deepcopy(model)
        self._model.set_attn_implementation(attention)
        self.compared = 0
        self.made = 0

    @property
    def share(self) -> float:
        """Of the tokens made, those that were compared: all but what comes after a choice that rounding may make."""
        return self.compared / max(self.made, 1)

    @torch.inference_mode()
    def check(self, prompt: list[int], made: list[int]) -> None:
        """`made` is what greedy choice makes after `prompt`. One pass over both, without any cache: as long as they
        are the same, it gives the scores of every step."""
        self.made += len(made)
        if not made:
            return
        tokens = torch.tensor([[*prompt, *made[:-1]]], device=self._model.device)
        scores = self._model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 :].float()
        wrong = (scores.argmax(-1) != torch.tensor(made, device=scores.device)).nonzero()
        if len(wrong) == 0:
            self.compared += len(made)
            return
        first = int(wrong[0])
        self.compared += first
        likeliest = scores[first].topk(2).values
        gap = float(likeliest[0] - likeliest[1])
        assert gap < CLOSE, (
            f"token {first} of {len(made)} after {len(prompt)}: {made[first]}, not {int(scores[first].argmax())} "
            f"(ahead by {gap:.3g})"
        )

    @torch.inference_mode()
    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The same tokens step by step, with a cache as transformers keeps it."""
        cache, made, new = DynamicCache(config=self._model.config), list[int](), list(prompt)
        for _ in range(count):
            tokens = torch.tensor([new], device=self._model.device)
            scores = self._model(input_ids=tokens, cache=cache, use_cache=True).logits
            new = [int(scores[0, -1].argmax())]
            made += new
        return made
