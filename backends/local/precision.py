"""The number formats of computation and weights, decided without torch: the gateway needs them for the backend's
revision."""

import importlib.metadata
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from backends.local.cpu import cpu_flags

Precision = Literal["fp32", "bf16"]
"""What is computed in, and what weights are kept in that are not quantized."""
Quantization = Literal["none", "int8", "int4"]
"""Bits of the weights of the decoder layers."""

# Elsewhere bf16 runs, but without instructions for it: slower than fp32, and less exact.
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def choose_precision(wanted: str, *, flags: Collection[str], cuda: bool) -> Precision:
    """`auto` becomes bf16 where the hardware computes in it. Raises ValueError for an unknown name."""
    if wanted == "auto":
        return "bf16" if cuda or BF16_FLAGS & set(flags) else "fp32"
    if wanted == "fp32":
        return "fp32"
    if wanted == "bf16":
        return "bf16"
    raise ValueError(f"precision must be auto, fp32 or bf16, not {wanted!r}")


def resolve_precision(wanted: str) -> Precision:
    """What `wanted` means on this machine. Raises ValueError for an unknown name."""
    return choose_precision(wanted, flags=cpu_flags(), cuda=_cuda())


def check_quantization(wanted: str) -> Quantization:
    """`wanted`, which is one of the known ones. Raises ValueError for any other."""
    if wanted == "none":
        return "none"
    if wanted == "int8":
        return "int8"
    if wanted == "int4":
        return "int4"
    raise ValueError(f"quantize must be none, int8 or int4, not {wanted!r}")


def _cuda() -> bool:
    """Whether torch will find a GPU: there is a driver, and this torch was not built for the CPU alone."""
    try:
        return NVIDIA_DRIVER.exists() and not importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
