"""Quantized layers compute what their weights say; what does not is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from backends.local.load import load, lower, read
from backends.local.models import DEFAULT_MODEL, ModelNotFound, find
from backends.local.quantize import GROUP, Int4Linear, Int8Linear, Quantizer, quantize_layers
from backends.local.selftest import Reference, SelfTestFailed
from tests.backends.local.small_models import write_folder

SHAPES = [(64, 64), (32, 64), (96, 160), (16, 32)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Path:
    return write_folder(tmp_path_factory.mktemp("folder"), tiny_gguf)


def ignore(phase: str, done: float | None = None) -> None:
    pass


def random_linear(rows: int, columns: int, bias: bool) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(columns, rows, bias=bias).requires_grad_(False)


def rounded(linear: nn.Linear, levels: int, group: int, *, symmetric: bool) -> torch.Tensor:
    """The weights, rounded to so many levels in each group of a row."""
    groups = linear.weight.reshape(linear.out_features, -1, group)
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    if symmetric:
        high = groups.abs().amax(2, keepdim=True)
        low = torch.zeros_like(high)
    step = (high - low) / levels
    return (((groups - low) / step).round() * step + low).reshape(linear.weight.shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_its_rounded_weights(shape: tuple[int, int], bias: bool, rows: int, dtype: torch.dtype) -> None:
    linear = random_linear(*shape, bias)
    x = torch.randn(2, rows, shape[1]).bfloat16()
    for make, weights in (
        (Int8Linear, rounded(linear, 127, shape[1], symmetric=True)),
        (Int4Linear, rounded(linear, 15, GROUP, symmetric=False)),
    ):
        expected = nn.functional.linear(x.float(), weights, linear.bias)
        found = make(linear)(x.to(dtype))
        assert (found.shape, found.dtype) == (expected.shape, dtype)
        assert (found.float() - expected).norm() < 0.01 * expected.norm()


def test_memory(folder: Path) -> None:
    """Eight and four bits, with their scales, which weigh more in rows of 64 than they would in a real model."""
    linear = random_linear(512, 1024, bias=False)
    full = linear.weight.nbytes
    sizes = [sum(b.nbytes for b in make(linear).buffers()) for make in (Int8Linear, Int4Linear)]
    assert sizes[0] < full / 3.9
    assert sizes[1] < full / 6.3


def test_a_row_of_zeros_is_no_division_by_zero() -> None:
    linear = random_linear(32, 64, bias=False)
    linear.weight[3] = 0
    for make in (Int8Linear, Int4Linear):
        out = make(linear)(torch.randn(2, 64))
        assert out.isfinite().all()
        assert not out[:, 3].any()


def test_all_layers_but_embedding_and_head(folder: Path) -> None:
    model, _ = read(find(str(folder)), "fp32", "int4", ignore)
    seen: list[float] = []
    quantize_layers(model, Int4Linear, "", lambda phase, done=None: seen.append(done or 0))
    kinds = {type(module) for module in model.model.layers.modules()}
    assert Int4Linear in kinds
    assert nn.Linear not in kinds
    assert type(model.lm_head) is nn.Linear
    assert seen == sorted(seen)
    assert 0.9 < seen[-1] <= 1


class TwiceTheScale(Int4Linear):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.scales *= 2


class NotANumber(Int8Linear):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.scales[5] = torch.nan


def transposed(linear: nn.Linear) -> nn.Module:
    return nn.Linear(linear.out_features, linear.in_features, bias=False)


def shorter(linear: nn.Linear) -> nn.Module:
    return nn.Linear(linear.in_features, linear.out_features - 1, bias=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (TwiceTheScale, r"output of model\.layers\.0\.self_attn\.q_proj is off by [01]\.\d\d of its length"),
        (NotANumber, "is off by nan of its length"),
        (transposed, "cannot do it on this machine"),
        (shorter, "has another shape"),
    ],
)
def test_a_broken_quantization_is_refused(folder: Path, make: Quantizer, message: str) -> None:
    model, _ = read(find(str(folder)), "fp32", "int4", ignore)
    # A layer that is not square, so that transposing it shows.
    if make is transposed:
        model.model.layers[0].self_attn.q_proj = nn.Linear(64, 32, bias=False)
    with pytest.raises(SelfTestFailed, match=message):
        quantize_layers(model, make, "", ignore)


def test_a_wrong_operator_is_refused_at_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch._weight_int4pack_mm_for_cpu
    monkeypatch.setattr(torch, "_weight_int4pack_mm_for_cpu", lambda *args: right(*args) * 2)
    with pytest.raises(ModelNotFound, match=r"does not work with int4: .* is off by 1\.\d\d of.* Set `quantize: none`"):
        load(find(str(folder)), "fp32", "int4", 1, ignore)


def test_a_missing_operator_is_refused_at_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_weight_int8pack_mm")
    with pytest.raises(ModelNotFound, match=r"int8: torch .* cannot do it on this machine.* Set `quantize: none`"):
        load(find(str(folder)), "fp32", "int8", 1, ignore)


def test_a_model_without_linear_layers_is_refused(tmp_path: Path, tiny_gguf: Path) -> None:
    folder = write_folder(tmp_path / "gpt2", tiny_gguf, model="GPT2", n_embd=64, n_layer=2, n_head=4)
    with pytest.raises(ModelNotFound, match=r"only 0% of its layers' weights .* Set `quantize: none`"):
        load(find(str(folder)), "fp32", "int4", 1, ignore)


def test_a_gpu_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ModelNotFound, match=r"machine has a GPU\. Set `quantize: none`"):
        load(find(str(folder)), "fp32", "int4", 1, ignore)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_the_self_test_knows_good_from_bad() -> None:
    """torch's dynamic int8 is right to 1 % on random input, layer by layer: only real activations show what it does."""

    def dynamic(linear: nn.Linear) -> nn.Module:
        made: Any = torch.ao.quantization.quantize_dynamic(nn.Sequential(linear), {nn.Linear}, dtype=torch.qint8)
        return made[0]

    far = {}
    for name, make in (("int8", Int8Linear), ("int4", Int4Linear), ("dynamic", dynamic)):
        model, tokenizer = read(find(DEFAULT_MODEL), "fp32", "int4", ignore)
        reference = Reference(model, tokenizer)
        lower(model, make, "fp32", "", ignore)
        far[name] = reference.distance(model)
    assert far["int8"] < 0.1
    assert far["int4"] < 0.1
    with pytest.raises(SelfTestFailed, match=r"off by 0\.\d\d of their spread"):
        reference.check(model)
