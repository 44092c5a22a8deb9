"""Model folders with random weights and the tokenizer of the tiny GGUF model."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils import logging

from backends.local.convert import converted


def write_folder(folder: Path, gguf_file: Path, *, model: str = "Llama", **config: Any) -> Path:
    """A `model` of transformers, by default a Llama of two layers, with its usual initial weights in fp32."""
    logging.disable_progress_bar()
    tokenizer = converted(gguf_file, gguf_file.stem, lambda phase, done=None: None)
    usual = {
        "vocab_size": json.loads((tokenizer / "config.json").read_text())["vocab_size"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    if model == "Llama":
        usual |= {"intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{model}Config")(**usual | config))
    made.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, folder)
    return folder
