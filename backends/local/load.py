"""Weights into memory: from a source that was found to a model that is ready to generate."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from backends.local.convert import converted
from backends.local.generate import generate
from backends.local.models import ModelNotFound, Source
from backends.local.precision import Precision
from backends.local.progress import Report
from backends.local.sampler import random_source
from backends.local.tokenizer import Tokenizer
from backends.local.work import Sampling

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`context` is the most tokens that prompt and answer may have together; `end_tokens` end an answer."""

    model: Any
    tokenizer: Tokenizer
    context: int
    end_tokens: frozenset[int]


def load(source: Source, precision: Precision, threads: int, report: Report) -> LoadedModel:
    """Blocks for seconds. Raises ModelNotFound for weights that are not there or not ours to read."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(threads)
    place = source.location
    if source.kind == "gguf":
        place = str(converted(Path(source.location), source.name, report))
    report(f"loading {source.name}" if source.kind != "hub" else f"loading {source.name} (downloading it if need be)")
    local = source.kind != "hub"
    try:
        tokenizer = Tokenizer(AutoTokenizer.from_pretrained(place, local_files_only=local))
        model = AutoModelForCausalLM.from_pretrained(place, dtype=DTYPES[precision], local_files_only=local)
    except (OSError, ValueError) as error:
        raise ModelNotFound(_explain(source, error)) from error
    model.requires_grad_(False)
    model.eval()
    if torch.cuda.is_available():
        model.to("cuda")
    loaded = LoadedModel(
        model=model,
        tokenizer=tokenizer,
        context=int(model.config.get_text_config().max_position_embeddings),
        end_tokens=_end_tokens(model, tokenizer),
    )
    report("warming up")
    _warm_up(loaded)
    return loaded


def _end_tokens(model: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """From generation_config, config and tokenizer: in some models only one of them knows the end of a chat turn."""
    tokens: set[int] = set()
    for stated in (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.end_token):
        if isinstance(stated, int):
            tokens.add(stated)
        elif stated is not None:
            tokens.update(stated)
    return frozenset(tokens)


def _warm_up(loaded: LoadedModel) -> None:
    """Two tokens, so that the first client does not wait for the weights to be paged in."""
    prompt = loaded.tokenizer.encode_text("Hello")
    tokens = generate(loaded.model, prompt, Sampling(temperature=0), random_source(0, 0), lambda: False)
    next(tokens)
    next(tokens)


def _explain(source: Source, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0]
    if source.kind != "hub":
        return f"{source.location} cannot be loaded: {reason}"
    return (
        f"{source.name} is not a packaged model, a folder or a .gguf file, and the Hugging Face hub gave no model: "
        f"{reason} Check the name and the network, or give a path."
    )
