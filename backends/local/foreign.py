"""GGUF files that convert.py does not know, by way of transformers' own reader: slower, and whole in memory.

Facts that this file rests on:
- transformers reads the configuration, the vocabulary and the tensors that it knows, and skips what it does not know
  without a word. Weights that it does not find in the file it makes up at random.
- It ignores the factors by which some models bend their rotary positions (Llama 3.1 and later, Phi 3 with a long
  context): such a model would write well at first and lose the thread later.
- A model that came from a GGUF is marked as quantized, and refuses to be saved until that mark is taken away.
"""

from pathlib import Path
from typing import Any

from backends.local.models import ModelNotFound
from backends.local.progress import Report

BENT_POSITIONS = ("rope_freqs", "rope_factors")


def save_as_folder(gguf_file: Path, reader: Any, folder: Path, name: str, why: str, report: Report) -> None:
    """Writes the model as a folder with safetensors, in fp32. `why` convert.py does not do it, is told with the reason
    when transformers cannot either. Raises ModelNotFound."""
    bent = next((tensor.name for tensor in reader.tensors if tensor.name.startswith(BENT_POSITIONS)), None)
    if bent is not None:
        raise _refuse(gguf_file, why, f"transformers ignores its {bent}")
    report(f"converting {name} with transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = {"gguf_file": gguf_file.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, **place)
        model, found = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent,
            **place,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    except Exception as error:  # its readers raise whatever a file of an unknown kind makes them stumble over
        raise _refuse(gguf_file, why, f"transformers says: {_first_line(error)}") from error
    missing = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
    if missing:
        raise _refuse(gguf_file, why, f"transformers does not find {missing[0]} in it")
    scaling = reader.get_field(f"{_architecture(reader)}.rope.scaling.type")
    positions = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    if scaling is not None and scaling.contents() != "none" and positions.get("rope_type", "default") == "default":
        raise _refuse(gguf_file, why, "transformers ignores its scaled rotary positions")
    report(f"saving {name}")
    model.hf_quantizer = None
    model.is_quantized = False
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _architecture(reader: Any) -> str:
    return str(reader.get_field("general.architecture").contents())


def _first_line(error: Exception) -> str:
    return f"{error}".strip().split("\n")[0].rstrip(".") or type(error).__name__


def _refuse(gguf_file: Path, why: str, further: str) -> ModelNotFound:
    return ModelNotFound(
        f"{gguf_file.name} cannot be converted: {why}, and {further}. Give the model's folder with safetensors instead."
    )
