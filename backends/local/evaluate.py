"""A number format beside full precision, on a user's own examples: what `refrain engine eval` shows.

The model is loaded twice, one after the other, so that the memory needed is that of one. Texts are read in windows;
what is compared in each is how likely the model finds the next tokens that are there (perplexity) and which one it
finds likeliest (agreement). Then it writes freely after each prompt, which shows whether answers stay the same and
how fast they come.
"""

import math
import operator
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from backends.local.advice import Advice, Comparison, Figures, advise, refusal
from backends.local.attention import Segment
from backends.local.errors import RequestError
from backends.local.examples import BadExamples, Example
from backends.local.kv import GROWTH, Budget, SequenceKv
from backends.local.load import LoadedModel, finish, lower, read
from backends.local.models import Source
from backends.local.precision import Precision, Quantization
from backends.local.progress import Report
from backends.local.quantize import Quantizer, quantizer
from backends.local.selftest import Reference, SelfTestFailed
from backends.local.tokenizer import Tokenizer

WINDOW = 512
"""Tokens that are read at once. More would need more memory for their scores, of which there is one per vocabulary."""
WRITTEN = 24
"""Tokens that are written after a prompt."""
ANSWERS = 32
"""Prompts that are answered, the first ones."""
TEXT_PROMPT = 64
"""Where an example is a text, so many tokens of it are the prompt."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`comparison` is None where the number format could not be had at all; `advice` says why."""

    comparison: Comparison | None
    advice: Advice


@dataclass(frozen=True, slots=True)
class _Window:
    """Tokens to read, of which those from `scored` on count."""

    tokens: list[int]
    scored: int


@dataclass(frozen=True, slots=True)
class _Questions:
    """The examples in tokens: what is read, and the prompts that are answered."""

    windows: list[_Window]
    prompts: list[list[int]]


@dataclass(frozen=True, slots=True)
class _Reading:
    """`choices` are the likeliest tokens at the scored places, `weights` the model's bytes."""

    perplexity: float
    choices: torch.Tensor
    weights: int


@dataclass(frozen=True, slots=True)
class _Writing:
    """Tokens/s, and the answers in tokens."""

    prefill: float
    decode: float
    answers: list[list[int]]


UNWRITTEN = _Writing(math.nan, math.nan, [])


def evaluate(
    source: Source,
    examples: Sequence[Example],
    *,
    precision: Precision,
    quantize: Quantization,
    threads: int,
    report: Report,
    make: Quantizer | None = None,
) -> Evaluation:
    """Compares `precision` and `quantize` with fp32 and none. `make` quantizes instead of what `quantize` names. Raises
    ModelNotFound, and BadExamples for examples that the model cannot read."""
    torch.set_num_threads(threads)
    model, tokenizer = read(source, "fp32", "none", report)
    questions = _questions(tokenizer, examples, int(model.config.get_text_config().max_position_embeddings))
    full = _read_all(model, questions, "in full precision", report)
    full_answers = _answer_all(finish(source, model, tokenizer, report), questions, "in full precision", report)
    del model
    refused, form = None, f"in {precision if quantize == 'none' else quantize}"
    try:
        make = make or quantizer(quantize)
        model, tokenizer = read(source, precision, quantize, report)
        if make is not None:
            reference = Reference(model, tokenizer)
            lower(model, make, precision, f"quantizing {source.name}", report)
            refused = _refusal(reference, model)
    except SelfTestFailed as error:
        return Evaluation(None, Advice(False, (refusal(str(error)),)))
    low, low_answers = _read_all(model, questions, form, report), UNWRITTEN
    if refused is None:
        low_answers = _answer_all(finish(source, model, tokenizer, report), questions, form, report)
    comparison = Comparison(
        full=Figures(full.perplexity, full_answers.prefill, full_answers.decode, full.weights),
        low=Figures(low.perplexity, low_answers.prefill, low_answers.decode, low.weights),
        examples=len(examples),
        tokens=len(full.choices),
        agreement=float((full.choices == low.choices).float().mean()),
        answers=len(full_answers.answers),
        same_answers=sum(map(operator.eq, full_answers.answers, low_answers.answers)),
    )
    return Evaluation(comparison, advise(comparison, refused))


def _refusal(reference: Reference, model: Any) -> str | None:
    try:
        reference.check(model)
    except SelfTestFailed as error:
        return str(error)
    return None


