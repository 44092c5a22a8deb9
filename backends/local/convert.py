"""A GGUF file becomes a Hugging Face model folder (safetensors, fp32), once, kept in the user's cache.

Reading a GGUF takes many seconds, reading the folder one. The folder's name has the digest of the file's content, so
it is never another file's. Tensors go through one at a time: the memory needed is that of the largest one. That is for
models of the `llama` architecture with a byte-level vocabulary; all others are left to transformers (foreign.py).

Facts that this file rests on:
- llama.cpp stores the rows of the query and key projections of the `llama` architecture in another order (rotary pairs
  side by side, not in halves), so these two are permuted back.
- No `output.weight` means that the output matrix is the embedding matrix.
- safetensors is: 8 bytes length of a JSON header, the header (name -> dtype, shape, offsets), the raw tensors.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from backends.local.models import ModelNotFound
from backends.local.progress import Report

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL, USER_DEFINED = 3, 4  # token types of llama.cpp


def cache_folder() -> Path:
    return Path(platformdirs.user_cache_dir("refrain")) / "models"


def converted(gguf_file: Path, name: str, report: Report) -> Path:
    """The folder made from this file; converts it first where that has not happened. Two processes that need it at
    once: one converts, the other waits. Raises ModelNotFound for a file we cannot convert."""
    report(f"checking {gguf_file.name}")
    with gguf_file.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()[:16]
    folder = cache_folder() / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock"), lambda: report(f"another process is converting {name}")):
        if not folder.is_dir():
            partial = folder.with_name(folder.name + ".partial")
            _empty(partial)
            _convert(gguf_file, partial, name, report)
            partial.rename(folder)
    return folder


def _empty(folder: Path) -> None:
    """A new folder, whatever a process that was killed, or an attempt that failed, has left there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """The system releases the lock when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf_file: Path, folder: Path, name: str, report: Report) -> None:
    from gguf import GGUFReader

    report(f"reading {gguf_file.name}")
    try:
        reader = GGUFReader(gguf_file)
    except ValueError as error:
        raise ModelNotFound(f"{gguf_file} is no GGUF file: {error}") from error
    try:
        _write_folder(reader, folder, name, report)
    except _Unknown as error:
        from backends.local.foreign import save_as_folder

        _empty(folder)
        save_as_folder(gguf_file, reader, folder, name, str(error), report)


class _Unknown(Exception):
    """We do not know how to read this file. The text, a clause, says why."""


def _write_folder(reader: Any, folder: Path, name: str, report: Report) -> None:
    meta = _Metadata(reader)
    config = _config(meta, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    _write_json(folder / "config.json", config)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    _write_json(folder / "generation_config.json", ends)
    _write_tokenizer(meta, folder)
    _write_weights(reader.tensors, config, folder / "model.safetensors", f"converting {name}", report)


class _Metadata:
    """The keys of the file."""

    def __init__(self, reader: Any) -> None:
        self._fields = reader.fields

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise _Unknown(f"it has no {key}")
        return value


def _config(meta: _Metadata, *, tied: bool) -> dict[str, Any]:
    architecture = meta.need("general.architecture")
    if architecture != "llama":
        raise _Unknown(f"its architecture is {architecture}, not llama")
    if meta.get("llama.rope.scaling.type", "none") != "none" or meta.get("llama.expert_count", 0):
        raise _Unknown("it has scaled rotary positions or experts")
    heads = meta.need("llama.attention.head_count")
    hidden = meta.need("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": meta.need("llama.feed_forward_length"),
        "num_hidden_layers": meta.need("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta.get("llama.attention.key_length", hidden // heads),
        "max_position_embeddings": meta.need("llama.context_length"),
        "rms_norm_eps": meta.need("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.get("llama.rope.freq_base", 10000.0),
        "vocab_size": len(meta.need("tokenizer.ggml.tokens")),
        "tie_word_embeddings": tied,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.need("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _write_tokenizer(meta: _Metadata, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, split = meta.need("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "default")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    splits = {
        "default": byte_level,
        "gpt-2": byte_level,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
    }
    if kind != "gpt2" or split not in splits:
        raise _Unknown(f"its tokenizer is {kind}/{split}")
    tokens = meta.need("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in meta.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = splits[split]
    tokenizer.decoder = decoders.ByteLevel()
    types = meta.get("tokenizer.ggml.token_type", [])
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in (CONTROL, USER_DEFINED):
            special = token_type == CONTROL
            tokenizer.add_tokens([AddedToken(token, special=special, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {
        "bos_token": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token": meta.need("tokenizer.ggml.eos_token_id"),
        "unk_token": meta.get("tokenizer.ggml.unknown_token_id"),
        "pad_token": meta.get("tokenizer.ggml.padding_token_id"),
    }
    names = {key: tokens[token] for key, token in ids.items() if token is not None}
    template = meta.get("tokenizer.chat_template")
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
        | ({} if template is None else {"chat_template": template}),
    )


def _write_weights(tensors: Any, config: dict[str, Any], file: Path, phase: str, report: Report) -> None:
    from gguf.quants import dequantize

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        shape = [int(size) for size in reversed(tensor.shape)]  # ggml counts dimensions from the innermost
        end = offset + 4 * int(np.prod(shape))
        header[_hf_name(tensor.name)] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors must begin on a multiple of 8
    heads = {".attn_q.": config["num_attention_heads"], ".attn_k.": config["num_key_value_heads"]}
    written = 0
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype("<f4", copy=False)
            for part, count in heads.items():
                if part in tensor.name:
                    values = _rotary_halves(values, count)
            out.write(np.ascontiguousarray(values).data)
            written += values.nbytes
            report(phase, written / offset)
        out.flush()
        os.fsync(out.fileno())


def _hf_name(name: str) -> str:
    """ "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight" """
    parts = name.split(".")
    layer = ""
    if parts[0] == "blk":
        layer, parts = f"model.layers.{parts[1]}.", parts[2:]
    if len(parts) != 2 or parts[0] not in NAMES or parts[1] != "weight":
        raise _Unknown(f"it has a tensor {name}")
    return f"{layer}{NAMES[parts[0]]}.weight"


def _rotary_halves(weights: Any, heads: int) -> Any:
    """Rows of each head from pairs (0, 1), (2, 3), ... to halves (0, 2, ...), (1, 3, ...)."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")
