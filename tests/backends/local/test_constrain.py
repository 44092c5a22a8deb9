"""Whatever the model's scores, the answer obeys the schema."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from backends.local import constrain
from backends.local.constrain import Grammars
from backends.local.errors import RequestError
from backends.local.sampler import Drawn, Sampler, draw
from backends.local.work import Sampling

END = 0
VOCABULARY = 99  # what the tiny model has scores for; its tokenizer has one token more


@pytest.fixture(scope="module")
def tokenizer(tiny_gguf: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(tiny_gguf.parent), gguf_file=tiny_gguf.name)


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Grammars:
    return Grammars(tokenizer, frozenset({END}), VOCABULARY)


def answer(
    grammars: Grammars, schema: object, sampling: Sampling, *, scores: Callable[[], torch.Tensor], most: int = 400
) -> tuple[bytes, bool]:
    """An answer token by token, and whether it came to its end."""
    sampler = Sampler(sampling, 0, grammars.constraint(json.dumps(schema)))
    data = b""
    for _ in range(most):
        (drawn,) = draw(scores()[None], [sampler])
        assert isinstance(drawn, Drawn), drawn
        if drawn.token == END:
            return data, True
        data += grammars.spell(drawn.token)
        if drawn.last:
            return data, True
    return data, False


def any_scores(seed: int, size: int = VOCABULARY) -> Callable[[], torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return lambda: torch.randn(size, generator=source) * 3


LEAVES = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-2000, 2000),
        st.integers(0, 500),
    ),
    st.builds(
        lambda low, size: {"type": "number", "minimum": low, "maximum": low + size},
        st.integers(-2000, 2000),
        st.integers(0, 500),
    ),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
        st.integers(0, 4),
        st.integers(0, 6),
    ),
    st.sampled_from(["^[a-c]{2,5}$", "^(yes|no|ab*)$", "^[0-9]{4}-[0-9]{2}$", "^a b$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
    st.lists(
        st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text('ab "\\\n/{', max_size=5)),
        min_size=1,
        max_size=4,
    ).map(lambda values: {"enum": values}),
)


def _array(items: dict[str, Any], low: int, size: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": low + size}


def _object(properties: dict[str, Any], required: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:required],
        "additionalProperties": False,
    }


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_array, inner, st.integers(0, 2), st.integers(0, 2)),
        st.builds(_object, st.dictionaries(st.text("ab1 ", max_size=4), inner, max_size=3), st.integers(0, 3)),
    ),
    max_leaves=6,
)


def obeys(value: Any, schema: dict[str, Any]) -> bool:
    """For the schemas above."""
    if "enum" in schema:
        return any(type(value) is type(allowed) and value == allowed for allowed in schema["enum"])
    match schema["type"]:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return type(value) is int and bool(schema["minimum"] <= value <= schema["maximum"])
        case "number":
            return type(value) in (int, float) and bool(schema["minimum"] <= value <= schema["maximum"])
        case "string" if "pattern" in schema:
            return isinstance(value, str) and re.search(schema["pattern"], value) is not None
        case "string":
            return isinstance(value, str) and bool(schema["minLength"] <= len(value) <= schema["maxLength"])
        case "array":
            return (
                isinstance(value, list)
                and schema["minItems"] <= len(value) <= schema["maxItems"]
                and all(obeys(item, schema["items"]) for item in value)
            )
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= set(value) <= set(schema["properties"])
        and all(obeys(value[name], schema["properties"][name]) for name in value)
    )


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCHEMAS, st.integers(0, 1000), st.sampled_from([0.0, 1.0, 3.0]))
def test_answers_obey(grammars: Grammars, schema: dict[str, Any], seed: int, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=seed, top_p=0.9, presence_penalty=1.0)
    data, ended = answer(grammars, schema, sampling, scores=any_scores(seed), most=2000)
    assert ended, data
    assert obeys(msgspec.json.decode(data), schema), (schema, data)


def test_any_object(grammars: Grammars) -> None:
    ends = 0
    for seed in range(20):
        data, ended = answer(grammars, {"type": "object"}, Sampling(seed=seed), scores=any_scores(seed))
        ends += ended
        if ended:
            assert isinstance(json.loads(data), dict)  # numbers may be too large for a stricter reader
    assert ends > 5


def test_the_end_comes_with_the_last_token_where_nothing_can_follow(grammars: Grammars) -> None:
    constraint = grammars.constraint('{"enum":["ab"]}')
    for token, complete in ((3, False), (97, False), (3, True)):  # " ab "
        assert constraint.allowed()[token]
        assert not constraint.allowed()[END]
        constraint.accept(token)
        assert constraint.complete is complete


def test_end_tokens_may_come_where_more_could_follow(tokenizer: Any) -> None:
    grammars = Grammars(tokenizer, frozenset({0, 1}), VOCABULARY)
    constraint = grammars.constraint('{"type":"integer"}')
    assert not constraint.allowed()[:2].any()
    constraint.accept(17)  # "0" could not go on
    assert constraint.complete
    constraint = grammars.constraint('{"type":"integer"}')
    constraint.accept(18)
    assert not constraint.complete
    allowed = constraint.allowed()
    assert allowed[:2].all()
    assert sorted(allowed.nonzero()[0].tolist()) == [0, 1, *range(17, 27)]


def test_white_space_has_an_end(grammars: Grammars) -> None:
    constraint = grammars.constraint('{"type":"array","items":{"type":"boolean"}}')
    constraint.accept(60)  # "["
    space = 96
    for _ in range(24):
        assert constraint.allowed()[space]
        constraint.accept(space)
    assert not constraint.allowed()[space]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "Invalid type: strin"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "string", "pattern": "(["}, "regex parse error"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "look-around"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "Unsatisfiable"),
        ({"enum": []}, "Unsatisfiable"),
        ({"$ref": "#"}, "NoExtension"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "does not fetch"),
        ({"$ref": "file:///etc/passwd"}, "does not fetch"),
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
        ({"type": "object", "properties": {f"p{i}": {} for i in range(5000)}}, "grammar size"),
        ({"const": "x" * 70_000}, "70013 characters"),
        ({"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)]}, "too large"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(grammars: Grammars, schema: object, reason: str) -> None:
    for refused in (grammars.check, grammars.constraint):
        with pytest.raises(RequestError, match=reason) as error:
            refused(json.dumps(schema))
        assert (error.value.status, error.value.param, error.value.code) == (400, "response_format", "invalid_value")
        assert len(error.value.message) < 500


def test_a_deep_schema_is_refused(grammars: Grammars) -> None:
    with pytest.raises(RequestError, match="recursion limit"):
        grammars.check('{"items":' * 3000 + "{}" + "}" * 3000)


def test_a_large_schema_within_the_limits(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "boolean"} for i in range(900)}}
    data, _ = answer(grammars, schema, Sampling(seed=1), scores=any_scores(1), most=50)
    assert data.startswith(b"{")


def test_scores_that_rule_out_all_that_may_come(grammars: Grammars) -> None:
    scores = torch.full((1, VOCABULARY), -torch.inf)
    scores[0, 50] = 1
    (drawn,) = draw(scores, [Sampler(Sampling(), 0, grammars.constraint('{"type":"object"}'))])
    assert isinstance(drawn, Exception)


def test_few_schemas_are_kept(grammars: Grammars) -> None:
    for i in range(constrain.KEPT + 3):
        grammars.check(json.dumps({"const": f"a{i}"}))
    assert len(grammars._compiled) == constrain.KEPT
    constraint = grammars.constraint('{"const":"a0"}')  # gone, and made again
    assert constraint.allowed().sum() == 1


def test_many_threads(grammars: Grammars) -> None:
    """Compiling, and answers of one schema at the same time: the copies share states of the lexer."""
    schemas = [{"type": "object", "properties": {f"a{i}": {"type": "string"}}} for i in range(12)]
    expected = [answer(grammars, schema, Sampling(seed=2), scores=any_scores(2), most=60) for schema in schemas]
    found: list[list[tuple[bytes, bool]]] = []

    def work() -> None:
        found.append([answer(grammars, schema, Sampling(seed=2), scores=any_scores(2), most=60) for schema in schemas])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 4


def test_a_tokenizer_that_the_library_cannot_read() -> None:
    class Slow:
        def __len__(self) -> int:
            return 99

        def decode(self, ids: list[int]) -> str:
            return "é" * ids[0]

    grammars = Grammars(Slow(), frozenset({END}), VOCABULARY)
    assert grammars.spell(2) == "éé".encode()
    with pytest.raises(RequestError) as error:
        grammars.check('{"type":"object"}')
    assert (error.value.param, error.value.code) == ("response_format", "unsupported_parameter")


def test_a_model_with_more_scores_than_the_tokenizer_has_tokens(tokenizer: Any) -> None:
    grammars = Grammars(tokenizer, frozenset({END}), 128)
    allowed = grammars.constraint('{"type":"string"}').allowed()
    assert allowed.shape == (128,)
    assert allowed.dtype == np.bool_
    assert not allowed[100:].any()
