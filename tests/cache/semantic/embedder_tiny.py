"""A BERT of a few kilobytes with random weights, in the layout of sentence-transformers: real, and quick to load."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(60))]
HIDDEN, INNER, LAYERS, HEADS, LONGEST = 16, 32, 2, 4, 24


def tiny(folder: Path, *, seed: int = 0, pooling: str = "mean_tokens", **config: Any) -> Path:
    """Write it; `config` changes its config.json."""
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    shape = {
        **{"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "layer_norm_eps": 1e-12},
        **{"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS},
        **{"num_attention_heads": HEADS, "max_position_embeddings": LONGEST, "type_vocab_size": 2},
        **{"vocab_size": len(WORDS), "pad_token_id": 0},
    }
    pool = {"word_embedding_dimension": HIDDEN, f"pooling_mode_{pooling}": True}
    if pooling != "mean_tokens":
        pool["pooling_mode_mean_tokens"] = False
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    for name, value in {
        "config.json": shape | config,
        "1_Pooling/config.json": pool,
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": LONGEST, "do_lower_case": False},
        "config_sentence_transformers.json": {"__version__": {}},
        "tokenizer_config.json": {
            **{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST},
            **{"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
        },
    }.items():
        (folder / name).write_text(json.dumps(value))
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def weights(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int, scale: float = 0.5) -> None:
        made[name] = (random.standard_normal(shape) * scale).astype(np.float32)

    def dense(name: str, size: int, out: int) -> None:
        add(f"{name}.weight", out, size)
        add(f"{name}.bias", out)

    def norm(name: str) -> None:
        add(f"{name}.weight", HIDDEN, scale=1)
        add(f"{name}.bias", HIDDEN)

    add("embeddings.word_embeddings.weight", len(WORDS), HIDDEN, scale=1)
    add("embeddings.position_embeddings.weight", LONGEST, HIDDEN, scale=1)
    add("embeddings.token_type_embeddings.weight", 2, HIDDEN, scale=1)
    norm("embeddings.LayerNorm")
    for number in range(LAYERS):
        at = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            dense(f"{at}.attention.self.{part}", HIDDEN, HIDDEN)
        dense(f"{at}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{at}.attention.output.LayerNorm")
        dense(f"{at}.intermediate.dense", HIDDEN, INNER)
        dense(f"{at}.output.dense", INNER, HIDDEN)
        norm(f"{at}.output.LayerNorm")
    return made
