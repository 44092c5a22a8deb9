"""Paths into what a search service answers."""

from typing import Any

import pytest

from backends.retrievers.paths import ListPath, OnePath

ANSWER: dict[str, Any] = {
    "a": {"b": [10, {"c d": "x"}, None]},
    "hits": [{"n": 1, "ok": True}, {"n": 2}, {"n": 3, "ok": True}],
    "groups": [{"hits": [1, 2]}, {"hits": []}, {}, {"hits": [3]}],
    "text": '{"b": [1, 2]}',
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.a.b[0]", 10),
        ("$['a']['b'][1]['c d']", "x"),
        ('$["a"].b[-2]["c d"]', "x"),
        ("$.a.b[2]", None),
        ("$.a.b[3]", None),
        ("$.a.b[-4]", None),
        ("$.a.b.c", None),
        ("$.a[0]", None),
        ("$.nothing.here", None),
        ("$.text.b", None),
        ("$.text[0]", None),
        ("$", ANSWER),
    ],
)
def test_a_path_to_one_value(path: str, value: Any) -> None:
    assert OnePath(path).value(ANSWER) == value


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("$.a.b", [10, {"c d": "x"}, None]),
        ("$.hits", ANSWER["hits"]),
        ("$.hits[*].n", [1, 2, 3]),
        ("$.hits[?@.ok].n", [1, 3]),
        ("$.hits[0:2].n", [1, 2]),
        ("$.groups[*].hits[*]", [1, 2, 3]),
        ("$..n", [1, 2, 3]),
        ("$.none[*]", []),
        ("$.text[*]", []),
        ("$.none", None),
        ("$.a", None),
        ("$.text", None),
        ("$", None),
    ],
)
def test_a_path_to_a_list(path: str, values: list[Any] | None) -> None:
    assert ListPath(path).values(ANSWER, 10) == values


@pytest.mark.parametrize("root", ['[{"n": 1}]', '"x', None, 5, True], ids=ascii)
def test_what_is_no_object_or_list_is_not_parsed_again(root: Any) -> None:
    assert ListPath("$[*]").values(root, 10) is None
    assert ListPath("$..n").values(root, 10) is None
    assert ListPath("$").values(root, 10) is None
    assert OnePath("$.n").value(root) is None


def test_of_many_values_only_so_many_are_looked_for() -> None:
    assert ListPath("$..[*]").values([[0] * 1_000] * 1_000, 5) == [[0] * 1_000] * 6


def test_what_is_nested_too_deep_has_no_list() -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    assert ListPath("$..n").values(deep, 10) is None


@pytest.mark.parametrize(
    "path", ["", "a", "$.", "$.a[", "$ .a ", "a.b", "$.a|$.b", "$[?@.a =~ /x/]", "$[?match(@.a, 'x')]", "$.a.~", "^.a"]
)
def test_what_is_no_path(path: str) -> None:
    for kind in (OnePath, ListPath):
        with pytest.raises(ValueError, match="must be a JSON path") as caught:
            kind(path)
        assert caught.value.__suppress_context__  # the library quotes the path, which may be a secret out of place


@pytest.mark.parametrize("path", ["$.*", "$..a", "$.a[*]", "$['a','b']", "$[0:1]", "$[?@.a]"])
def test_a_path_into_a_result_leads_to_one_value(path: str) -> None:
    assert ListPath(path)
    with pytest.raises(ValueError, match="must lead to one value"):
        OnePath(path)


@pytest.mark.parametrize("path", ["$..a..b", "$..[?@..x]", "$.a[?$..b == $..c]"])
def test_a_path_that_could_take_for_ever(path: str) -> None:
    with pytest.raises(ValueError, match="more than once"):
        ListPath(path)


def test_dots_in_a_name_are_no_descent() -> None:
    assert OnePath("$['a..b..c']").value({"a..b..c": 1}) == 1


def test_a_path_nested_without_end() -> None:
    with pytest.raises(ValueError, match="must be a JSON path"):
        ListPath("$[?" + "(" * 400 + "@.a" + ")" * 400 + "]" + "[?" * 300)
