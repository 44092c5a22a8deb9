"""From a folder to a model that answers, in every number format, within its memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from backends.local.attention import Segment
from backends.local.kv import Budget, SequenceKv
from backends.local.load import LoadedModel, load
from backends.local.models import ModelNotFound, find
from backends.local.precision import Precision, Quantization
from tests.backends.local.small_models import write_folder

FORMATS: list[tuple[Precision, Quantization]] = [
    ("fp32", "none"),
    ("bf16", "none"),
    ("fp32", "int8"),
    ("bf16", "int8"),
    ("fp32", "int4"),
    ("bf16", "int4"),
]
PROMPT = [5, 9, 13, 40, 41, 42, 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Path:
    return write_folder(tmp_path_factory.mktemp("folder"), tiny_gguf)


def ignore(phase: str, done: float | None = None) -> None:
    pass


def scores(loaded: LoadedModel) -> torch.Tensor:
    kv = SequenceKv(loaded.runner.shape, Budget(128))
    kv.grow(len(PROMPT))
    return loaded.runner.forward([Segment(PROMPT, kv)])[0].float()


@pytest.mark.parametrize(("precision", "quantize"), FORMATS)
def test_every_format_says_about_the_same(folder: Path, precision: Precision, quantize: Quantization) -> None:
    loaded = load(find(str(folder)), precision, quantize, 1, ignore)
    assert (loaded.context, loaded.end_tokens, loaded.vocabulary) == (1024, {0}, 99)
    assert loaded.runner.shape.dtype == (torch.float32 if precision == "fp32" else torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0, -1]
    far = float((scores(loaded) - expected).norm() / (expected - expected.mean()).norm())
    assert far < (1e-5 if (precision, quantize) == ("fp32", "none") else 0.1)


@pytest.mark.parametrize("quantize", ["none", "int4"])
def test_a_file_in_bf16(tmp_path: Path, folder: Path, quantize: Quantization) -> None:
    """Its numbers are those of the file, and what is computed in is what was asked for."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    for file in folder.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    loaded = load(find(str(tmp_path)), "fp32", quantize, 1, ignore)
    assert scores(loaded).isfinite().all()
    assert loaded.runner.shape.dtype == torch.float32


def test_positions_stay_exact_in_bf16(folder: Path) -> None:
    """Rotary frequencies in bf16 would bend far positions by whole turns."""
    from backends.local.load import lower, read
    from backends.local.quantize import Int4Linear

    model, _ = read(find(str(folder)), "bf16", "int4", ignore)
    lower(model, Int4Linear, "bf16", "", ignore)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert model.model.norm.weight.dtype == torch.bfloat16


def test_weights_that_are_not_whole(tmp_path: Path, folder: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights: dict[str, Any] = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelNotFound, match=r"not whole: its weights lack model\.layers\.1\.mlp\.down_proj\.weight"):
        load(find(str(tmp_path)), "fp32", "none", 1, ignore)


def test_weights_that_are_no_numbers(tmp_path: Path, folder: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights: dict[str, Any] = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    for quantize in ("none", "int8"):
        with pytest.raises(ModelNotFound, match=r"not finite|off by nan"):
            load(find(str(tmp_path)), "fp32", quantize, 1, ignore)  # type: ignore[arg-type]


def test_a_model_that_cannot_run_in_batches(tmp_path: Path, tiny_gguf: Path) -> None:
    """Bloom tells positions apart by a slope inside its own attention."""
    folder = write_folder(tmp_path / "bloom", tiny_gguf, model="Bloom", n_head=4, n_layer=2)
    with pytest.raises(ModelNotFound, match=rf"cannot run {folder.name}: .*another engine and a remote backend"):
        load(find(str(folder)), "fp32", "none", 1, ignore)


# In a process of its own, that has loaded a small model before: what imports take is not the model's.
MEMORY = """
import sys
from backends.local.load import load
from backends.local.models import find
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
ignore = lambda phase, done=None: None
small, large, precision, quantize = sys.argv[1:]
load(find(small), precision, quantize, 1, ignore)
before = peak()
load(find(large), precision, quantize, 1, ignore)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize(("precision", "quantize"), [("fp32", "none"), ("bf16", "none"), ("fp32", "int4")])
def test_the_peak_is_under_twice_the_model(
    tmp_path: Path, folder: Path, tiny_gguf: Path, precision: str, quantize: str
) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}
    large = write_folder(tmp_path / "large", tiny_gguf, **sizes)
    size = (large / "model.safetensors").stat().st_size
    assert size > 150 * 2**20
    command = [sys.executable, "-c", MEMORY, str(folder), str(large), precision, quantize]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * size
