"""`prices` as the path of a file: read like the map itself, refused by its name, and applied when it changes."""

from pathlib import Path

import pytest

from gateway.config import ConfigError, effective, load_config
from tests.gateway.config.test_watch import watching, write

GOOD = "my-model: {input: 0.15, output: 0.60, cached_input: 0.05}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The configuration, in a folder that is not the working directory."""
    path = tmp_path / "refrain.yaml"
    write(path, "prices: ./prices.yaml\n")
    write(tmp_path / "prices.yaml", GOOD)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    return str(caught.value).splitlines()


def test_the_file_lies_beside_the_configuration_and_holds_the_map(path: Path) -> None:
    config = load_config(path, {})
    assert (config.prices["my-model"].input, config.prices["my-model"].cached_input) == (0.15, 0.05)
    assert effective(config)["prices"] == {"my-model": {"input": 0.15, "output": 0.6, "cached_input": 0.05}}


def test_it_may_lie_anywhere_and_use_the_environment(path: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "list.yml", "m: {input: '${IN}', output: 2}\n")
    for written in ("sub/list.yml", f"{tmp_path}/sub/list.yml", "${WHERE}"):
        write(path, f"prices: {written}\n")
        assert load_config(path, {"IN": "0.5", "WHERE": "sub/list.yml"}).prices["m"].input == 0.5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("my-model: {input: -1, output: 1}", ["my-model.input: must be at least 0"]),
        ("my-model: {input: .inf, output: 1}", ["my-model.input: must be a finite number"]),
        ("my-model: {input: 1}", ["my-model.output: is needed"]),
        ("my-model: {input: 1, ouput: 1, output: 1}", ["my-model.ouput: unknown setting; did you mean `output`?"]),
        ("a: {input: x, output: 1}\nb: 3", ["a.input: must be a number", "b: must be a mapping of settings"]),
        ("[1, 2]", ["must be a mapping of settings"]),
        ("a: {", ["line 2: no valid YAML: did not find expected node content"]),
        ("", ["the file is empty"]),
        ("a: {input: '${NOWHERE}', output: 1}", ["a.input: the environment variable NOWHERE is not set"]),
    ],
)
def test_a_broken_one_is_refused_by_its_name(path: Path, tmp_path: Path, content: str, said: list[str]) -> None:
    write(tmp_path / "prices.yaml", content)
    assert problems(path) == [f"prices (prices.yaml): {line}" for line in said]


def test_all_problems_are_told_at_once(path: Path, tmp_path: Path) -> None:
    write(path, "prices: prices.yaml\nserver: {prot: 1}\n")
    write(tmp_path / "prices.yaml", "m: {input: -1, output: 1}")
    assert problems(path) == [
        "server.prot: unknown setting; did you mean `port`?",
        "prices (prices.yaml): m.input: must be at least 0",
    ]


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    write(path, "prices: nowhere.yaml\n")
    assert problems(path) == ["prices: there is no file nowhere.yaml"]


@pytest.mark.parametrize("written", ["sk-CANARY-7f3a9c", "x" * 5000, '"a\\0b"', "."])
def test_what_is_not_even_named_like_a_file_is_not_repeated(path: Path, written: str) -> None:
    write(path, f"prices: {written}\n")
    assert problems(path) == ["prices: must be a mapping of models, or the path of a file with one"]


async def test_a_change_is_applied_and_a_broken_one_is_not(path: Path, tmp_path: Path) -> None:
    async with watching(path) as watched:
        write(tmp_path / "prices.yaml", "my-model: {input: -1, output: 1}")
        refused = await watched.logged("configuration refused")
        assert refused["problems"] == ["prices (prices.yaml): my-model.input: must be at least 0"]
        write(tmp_path / "prices.yaml", "my-model: {input: 2, output: 1}")
        assert (await watched.next()).prices["my-model"].input == 2
        write(path, "prices: {my-model: {input: 3, output: 1}}\n")
        assert (await watched.next()).prices["my-model"].input == 3
