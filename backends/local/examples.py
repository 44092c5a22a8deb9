"""Reading a user's own examples for an evaluation: JSONL of conversations, prompts or texts, or a plain text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMS = (
    'one of {"messages": [{"role": ..., "content": ...}, ...]}, {"prompt": ..., "completion": ...} and {"text": ...}'
)
MAX_BYTES = 64 * 2**20  # a day's work for a CPU


class BadExamples(Exception):
    """The file has no usable examples. The text says where and why."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt (`messages`, or else `prompt`) and the answer to it; either may be empty, but not both.

    A text is an answer to nothing; a conversation without an answer of the assistant is a prompt only."""

    line: int
    messages: tuple[dict[str, str], ...] = ()
    prompt: str = ""
    answer: str = ""


def read_examples(path: Path) -> list[Example]:
    """All examples of the file, at least one. A file whose name ends in .jsonl or .json has one in each line that is
    not blank, any other is one text. Raises BadExamples with the number of the line."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadExamples(f"{path} is over {MAX_BYTES >> 20} MiB. A few hundred examples are enough.")
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadExamples(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadExamples(f"{path} is no UTF-8 text (byte {error.start}).") from error
    if path.suffix not in (".jsonl", ".json"):
        examples = [Example(1, answer=content)] if content.strip() else []
    else:
        # Not splitlines: it also splits at characters that may stand inside a JSON string.
        lines = enumerate(content.split("\n"), 1)
        examples = [_parse(path, number, line) for number, line in lines if line.strip()]
    if not examples:
        raise BadExamples(f"{path} has no examples. A line is {FORMS}.")
    return examples


def _parse(path: Path, number: int, line: str) -> Example:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad(path, number, f"is no JSON ({error})") from error
    match value:
        case {"messages": list(messages)} if messages:
            return _conversation(path, number, messages)
        case {"prompt": str(prompt), "completion": str(completion)} if prompt and completion:
            return Example(number, prompt=prompt, answer=completion)
        case {"text": str(text)} if text:
            return Example(number, answer=text)
    raise _bad(path, number, f"is not {FORMS}, none of them empty")


def _conversation(path: Path, number: int, messages: list[Any]) -> Example:
    plain: list[dict[str, str]] = []
    for index, message in enumerate(messages):
        match message:
            case {"role": str(role), "content": str(content)}:
                plain.append({"role": role, "content": content})
            case _:
                raise _bad(path, number, f"has a messages[{index}] without a role and a content that are text")
    if len(plain) > 1 and plain[-1]["role"] == "assistant" and plain[-1]["content"]:
        return Example(number, tuple(plain[:-1]), answer=plain[-1]["content"])
    return Example(number, tuple(plain))


def _bad(path: Path, number: int, why: str) -> BadExamples:
    return BadExamples(f"{path}, line {number}: it {why}.")
