"""Any model that sentence-transformers loads, on the CPU, in fp32. Slow to import: torch comes with it.

Facts behind the choices:
- `encode()` costs 3 ms of Python on top of the model; its modules called directly give the same vectors, bit by bit.
  That is done for the plain shape (transformer, pooling, normalization) only.
- A tokenizer cuts a long text silently, so tokens are counted by a copy of it that does not cut.
"""

import importlib
import json
from collections.abc import Sequence
from typing import Any

import blake3
import numpy as np
from tokenizers import Tokenizer

PLAIN = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])


class Unsuitable(Exception):
    """The model is not one that can be used here. The message says why."""


class TorchModel:
    """`max_tokens` is what one text may have; 0 is without a limit."""

    def __init__(self, name: str) -> None:
        """Load it. Raises ImportError, Unsuitable, and whatever loading raises."""
        self._torch: Any = importlib.import_module("torch")
        self._torch.set_num_threads(1)
        library: Any = importlib.import_module("sentence_transformers")
        self._model = library.SentenceTransformer(name, device="cpu").float().eval()
        default = self._model.default_prompt_name
        self._prompt = str(self._model.prompts.get(default, "")) if default else ""
        self._plain = [type(module).__name__ for module in self._model] in PLAIN and not self._prompt
        self._tokenizer = _tokenizer(self._model)
        limit = self._model.max_seq_length
        self.max_tokens = int(limit) if limit is not None and limit < 2**31 else 0

    def tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(self._prompt + text).ids)

    def run(self, texts: Sequence[str]) -> np.ndarray:
        if not self._plain:
            return np.asarray(self._model.encode(list(texts), show_progress_bar=False), np.float32)
        with self._torch.inference_mode():
            output = self._model(self._model.preprocess(list(texts)))["sentence_embedding"]
        return np.asarray(output.numpy(), np.float32)

    def digest(self) -> str:
        """Of all that a vector depends on: weights, tokenizer, and the settings of the modules."""
        digest = blake3.blake3()
        for key, tensor in sorted(self._model.state_dict().items()):
            digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        modules = [[type(m).__name__, m.get_config_dict()] for m in self._model]
        settings = [modules, self._prompt, self.max_tokens, self._model.truncate_dim]
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        digest.update(self._tokenizer.to_str().encode())
        return digest.hexdigest(8)


def _tokenizer(model: Any) -> Tokenizer:
    """A copy that neither cuts nor pads. Raises Unsuitable."""
    found = getattr(model.tokenizer, "backend_tokenizer", model.tokenizer)
    if not isinstance(found, Tokenizer):
        raise Unsuitable("it has no fast tokenizer, so a text that is too long could not be told")
    copy = Tokenizer.from_str(found.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
