"""A plain BERT sentence model on ONNX Runtime, without torch: its graph is built from the weights at start.

Facts behind it (all-MiniLM-L6-v2, one thread, one short question):
- torch multiplies a dozen rows by a matrix at a third of the speed of ONNX Runtime, which packs the weights once.
- torch and sentence-transformers take 10 s of imports and 490 MB; this takes 2 s and 270 MB.
- Its vectors are those of sentence-transformers within 1e-6, so that nothing is decided differently.
Only what is known to be computed alike is taken: `open_bert` returns None for any other shape of model.
"""

import json
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import blake3
import numpy as np
from tokenizers import Tokenizer

SHAPE = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
"""Of config.json; a setting that is missing is as it is here."""
MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
MAX_BYTES = 2**30
"""Of the weights: a graph cannot have more than twice as much."""
OPSET, IR = 17, 8


class Bert:
    """`max_tokens` is what one text may have."""

    def __init__(self, folder: Path, config: dict[str, Any], pooling: str, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._pooling = pooling
        self._weights = folder / "model.safetensors"
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._session = _session(config, self._weights)

    def tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)

    def run(self, texts: Sequence[str]) -> np.ndarray:
        """(n, hidden size) float32, of any length; no text may be too long."""
        rows = [self._tokenizer.encode(text).ids for text in texts]
        width = max(map(len, rows))
        ids = np.zeros((len(rows), width), np.int64)
        mask = np.zeros((len(rows), width), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        hidden: np.ndarray = self._session.run(None, {"ids": ids, "mask": mask, "positions": np.arange(width)})[0]
        if self._pooling == "cls":
            return hidden[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        pooled: np.ndarray = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        return pooled

    def digest(self) -> str:
        """Of all that a vector depends on."""
        digest = blake3.blake3(self._weights.read_bytes())
        digest.update(self._tokenizer.to_str().encode())
        digest.update(f"{self._pooling} {self.max_tokens}".encode())
        return digest.hexdigest(8)


def open_bert(folder: Path) -> Bert | None:
    """The model in this folder, in the layout of sentence-transformers; None where it is of another shape, or ONNX
    Runtime is not installed."""
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        return None
    try:
        config, settings = _json(folder / "config.json"), _json(folder / "sentence_bert_config.json")
        modules = [str(module["type"]).rpartition(".")[2] for module in _json(folder / "modules.json")]
        modes = [mode for mode, on in _json(folder / "1_Pooling" / "config.json").items() if mode in _MODES and on]
        prompt = _json(folder / "config_sentence_transformers.json").get("default_prompt_name")
    except FileNotFoundError:
        return None
    weights, names = folder / "model.safetensors", folder / "tokenizer.json"
    if not weights.is_file() or not names.is_file() or weights.stat().st_size > MAX_BYTES:
        return None
    if (
        modules not in MODULES
        or len(modes) != 1
        or modes[0] not in POOLINGS
        or prompt
        or settings.get("do_lower_case")
        or any(config.get(key, value) != value for key, value in SHAPE.items())
    ):
        return None
    max_tokens = min(settings.get("max_seq_length") or 2**31, config["max_position_embeddings"])
    return Bert(folder, config, POOLINGS[modes[0]], max_tokens)


_MODES = (
    *(
        "pooling_mode_cls_token",
        "pooling_mode_mean_tokens",
        "pooling_mode_max_tokens",
        "pooling_mode_weightedmean_tokens",
    ),
    *("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_lasttoken"),
)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _session(config: dict[str, Any], weights: Path) -> Any:
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # it would keep what the largest batch ever needed
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(_graph(config, weights), options, providers=["CPUExecutionProvider"])


def _graph(config: dict[str, Any], weights: Path) -> bytes:
    """An ONNX model: ids (int64, n x t), mask (int32, n x t; 1 for a token, 0 for padding) and positions (int64, t) to
    the last layer's hidden states (float32, n x t x hidden size)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from safetensors.numpy import load_file

    tensors = load_file(weights)
    nodes, constants = [], []
    epsilon = float(config.get("layer_norm_eps", 1e-12))

    def constant(name: str, value: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
        return name

    def stored(name: str) -> str:
        return constant(name, tensors[name])

    def turned(name: str) -> str:
        return constant(name, tensors[name].T)  # stored as (out, in)

    def node(kind: str, inputs: list[str], output: str, ours: bool = True, **attributes: Any) -> str:
        domain = "" if ours else "com.microsoft"
        nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def normed(inputs: list[str], name: str, bias: str, output: str) -> str:
        parts = [*inputs, stored(f"{name}.weight"), stored(f"{name}.bias"), stored(bias)]
        return node("SkipLayerNormalization", parts, output, ours=False, epsilon=epsilon)

    # A single text is all of type 0: that row goes with the positions.
    place = tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
    word = node("Gather", [stored("embeddings.word_embeddings.weight"), "ids"], "word")
    position = node("Gather", [constant("place", place), "positions"], "position")
    added = node("Add", [word, position], "added")
    norm = "embeddings.LayerNorm"
    x = node("LayerNormalization", [added, stored(f"{norm}.weight"), stored(f"{norm}.bias")], "x", epsilon=epsilon)
    for number in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{number}"
        three = [f"{at}.attention.self.{part}" for part in ("query", "key", "value")]
        matrix = constant(f"{at}.qkv", np.concatenate([tensors[f"{part}.weight"].T for part in three], axis=1))
        bias = constant(f"{at}.qkv.bias", np.concatenate([tensors[f"{part}.bias"] for part in three]))
        heads = config["num_attention_heads"]
        seen = node("Attention", [x, matrix, bias, "mask"], f"{at}.seen", ours=False, num_heads=heads)
        dense = f"{at}.attention.output.dense"
        seen = node("MatMul", [seen, turned(f"{dense}.weight")], f"{at}.attended")
        y = normed([seen, x], f"{at}.attention.output.LayerNorm", f"{dense}.bias", f"{at}.y")
        wide = node("MatMul", [y, turned(f"{at}.intermediate.dense.weight")], f"{at}.wide")
        wide = node("BiasGelu", [wide, stored(f"{at}.intermediate.dense.bias")], f"{at}.gelu", ours=False)
        narrow = node("MatMul", [wide, turned(f"{at}.output.dense.weight")], f"{at}.narrow")
        x = normed([narrow, y], f"{at}.output.LayerNorm", f"{at}.output.dense.bias", f"{at}.x")
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "t"]),
        helper.make_tensor_value_info("mask", TensorProto.INT32, ["n", "t"]),
        helper.make_tensor_value_info("positions", TensorProto.INT64, ["t"]),
    ]
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", "t", config["hidden_size"]])]
    graph = helper.make_graph(nodes, "bert", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=IR)
    return bytes(model.SerializeToString())
