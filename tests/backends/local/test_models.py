"""From a name to weights."""

from pathlib import Path

import pytest

from backends.local.models import DEFAULT_MODEL, ModelNotFound, find, revision


def test_the_packaged_model() -> None:
    source = find(DEFAULT_MODEL)
    assert (source.name, source.kind) == ("SmolLM2-135M-Instruct", "gguf")
    assert Path(source.location).is_file()
    assert revision(DEFAULT_MODEL, "fp32") == f"local:SmolLM2-135M-Instruct@{source.fingerprint}:fp32:none"


def test_a_gguf_file(tiny_gguf: Path) -> None:
    source = find(str(tiny_gguf))
    assert (source.name, source.kind, source.location) == ("tiny", "gguf", str(tiny_gguf))


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    source = find(str(tmp_path))
    assert (source.name, source.kind, source.location) == (tmp_path.name, "folder", str(tmp_path))


def test_any_other_name_is_the_hubs() -> None:
    assert find("HuggingFaceTB/SmolLM2-360M-Instruct").kind == "hub"


@pytest.mark.parametrize(("name", "message"), [("nope.gguf", "There is no file"), ("", "has no config.json")])
def test_what_is_not_there(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message):
        find(str(tmp_path / name))
    assert "@missing:" in revision(str(tmp_path / name), "fp32")


def test_the_revision_changes_with_weights_precision_and_quantization(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    first = revision(str(tmp_path), "fp32")
    assert revision(str(tmp_path), "fp32") == first
    assert revision(str(tmp_path), "fp32", "none") == first
    assert len({first, *(revision(str(tmp_path), p, q) for p in ("fp32", "bf16") for q in ("int8", "int4"))}) == 5
    assert revision(str(tmp_path), "bf16") != first
    weights.write_bytes(b"other")
    assert revision(str(tmp_path), "fp32") != first
