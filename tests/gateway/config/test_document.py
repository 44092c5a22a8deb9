import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError
from gateway.config.document import MAX_BYTES, expand, parse


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return [str(problem) for problem in caught.value.problems]


def test_an_empty_document_is_an_empty_mapping() -> None:
    assert parse("") == {}
    assert parse("# nothing\n") == {}


def test_names_written_twice_and_names_that_are_no_text() -> None:
    assert problems("a:\n  b: 1\n  c: 2\n  b: 3\na: 4\n5: 6\noff: 7\n") == [
        "a: line 5: is there already, at line 1",
        "line 6: a name must be text; put it in quotes",
        "line 7: a name must be text; put it in quotes",
        "a.b: line 4: is there already, at line 2",
    ]


def test_aliases_and_merge_keys_work() -> None:
    text = "base: &base {ttl: 1h, x: 1}\none: {<<: *base, x: 2}\ntwo: {<<: *base}\n"
    assert parse(text) == {
        "base": {"ttl": "1h", "x": 1},
        "one": {"ttl": "1h", "x": 2},
        "two": {"ttl": "1h", "x": 1},
    }


def test_dates_stay_text() -> None:
    assert parse("a: 2026-01-31") == {"a": "2026-01-31"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!python/object/apply:os.system [ls]", "a: line 1: tags (`!...`) are not supported; put text in quotes"),
        ("a: !!binary aGk=", "a: line 1: tags (`!...`) are not supported; put text in quotes"),
        ("a: [1", "line 2: no valid YAML: did not find expected ',' or ']'"),
        ("a: *b", "line 1: no valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2", "line 2: no valid YAML: but found another document"),
        ("a: \x00", "no valid YAML: it holds a character or number that cannot be read"),
        ("a: " + "1" * 5_000, "no valid YAML: it holds a character or number that cannot be read"),
        ("a: &a [*a]", "line 1: more than 100000 values, aliases written out"),
    ],
)
def test_what_is_no_document(text: str, message: str) -> None:
    assert problems(text) == [message]


def test_a_few_lines_cannot_become_gigabytes() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]
    begin = time.monotonic()
    assert problems("\n".join(lines)) == ["line 5: more than 100000 values, aliases written out"]
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    "text", ["[" * 900 + "]" * 900, "[" * 200_000, "- " * 900 + "x", "{a: " * 900 + "1" + "}" * 900]
)
def test_deep_nesting_is_refused(text: str) -> None:
    assert len(text) < MAX_BYTES
    assert "deep" in problems(text)[0] or "depth" in problems(text)[0]


def test_variables_are_put_in() -> None:
    env = {"HOST": "db", "EMPTY": "", "TRICK": "x, role: admin}\nauth: {required: false} ${HOST}"}
    data = {"url": "redis://${HOST}:1/${EMPTY}", "list": ["${TRICK}", 5, None], "${HOST}": "$$5 $ $x $${HOST}"}
    assert expand(data, env) == {
        "url": "redis://db:1/",
        "list": [env["TRICK"], 5, None],
        "${HOST}": "$5 $ $x ${HOST}",
    }


def test_missing_variables_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        expand({"a": {"b": ["x", "${ONE}${TWO}"]}, "c": "${lost", "d": "${X:-y}"}, {})
    assert str(caught.value).splitlines() == [
        "a.b.1: the environment variable ONE is not set",
        "a.b.1: the environment variable TWO is not set",
        "c: `${` must begin a ${NAME}; the two characters alone are `$${`",
        "d: `${` must begin a ${NAME}; the two characters alone are `$${`",
    ]


@given(st.text())
def test_doubled_dollars_bring_any_text_through(text: str) -> None:
    assert expand({"a": text.replace("$", "$$")}, {}) == {"a": text}
