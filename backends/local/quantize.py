"""Decoder layers with weights of 8 or 4 bits, computed by torch's own operators for that.

Only weights are quantized. (Measured: torch's dynamic int8, which quantizes what flows between layers as well, takes
the bundled model's perplexity from 11.7 to 48.)

- int8: one scale for each row, symmetric.
- int4: one scale and one zero point for each group of 32 weights of a row. Two weights share a byte.

Facts that this file rests on:
- The operators are private ones of torch. Whether they are there and right is found out by using them.
- They take inputs in bf16 and fp32, but for fp32 there is no fast code: measured, 7 to 500 times slower. So a
  quantized layer rounds its input to bf16, in fp32 models, too; all else there, attention among it, stays in fp32.
- The embedding and the output matrix stay as they are. They are one tensor in many models, so a quantized output
  matrix would be a further copy; measured, it makes writing no faster (51 tokens/s, 49 without) and answers worse
  (top-1 agreement 0.95, 0.97 without).
"""

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from backends.local.precision import Quantization
from backends.local.progress import Report
from backends.local.selftest import SelfTestFailed, check_linear

GROUP = 32
"""Weights with a common scale and zero point in int4, as in the 4-bit formats of GGUF."""
ROWS = 16
"""The int4 operator works on so many rows at a time."""

Quantizer = Callable[[nn.Linear], nn.Module]
"""Makes what takes the place of a linear layer."""


class _QuantizedLinear(nn.Module):
    """In place of `linear`: the same input and output types, other weights."""

    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self._multiply(x.reshape(-1, x.shape[-1]).to(torch.bfloat16))
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], -1)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, inputs) to (rows, outputs), both bf16."""
        raise NotImplementedError


class Int8Linear(_QuantizedLinear):
    """Half the memory of bf16."""

    levels: torch.Tensor
    scales: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=1e-12)
        self.register_buffer("levels", (weight / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales.to(torch.bfloat16))

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        return torch._weight_int8pack_mm(x, self.levels, self.scales)


class Int4Linear(_QuantizedLinear):
    """With its scales a third of the memory of bf16."""

    levels: torch.Tensor
    scales: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        weight = linear.weight.detach().float()
        groups = weight.reshape(len(weight), -1, GROUP)
        low, high = groups.aminmax(dim=2)
        scales = ((high - low) / 15).clamp(min=1e-12)
        levels = ((groups - low[:, :, None]) / scales[:, :, None]).round().clamp(0, 15).to(torch.int32)
        # The last argument matters on GPUs only.
        self.register_buffer("levels", torch._convert_weight_to_int4pack_for_cpu(levels.reshape(weight.shape), 2))
        # The operator computes (level - 8) * scale + zero. By group, then by row.
        pairs = torch.stack([scales, low + 8 * scales], dim=2).transpose(0, 1)
        self.register_buffer("scales", pairs.to(torch.bfloat16).contiguous())

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, self.levels, GROUP, self.scales)


def quantizer(quantize: Quantization) -> Quantizer | None:
    """None for none. Raises SelfTestFailed on a GPU: the operators are the CPU's."""
    if quantize == "none":
        return None
    if torch.cuda.is_available():
        raise SelfTestFailed("it is for CPUs, and this machine has a GPU")
    return Int8Linear if quantize == "int8" else Int4Linear


def quantize_layers(model: Any, make: Quantizer, phase: str, report: Report) -> None:
    """Replaces the linear layers of the decoder one by one, so that there is never more than one in both forms.

    Raises SelfTestFailed for operators that are missing or wrong here, and for a model most of whose weights are not
    in linear layers (mixtures of experts, GPT-2)."""
    head = model.get_output_embeddings()
    kept = sum(weights.numel() for weights in {*head.parameters(), *model.get_input_embeddings().parameters()})
    total = sum(weights.numel() for weights in model.parameters()) - kept
    # Names, not modules: a list of those would keep all of them in memory until the end.
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head]
    done = 0
    for name in names:
        linear = model.get_submodule(name)
        if linear.in_features % GROUP or linear.out_features % ROWS:
            continue  # such as the few outputs of a router
        done += linear.weight.numel()
        try:
            low = make(linear)
            check_linear(low, linear, name)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            reason = f"torch {torch.__version__} cannot do it on this machine ({type(error).__name__}: {error})"
            raise SelfTestFailed(reason) from error
        model.set_submodule(name, low)
        _return_holes()
        report(phase, done / total)
    if done < total / 2:
        raise SelfTestFailed(f"only {done / total:.0%} of its layers' weights are in a form that can be quantized")


def _return_holes() -> None:
    """Gives the system what the temporary tensors have left free between those that stay: measured, as much memory as
    all of the model in fp32 in the end. Only glibc has a way to do that."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