def _questions(tokenizer: Tokenizer, examples: Sequence[Example], context: int) -> _Questions:
    window = min(WINDOW, context - WRITTEN)
    windows, prompts = [], []
    for example in examples:
        try:
            prompt = _prompt(tokenizer, example)
        except RequestError as error:
            raise BadExamples(f"The example in line {example.line}: {error.message}") from error
        answer = _plain(tokenizer, example.answer) if prompt else tokenizer.encode_text(example.answer)
        if not prompt:  # a text: all of it is read, and the model writes on after its beginning
            windows += [_Window(answer[at : at + window], 1) for at in range(0, len(answer) - 1, window)]
            prompts.append(answer[:TEXT_PROMPT])
        elif not answer:  # a prompt alone
            windows.append(_Window(prompt[-window:], 1))
            prompts.append(prompt[-window:])
        else:
            answer = answer[: window // 2]
            prompt = prompt[len(answer) - window :]
            windows.append(_Window(prompt + answer, len(prompt)))
            prompts.append(prompt)
    windows = [one for one in windows if len(one.tokens) > one.scored]
    if not windows:
        raise BadExamples("The examples are too short: they need two tokens at least.")
    return _Questions(windows, prompts[:ANSWERS])


def _prompt(tokenizer: Tokenizer, example: Example) -> list[int]:
    if example.messages:
        return tokenizer.encode_chat(example.messages)
    return tokenizer.encode_text(example.prompt) if example.prompt else []


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Without the tokens that the tokenizer puts before every text."""
    before, tokens = tokenizer.encode_text(""), tokenizer.encode_text(text) if text else []
    return tokens[len(before) :] if tokens[: len(before)] == before else tokens


def _read_all(model: Any, questions: _Questions, form: str, report: Report) -> _Reading:
    """With the model as transformers gives it, whose scores are those of every token."""
    loss, choices = 0.0, []
    for number, window in enumerate(questions.windows):
        report(f"reading the examples {form}", number / len(questions.windows))
        lost, chosen = _read(model, window)
        loss += lost
        choices.append(chosen)
    together = torch.cat(choices)
    return _Reading(_exp(loss / len(together)), together, _weight_bytes(model))


def _answer_all(loaded: LoadedModel, questions: _Questions, form: str, report: Report) -> _Writing:
    """With the engine's own forward pass, whose speed is what a user gets."""
    prefill, decode, answers = [], [], []
    for number, prompt in enumerate(questions.prompts):
        report(f"answering {form}", number / len(questions.prompts))
        answer, reading, writing = _write(loaded, prompt)
        answers.append(answer)
        prefill.append(len(prompt) / reading)
        decode.append((WRITTEN - 1) / writing)
    return _Writing(statistics.median(prefill), statistics.median(decode), answers)


@torch.inference_mode()
def _read(model: Any, window: _Window) -> tuple[float, torch.Tensor]:
    """The loss over the scored tokens, in nats, and the likeliest token at each of their places."""
    tokens = torch.tensor([window.tokens], device=model.device)
    places = torch.arange(window.scored - 1, len(window.tokens) - 1, device=model.device)
    scores = model(input_ids=tokens, use_cache=False, logits_to_keep=places).logits[0]
    loss = torch.nn.functional.cross_entropy(scores.float(), tokens[0, window.scored :], reduction="sum")
    return float(loss), scores.argmax(dim=1).cpu()


def _write(loaded: LoadedModel, prompt: list[int]) -> tuple[list[int], float, float]:
    """The likeliest answer; seconds to its first token, and from there to the last of WRITTEN. It is written beyond its
    end, so that all are timed alike, and cut there."""
    kv = SequenceKv(loaded.runner.shape, Budget(len(prompt) + WRITTEN + GROWTH))
    kv.grow(len(prompt) + WRITTEN)
    start = time.perf_counter()
    answer = [_likeliest(loaded, prompt, kv)]
    first = time.perf_counter()
    while len(answer) < WRITTEN:
        answer.append(_likeliest(loaded, answer[-1:], kv))
    last = time.perf_counter()
    end = next((place for place, token in enumerate(answer) if token in loaded.end_tokens), WRITTEN)
    return answer[:end], first - start, last - first


def _likeliest(loaded: LoadedModel, tokens: list[int], kv: SequenceKv) -> int:
    return int(loaded.runner.forward([Segment(tokens, kv)])[0].argmax())


def _weight_bytes(model: Any) -> int:
    """Of all parameters and buffers; what is shared counts once."""
    return sum(tensor.nbytes for tensor in {id(t): t for t in [*model.parameters(), *model.buffers()]}.values())


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
