"""A label must not have values that a client can make up."""

import pytest

from gateway.config import Config
from gateway.config.load import parse_config
from gateway.metrics.labels import ModelLabels

BACKENDS = """
backends:
  here: {kind: local, model: SmolLM2-135M-Instruct}
  there: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
"""


def config(text: str = 'models: {"house": there, "llama-*": there, "*": here}\n') -> Config:
    return parse_config(BACKENDS + text, {})


@pytest.mark.parametrize("model", ["house", "SmolLM2-135M-Instruct", "gpt-4o"])
def test_what_others_speak_of_too_has_its_name(model: str) -> None:
    assert ModelLabels().label(model, config()) == model


@pytest.mark.parametrize(
    ("model", "name"), [("gpt-4o-2024-08-06", "gpt-4o"), ("gemini-2.5-pro-made-up-7", "gemini-2.5-pro")]
)
def test_what_the_catalogue_takes_for_a_model_has_that_ones_name(model: str, name: str) -> None:
    """It goes by beginnings, and a client can make up ends."""
    assert ModelLabels().label(model, config()) == name


@pytest.mark.parametrize("model", ["made-up-1", "llama-*", "*", "llama-made-up", 'a"b'])
def test_what_only_a_client_speaks_of_is_other(model: str) -> None:
    assert ModelLabels().label(model, config()) == "other"


def test_a_price_names_a_model() -> None:
    prices = 'models: {"*": there}\nprices: {house: {input: 1.0, output: 2.0}}\n'
    assert ModelLabels().label("house", config(prices)) == "house"


def test_a_model_keeps_its_label_when_the_configuration_changes() -> None:
    """Or the counters of its label would go down."""
    labels = ModelLabels()
    without = config('models: {"*": there}\n')
    assert [labels.label("house", config()), labels.label("house", without)] == ["house", "house"]
    labels = ModelLabels()
    assert [labels.label("house", without), labels.label("house", config())] == ["other", "other"]
