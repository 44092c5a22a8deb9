"""Weights into memory: from a source that was found to a model that is ready to generate.

Weights are read in the file's own number format, which on a CPU means that they are pages of the file, and lowered
from there one at a time: at no moment are there two copies of the model besides the file's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from backends.local.attention import Segment
from backends.local.convert import converted
from backends.local.kv import GROWTH, Budget, SequenceKv
from backends.local.models import ModelNotFound, Source
from backends.local.precision import Precision, Quantization
from backends.local.progress import Report
from backends.local.quantize import Quantizer, quantize_layers, quantizer
from backends.local.runner import Runner, UnsupportedModel
from backends.local.selftest import Reference, SelfTestFailed, check_finite
from backends.local.tokenizer import Tokenizer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`context` is the most tokens that prompt and answer may have together; `end_tokens` end an answer; `vocabulary`
    is the number of scores after each token."""

    runner: Runner
    tokenizer: Tokenizer
    context: int
    end_tokens: frozenset[int]
    vocabulary: int


def load(source: Source, precision: Precision, quantize: Quantization, threads: int, report: Report) -> LoadedModel:
    """Blocks for seconds. Raises ModelNotFound for weights that are not there, not ours to read, or broken in this
    number format; the text says what to do."""
    torch.set_num_threads(threads)
    try:
        make = quantizer(quantize)
        model, tokenizer = read(source, precision, quantize, report)
        if make is None:
            check_finite(model, tokenizer)
        else:
            reference = Reference(model, tokenizer)
            lower(model, make, precision, f"quantizing {source.name}", report)
            reference.check(model)
    except SelfTestFailed as error:
        setting = "precision: fp32" if quantize == "none" else "quantize: none"
        raise ModelNotFound(
            f"{source.name} does not work with {precision if quantize == 'none' else quantize}: {error}. "
            f"Set `{setting}`, or use another model."
        ) from error
    return finish(source, model, tokenizer, report)


def read(source: Source, precision: Precision, quantize: Quantization, report: Report) -> tuple[Any, Tokenizer]:
    """The model as transformers gives it, in `precision`, or, to be quantized, in the number format of its file. Raises
    ModelNotFound."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    place, local = source.location, source.kind != "hub"
    if source.kind == "gguf":
        place = str(converted(Path(source.location), source.name, report))
    report(f"loading {source.name}" if local else f"loading {source.name} (downloading it if need be)")
    dtype = DTYPES[precision] if quantize == "none" else "auto"
    try:
        tokenizer = Tokenizer(AutoTokenizer.from_pretrained(place, local_files_only=local))
        model, found = AutoModelForCausalLM.from_pretrained(
            place, dtype=dtype, local_files_only=local, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise ModelNotFound(_explain(source, error)) from error
    if found["missing_keys"]:  # transformers makes them up at random
        raise ModelNotFound(f"{source.name} is not whole: its weights lack {min(found['missing_keys'])}.")
    model.requires_grad_(False)
    model.eval()
    if torch.cuda.is_available():
        model.to("cuda")
    return model, tokenizer


def lower(model: Any, make: Quantizer, precision: Precision, phase: str, report: Report) -> None:
    """Quantizes a model that was read for it, and turns what is not quantized into `precision`. Raises
    SelfTestFailed, and leaves a model that is of no use then."""
    quantize_layers(model, make, phase, report)
    exact = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, weights in model.named_parameters():
        dtype = weights.dtype if any(part in exact for part in name.split(".")) else DTYPES[precision]
        # A copy, even where nothing changes: as long as one tensor is a page of the file, all of the file stays mapped.
        weights.data = weights.data.to(dtype, copy=True)


def finish(source: Source, model: Any, tokenizer: Tokenizer, report: Report) -> LoadedModel:
    """Ready to generate. Raises ModelNotFound for a model that cannot be run in batches."""
    try:
        runner = Runner(model)
    except UnsupportedModel as error:
        raise ModelNotFound(
            f"The local engine cannot run {source.name}: {error}. Use another model, or serve this one with another "
            "engine and a remote backend."
        ) from error
    report("warming up")
    return LoadedModel(
        runner=runner,
        tokenizer=tokenizer,
        context=_context(model.config.get_text_config()),
        end_tokens=_end_tokens(model, tokenizer),
        vocabulary=_warm_up(runner),
    )


def _context(config: Any) -> int:
    """With these two kinds of rotary positions a sequence over the original length changes the positions of all that
    are computed beside it; so none may be longer."""
    if not getattr(config, "max_position_embeddings", None):
        raise ModelNotFound("The model does not say how many positions it has (max_position_embeddings).")
    context = int(config.max_position_embeddings)
    stated = getattr(config, "rope_parameters", None) or {}
    for rope in (stated, *(part for part in stated.values() if isinstance(part, dict))):
        if rope.get("rope_type") in ("dynamic", "longrope"):
            original = getattr(config, "original_max_position_embeddings", None)
            context = min(context, int(rope.get("original_max_position_embeddings", original) or context))
    return context


def _end_tokens(model: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """From generation_config, config and tokenizer: in some models only one of them knows the end of a chat turn."""
    tokens: set[int] = set()
    for stated in (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.end_token):
        if isinstance(stated, int):
            tokens.add(stated)
        elif stated is not None:
            tokens.update(stated)
    return frozenset(tokens)


def _warm_up(runner: Runner) -> int:
    """A prompt and a token, so that the first client does not wait for weights to be paged in. The size of the
    vocabulary."""
    kv = SequenceKv(runner.shape, Budget(GROWTH))
    kv.grow(9)
    runner.forward([Segment(range(8), kv)])
    return runner.forward([Segment([0], kv)]).shape[1]


def _explain(source: Source, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0]
    if source.kind != "hub":
        return f"{source.location} cannot be loaded: {reason}"
    return (
        f"{source.name} is not a packaged model, a folder or a .gguf file, and the Hugging Face hub gave no model: "
        f"{reason} Check the name and the network, or give a path."
    )
