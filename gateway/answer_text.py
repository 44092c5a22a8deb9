"""What a stored answer says: the text by which answers are compared."""

from typing import Any

import msgspec

from cache.entry import Entry
from cache.retrieval import said


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Answer).decode


def answer_text(entry: Entry) -> str | None:
    """What a stored chat answer says; None where it calls tools, refuses, or is of another shape. Results of a search
    say which pieces were found."""
    if entry.api == "search":
        return said(entry.body)
    try:
        [choice] = _decode(entry.body).choices
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    message = choice.message
    if choice.finish_reason != "stop" or message.tool_calls or message.function_call or message.refusal:
        return None
    return message.content or None
