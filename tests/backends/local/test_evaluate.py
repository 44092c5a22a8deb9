"""Advice on a number format, from a model's behaviour on examples."""

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from backends.local.evaluate import evaluate
from backends.local.examples import BadExamples, Example
from backends.local.models import DEFAULT_MODEL, find
from backends.local.precision import Quantization
from gateway.cli import app
from tests.backends.local.small_models import write_folder

EXAMPLES = [
    Example(1, prompt="Count: 1 2 3", answer=" 4 5 6 7"),
    Example(2, answer="The quick brown fox jumps over the lazy dog. " * 20),
    Example(3, prompt="A question without an answer"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Path:
    return write_folder(tmp_path_factory.mktemp("folder"), tiny_gguf)


def ignore(phase: str, done: float | None = None) -> None:
    pass


def test_full_precision_equals_itself(folder: Path) -> None:
    found = evaluate(find(str(folder)), EXAMPLES, precision="fp32", quantize="none", threads=1, report=ignore)
    seen = found.comparison
    assert seen is not None
    assert (seen.agreement, seen.same_answers, seen.answers, seen.examples) == (1, 3, 3, 3)
    assert seen.full.perplexity == seen.low.perplexity
    file = (folder / "model.safetensors").stat().st_size
    assert file - 4096 < seen.full.weights == seen.low.weights < file  # all but the header


def test_what_is_scored(folder: Path) -> None:
    """All tokens of a text but the first, those of an answer, and those of a prompt that has none."""
    for example, tokens in ((EXAMPLES[0], 8), (Example(1, answer="fox fox"), 6), (Example(1, prompt="1 2"), 2)):
        found = evaluate(find(str(folder)), [example], precision="bf16", quantize="none", threads=1, report=ignore)
        assert found.comparison is not None
        assert found.comparison.tokens == tokens


def test_perplexity_is_that_of_the_model(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = "The quick brown fox."
    found = evaluate(
        find(str(folder)), [Example(1, answer=text)], precision="fp32", quantize="none", threads=1, report=ignore
    )
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        loss = AutoModelForCausalLM.from_pretrained(folder)(ids, labels=ids).loss
    assert found.comparison is not None
    assert found.comparison.full.perplexity == pytest.approx(float(loss.exp()), rel=1e-4)


def test_a_format_that_cannot_be_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_weight_int8pack_mm")
    found = evaluate(find(str(folder)), EXAMPLES, precision="fp32", quantize="int8", threads=1, report=ignore)
    assert found.comparison is None
    assert not found.advice.use
    assert "refuses it at load: torch" in found.advice.reasons[0]


def test_a_conversation_for_a_model_without_a_template(folder: Path) -> None:
    example = Example(7, ({"role": "user", "content": "Hi"},), answer="Hello")
    with pytest.raises(BadExamples, match="line 7: This model has no chat template"):
        evaluate(find(str(folder)), [example], precision="fp32", quantize="int8", threads=1, report=ignore)


def test_too_short(folder: Path) -> None:
    with pytest.raises(BadExamples, match="too short"):
        evaluate(
            find(str(folder)), [Example(1, answer="a")], precision="fp32", quantize="int8", threads=1, report=ignore
        )


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["engine", "eval", *args])


def test_the_command(tmp_path: Path, folder: Path) -> None:
    data = tmp_path / "examples.jsonl"
    data.write_text('{"prompt": "Count: 1 2 3", "completion": " 4 5 6"}\n')
    result = run("--data", str(data), "--model", str(folder), "--quantize", "int8", "--precision", "fp32", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == (0 if found["advice"]["use"] else 1)
    assert (found["model"], found["form"]) == (folder.name, "int8 and fp32")
    assert found["comparison"]["full"]["weights"] > found["comparison"]["low"]["weights"]
    assert "reading the examples in full precision 0%" in result.stderr.splitlines()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "fp32 without quantization is full precision itself"),
        (["--quantize", "int8", "--model", "nope.gguf"], "There is no file nope.gguf"),
    ],
)
def test_the_command_without_a_result(tmp_path: Path, args: list[str], message: str) -> None:
    data = tmp_path / "examples.txt"
    data.write_text("Some text.")
    result = run("--data", str(data), "--precision", "fp32", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert message in json.loads(run("--data", str(data), "--precision", "fp32", "--json", *args).stdout)["error"]


def test_the_command_with_a_bad_line(tmp_path: Path) -> None:
    data = tmp_path / "examples.jsonl"
    data.write_text('{"text": "fine"}\n{"text": 1}\n')
    result = run("--data", str(data), "--quantize", "int8")
    assert result.exit_code == 2
    assert "line 2: it is not one of" in result.stderr


LICENSE = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("quantize", ["int4", "dynamic"])
def test_the_real_model(quantize: Quantization | str) -> None:
    """int4 keeps the perplexity within 1 %; torch's dynamic int8 multiplies it, and is advised against."""
    text = LICENSE.read_text()[:6000] if LICENSE.exists() else Path(__file__).read_text()[:6000]

    def dynamic(linear: nn.Linear) -> nn.Module:
        made: Any = torch.ao.quantization.quantize_dynamic(nn.Sequential(linear), {nn.Linear}, dtype=torch.qint8)
        return made[0]  # type: ignore[no-any-return]

    found = evaluate(
        find(DEFAULT_MODEL),
        [Example(1, answer=text)],
        precision="fp32",
        quantize="int8" if quantize == "dynamic" else quantize,  # type: ignore[arg-type]
        threads=1,
        report=ignore,
        make=dynamic if quantize == "dynamic" else None,
    )
    assert found.comparison is not None
    if quantize == "int4":
        assert found.comparison.perplexity_ratio < 1.01
        assert found.comparison.agreement > 0.95
    else:
        assert not found.advice.use
        assert found.comparison.perplexity_ratio > 2
        assert any("perplexity" in reason for reason in found.advice.reasons)
