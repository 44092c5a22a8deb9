"""A user's examples, and what is wrong with them."""

import json
from pathlib import Path

import pytest

from backends.local.examples import BadExamples, Example, read_examples

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
COMPLETION = {"prompt": "One, two,", "completion": " three"}


def write(tmp_path: Path, *lines: object, name: str = "examples.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_all_forms(tmp_path: Path) -> None:
    question = {"messages": CHAT["messages"][:1], "tools": None}
    path = write(tmp_path, CHAT, "", COMPLETION, {"text": "A line\u2028break"}, question, "  ")
    user = {"role": "user", "content": "Hi"}
    assert read_examples(path) == [
        Example(1, (user,), answer="Hello"),
        Example(3, prompt="One, two,", answer=" three"),
        Example(4, answer="A line\u2028break"),
        Example(5, (user,)),
    ]


def test_a_plain_text_is_one_example(tmp_path: Path) -> None:
    path = write(tmp_path, "Line one.", "{not JSON}", name="book.txt")
    assert read_examples(path) == [Example(1, answer="Line one.\n{not JSON}")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is not one of"),
        ({"text": ""}, "none of them empty"),
        ({"text": 3}, "is not one of"),
        ({"prompt": "x"}, "is not one of"),
        ({"messages": []}, "is not one of"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "user"}]}, r"has a messages\[1\] without"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"has a messages\[0\] without"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, why: str) -> None:
    with pytest.raises(BadExamples, match=rf"examples\.jsonl, line 2: it .*{why}"):
        read_examples(write(tmp_path, CHAT, line))


@pytest.mark.parametrize("name", ["examples.jsonl", "book.txt"])
def test_no_examples(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadExamples, match="has no examples"):
        read_examples(write(tmp_path, "", "  ", name=name))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadExamples, match=r"cannot be read: No such file or directory\."):
        read_examples(tmp_path / "none.jsonl")
    with pytest.raises(BadExamples, match="cannot be read: Is a directory"):
        read_examples(tmp_path)


def test_no_text(tmp_path: Path) -> None:
    path = tmp_path / "image.txt"
    path.write_bytes(b"abc\xff")
    with pytest.raises(BadExamples, match=r"no UTF-8 text \(byte 3\)"):
        read_examples(path)
