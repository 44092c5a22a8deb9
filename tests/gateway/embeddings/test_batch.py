"""A request for embeddings, understood: what is refused, what is the same, and what goes upstream."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway
from gateway.errors import ApiError
from gateway.principal import Principal
from tests.gateway.embeddings.asking import batch, key

PINNED = {
    "text": "6bd91a41ed0206355bad139381f6ff242b227eb89f44dfa0602b9e3bc1290fdc",
    "tokens": "502590c4a0bc7bae8bc9e19426da050f80c9164ce94516b2650935724de64f85",
    "whole": "d8d76856716ab63b52f201b4b03939db3ac7e3d562d4042dfb2be013966324c0",
}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (None, "input"),
        ("", "input"),
        ([], "input"),
        (7, "input"),
        (1.5, "input"),
        (True, "input"),
        ({"text": "a"}, "input"),
        (["a"] * 2049, "input"),
        (["a", ""], "input[1]"),
        (["a", "b", "c", 7], "input[3]"),
        (["a", ["b"]], "input[1]"),
        (["a", None], "input[1]"),
        ([None], "input[0]"),
        ([True], "input[0]"),
        ([1.0], "input[0]"),
        ([-1], "input[0]"),
        ([1, 2, 3, -1], "input[3]"),
        ([1, 2, 3, True], "input[3]"),
        ([1, 2, 3, 4.5], "input[3]"),
        ([1, 2, 3, "a"], "input[3]"),
        ([[1], []], "input[1]"),
        ([[1], "a"], "input[1]"),
        ([[1], 2], "input[1]"),
        ([[1], [2, -3]], "input[1][1]"),
        ([["a"]], "input[0][0]"),
        ([[[1]]], "input[0][0]"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_an_input_that_is_none_is_refused_by_its_place(asked: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        batch(asked)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert f"`{param}`" in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "hex"),
        ("encoding_format", 1),
        ("encoding_format", ["float"]),
        ("dimensions", 0),
        ("dimensions", -1),
        ("dimensions", True),
        ("dimensions", 1.5),
        ("dimensions", "8"),
        ("model", None),
        ("model", ""),
        ("cache", []),
    ],
)
def test_another_field_that_is_wrong_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        batch(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)


def test_so_many_as_may_be() -> None:
    many = batch([str(i) for i in range(2048)])
    assert len(many.keys) == len(set(many.keys)) == 2048
    assert len(batch(list(range(5000))).keys) == 1  # one text, in tokens


@pytest.mark.parametrize(
    "more",
    [
        {"encoding_format": "float"},
        {"encoding_format": "base64"},
        {"encoding_format": None},
        {"dimensions": None},
        {"user": "u123"},
        {"metadata": {"a": "b"}},
        {"cache": {"ttl": 60}},
        {"headers": {"x-stainless-lang": "python"}},
    ],
    ids=str,
)
def test_what_changes_no_vector_is_in_no_key(more: dict[str, Any]) -> None:
    assert key(**more) == key()


@pytest.mark.parametrize(
    "more",
    [
        {"model": "n"},
        {"dimensions": 8},
        {"dimensions": 9},
        {"input_type": "query"},
        {"input_type": None},
        {"prompt": " Hello? "},
        {"endpoint": "other"},
        {"endpoint": "backed"},
        {"endpoint": "personal"},
        {"endpoint": "tolerant"},
        {"principal": Principal("globex", "alice", frozenset({"hr"}))},
        {"headers": {"openai-beta": "v2"}},
        {"query": "api-version=2024-10-21"},
    ],
    ids=str,
)
def test_what_may_change_a_vector_is_in_the_key(more: dict[str, Any]) -> None:
    assert key(**more) != key()


def test_the_scope_is_the_endpoint_s() -> None:
    bob = Principal("acme", "bob", frozenset())
    assert key(principal=bob) == key()
    assert key(principal=bob, endpoint="personal") != key(endpoint="personal")


def test_one_element_has_one_key_wherever_it_stands() -> None:
    assert key(["Hello?"]) == key("Hello?") == key(["Hello?", "Hello?"])
    assert batch(["a", "Hello?"]).keys[1].hex() == key()
    assert key([1, 2]) == key([[1, 2]]) == key([[1, 2], [1, 2]])


def test_a_text_is_never_tokens() -> None:
    spelt = ["1,2", "[1,2]", "[1, 2]", "\x01\x02", "tokens1,2"]
    assert len({key([1, 2]), key([12]), *map(key, spelt)}) == 2 + len(spelt)


token = st.integers(min_value=0, max_value=2**70)
element = st.one_of(st.text(st.characters(codec="utf-8"), min_size=1), st.lists(token, min_size=1))


@given(element, element)
def test_elements_share_a_key_only_when_they_are_equal(one: Any, other: Any) -> None:
    assert (key([one]) == key([other])) == (one == other)


def test_texts_are_compared_as_the_endpoint_says_and_sent_as_they_came() -> None:
    texts = [" Cafe\u0301\r\n", "Café"]
    assert len(batch(texts).keys) == 2
    tolerant = batch(texts, endpoint="tolerant")
    assert (tolerant.places, len(tolerant.keys)) == ((0, 0), 1)
    assert json.loads(tolerant.call([0]).body)["input"] == texts[:1]


def test_places_and_elements() -> None:
    asked = batch(["b", "a", "b", "c", "a"])
    assert [e.sent for e in asked.elements] == ["b", "a", "c"]
    assert asked.places == (0, 1, 0, 2, 1)


@pytest.mark.parametrize(
    ("asked", "wanted", "sent"),
    [
        ("a", [0], "a"),
        (["a"], [0], ["a"]),
        (["a", "b", "c"], [1], ["b"]),
        (["a", "b", "a", "c"], [0, 2], ["a", "c"]),
        ([1, 2], [0], [1, 2]),
        ([[1, 2]], [0], [[1, 2]]),
        ([[1, 2], [3]], [1], [[3]]),
    ],
    ids=str,
)
def test_only_what_is_wanted_goes_upstream_in_the_form_in_which_it_came(asked: Any, wanted: Any, sent: Any) -> None:
    more = {"dimensions": 8, "user": "u1", "odd": {"x": 1.50}, "encoding_format": "base64", "cache": {"ttl": 5}}
    call = batch(asked, query="api-version=1&x=y", headers={"openai-beta": "v2"}, **more).call(wanted)
    more.pop("cache")
    assert json.loads(call.body) == {"model": "m", "input": sent, **more}
    assert (call.path, call.query, call.headers) == ("embeddings", "api-version=1", (("openai-beta", "v2"),))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, None),
        ({"endpoint": "careful"}, None),  # there is nothing sampled in a vector
        ({"endpoint": "nothing"}, "tier_off"),
        ({"headers": {"x-refrain-tier": "semantic"}}, "tier_not_asked"),
        ({"headers": {"x-refrain-tier": "exact"}}, None),
        ({"headers": {"cache-control": "no-store"}}, "no_store"),
        ({"cache": {"no-store": True}}, "no_store"),
        ({"headers": {"cache-control": "no-cache"}}, None),
    ],
    ids=str,
)
def test_which_requests_pass_by_the_cache(more: dict[str, Any], why: str | None) -> None:
    assert batch(**more).ask.bypass == why


def test_the_key_of_the_request_is_that_of_all_its_elements_in_their_order() -> None:
    keys = [batch(x).ask.key for x in ("a", ["a", "a"], ["a", "b"], ["b", "a"])]
    assert len(set(keys)) == len(keys)
    assert batch(["a", "b"], encoding_format="base64").ask.key == batch(["a", "b"]).ask.key


def made() -> dict[str, str]:
    more: dict[str, Any] = {"dimensions": 256, "query": "api-version=1", "odd": {"b": 1, "a": [0.5, None]}}
    return {
        "text": key("Grüße", **more),
        "tokens": key([1, 2, 300], **more),
        "whole": batch(["a", "b", "a"], **more).ask.key.hex(),
    }


def test_the_keys_of_fixed_requests() -> None:
    """A changed key empties every store there is: change this knowingly."""
    assert made() == PINNED


def test_another_process_makes_the_same_keys() -> None:
    script = "import json; from tests.gateway.embeddings.test_batch import made; print(json.dumps(made()))"
    answer = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(gateway.__file__).parent.parent,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout) == PINNED
