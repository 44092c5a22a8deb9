"""A GGUF file becomes a model folder: the same numbers, once, whole or not at all."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from backends.local.convert import cache_folder, converted
from backends.local.models import ModelNotFound


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ignore(phase: str, done: float | None = None) -> None:
    pass


def test_the_folder_has_the_same_numbers_under_the_other_names(
    tmp_path: Path, write_tiny_gguf: Callable[..., dict[str, Any]]
) -> None:
    expected = write_tiny_gguf(tmp_path / "tiny.gguf")
    folder = converted(tmp_path / "tiny.gguf", "tiny", ignore)
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(tensors[name], values, err_msg=name)


def test_configuration_and_tokenizer(tiny_gguf: Path) -> None:
    folder = converted(tiny_gguf, "tiny", ignore)
    config = json.loads((folder / "config.json").read_text())
    assert (
        config
        | {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 100_000,
            "tie_word_embeddings": True,
            "eos_token_id": 0,
        }
        == config
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("ab a<|end|>12", add_special_tokens=False).tokens == ["ab", "Ġa", "<|end|>", "1", "2"]


def test_progress_reaches_the_end_and_never_goes_back(tiny_gguf: Path) -> None:
    seen: list[float] = []
    converted(tiny_gguf, "tiny", lambda phase, done=None: seen.append(done) if done is not None else None)
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_converted_once(tiny_gguf: Path) -> None:
    phases: list[str] = []
    first = converted(tiny_gguf, "tiny", ignore)
    again = converted(tiny_gguf, "tiny", lambda phase, done=None: phases.append(phase))
    assert again == first
    assert not any("converting" in phase for phase in phases)


def test_another_file_of_the_same_name_is_another_folder(
    tmp_path: Path, write_tiny_gguf: Callable[..., dict[str, Any]]
) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", seed=0)
    first = converted(tmp_path / "tiny.gguf", "tiny", ignore)
    write_tiny_gguf(tmp_path / "tiny.gguf", seed=1)
    assert converted(tmp_path / "tiny.gguf", "tiny", ignore) != first


def test_what_a_killed_process_left_is_replaced(tiny_gguf: Path) -> None:
    folder = converted(tiny_gguf, "tiny", ignore)
    partial = folder.with_name(folder.name + ".partial")
    folder.rename(partial)
    (partial / "model.safetensors").write_bytes(b"half")
    (partial / "other").touch()
    assert converted(tiny_gguf, "tiny", ignore) == folder
    assert load_file(folder / "model.safetensors")
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_two_processes_at_once(tiny_gguf: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from backends.local.convert import converted;"
        "print(converted(Path(sys.argv[1]), 'tiny', lambda phase, done=None: print(phase)))"
    )
    command = [sys.executable, "-c", code, str(tiny_gguf)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert lines[0][-1] == lines[1][-1]
    assert sum("converting tiny" in output for output in lines) == 1
    assert load_file(Path(lines[0][-1]) / "model.safetensors")


@pytest.mark.parametrize("content", [b"", b"no model at all, but long enough to be one" * 10])
def test_a_file_that_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelNotFound, match="is no GGUF file"):
        converted(file, "broken", ignore)
    assert not list(cache_folder().glob("broken-????????????????"))


def test_another_architecture_goes_through_transformers(
    tmp_path: Path, write_tiny_gguf: Callable[..., dict[str, Any]]
) -> None:
    expected = write_tiny_gguf(tmp_path / "tiny.gguf", architecture="qwen2", bias=True)
    phases: list[str] = []
    folder = converted(tmp_path / "tiny.gguf", "tiny", lambda phase, done=None: phases.append(phase))
    assert "converting tiny with transformers" in phases
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(tensors[name], values, err_msg=name)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("ab a<|end|>", add_special_tokens=False).tokens == ["ab", "Ġa", "<|end|>"]
    assert converted(tmp_path / "tiny.gguf", "tiny", ignore) == folder


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        (
            "qwen2",
            r"architecture is qwen2, not llama, and transformers does not find model\.layers\.0\.self_attn\.k_proj",
        ),
        ("plamo", r"architecture is plamo, not llama, and transformers says: .*plamo.* not supported"),
    ],
)
def test_what_nobody_can_read(
    tmp_path: Path, write_tiny_gguf: Callable[..., dict[str, Any]], architecture: str, why: str
) -> None:
    """transformers would make up the weights that are missing: those of the biases, which this file has not."""
    write_tiny_gguf(tmp_path / "tiny.gguf", architecture=architecture)
    with pytest.raises(ModelNotFound, match=rf"cannot be converted: its {why}.*safetensors instead"):
        converted(tmp_path / "tiny.gguf", "tiny", ignore)
    assert not list(cache_folder().glob("tiny-????????????????"))
