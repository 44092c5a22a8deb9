"""Templates of questions: whatever is put in stays one value."""

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest

from backends.retrievers.body import DEFAULT, LONGEST, Template, parameters

HOSTILE = [
    "plain",
    "",
    'a "quoted" word',
    '"}, "admin": true, "x": "',
    "back\\slash \\",
    '\\"',
    "new\nline\r\ttab",
    "{query} {top_k} {permissions}",
    "{permissions}",
    "{{}} {",
    "\x00\x1f\u2028",
    "ünïcode 😀",
    "</script>",
    "\\u0022",
]


@pytest.mark.parametrize("query", HOSTILE, ids=ascii)
def test_a_question_stays_one_string(query: str) -> None:
    template = Template('{"q": {query}, "k": {top_k}, "who": [{permissions}], "{x}": "{}", "again": {query}}')
    filled = json.loads(template.fill(query, 7, frozenset({query or "p", "hr"})))
    assert filled == {"q": query, "k": 7, "who": [sorted([query or "p", "hr"])], "{x}": "{}", "again": query}


def test_who_may_see_everything_is_not_who_may_see_nothing() -> None:
    template = Template(DEFAULT)
    assert json.loads(template.fill("q", 1, None)) == {"query": "q", "top_k": 1, "permissions": None}
    assert json.loads(template.fill("q", 1, frozenset()))["permissions"] == []
    assert json.loads(template.fill("q", 1, frozenset({"b", "a"})))["permissions"] == ["a", "b"]
    assert parameters("q", 1, None) == "query=q&top_k=1"
    assert parameters("q", 1, frozenset()) == "query=q&top_k=1&permissions="
    assert parameters("q", 1, frozenset({"b", "a"})) == "query=q&top_k=1&permissions=a&permissions=b"


@pytest.mark.parametrize("query", [*HOSTILE, "a&top_k=9#x?y=+%26%"], ids=ascii)
def test_a_question_stays_one_parameter(query: str) -> None:
    encoded = parameters(query, 3, frozenset({"a&b=c"}))
    assert encoded.isascii()
    assert encoded.isprintable()
    assert " " not in encoded
    assert parse_qsl(encoded, keep_blank_values=True) == [("query", query), ("top_k", "3"), ("permissions", "a&b=c")]


def test_what_is_no_unicode_cannot_be_sent() -> None:
    for make in (Template(DEFAULT).fill, parameters):
        with pytest.raises(UnicodeEncodeError):
            make("lone \ud800", 1, None)


JSON = "must be JSON once it is filled"
PLACE = "only where a value may stand"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold {query}"),
        ('{"q": "{ query }"}', "must hold {query}"),
        ('{"q": "{query}"}', JSON),
        ('{"q": "about {query}"}', JSON),
        ('{"q": {query}, "who": "{permissions}"}', JSON),
        ('{"q": {query}', JSON),
        ('{"q": {query}}}', JSON),
        ('{"q": {query}, "x": {other}}', JSON),
        ('{"q": {query}, "x": NaN}', JSON),
        ("{query}{query}", JSON),
        ('{"\ud800": {query}}', JSON),
        ("[" * 5_000 + "{query}" + "]" * 5_000, JSON),
        ("{{query}: 1}", PLACE),
        ('{"q": {query}, "k": "{top_k}"}', PLACE),
        ('{"q": {query}, "q": {query}}', PLACE),
        ('{"q": {query}, "x": "' + "x" * LONGEST + '"}', f"at most {LONGEST}"),
    ],
    ids=lambda value: ascii(value[:40]),
)
def test_templates_that_cannot_work(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("{", r"\{")):
        Template(text)


@pytest.mark.parametrize(
    ("text", "filled", "names"),
    [
        ("{query}", "Q", {"query"}),
        (' [ {query}, {"a": {query}} ] ', ["Q", {"a": "Q"}], {"query"}),
        ('{"{query": {query}, "b": "\\u007bquery}"}', {"{query": "Q", "b": "{query}"}, {"query"}),
        ('{"a": {query}, "b": {permissions}}', {"a": "Q", "b": ["p"]}, {"query", "permissions"}),
    ],
)
def test_templates_that_work(text: str, filled: Any, names: set[str]) -> None:
    template = Template(text)
    assert json.loads(template.fill("Q", 5, frozenset({"p"}))) == filled
    assert template.names == names
