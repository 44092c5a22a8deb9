"""What vectors are asked of: `input`, checked and taken apart."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cache.framing import digest
from gateway.errors import ApiError, bad_request

MOST = 2_048
"""Elements of one request, as at OpenAI."""
KINDS = "a string, a list of strings, a list of token ids, or a list of lists of token ids"


@dataclass(frozen=True, slots=True)
class Element:
    """One text, or one list of token ids. `sent` is it as it came; `content` says what it is: equal elements have equal
    ones, a text and token ids never. `weight` is how long it is, in bytes or in tokens, never 0."""

    sent: str | list[int] = field(repr=False)
    content: tuple[bytes, bytes] = field(repr=False)
    weight: int

    def key(self, context: bytes) -> bytes:
        """32 bytes, of this element of a request that is otherwise `context`."""
        return digest("refrain.embedding.1", [context, *self.content])


def read_input(value: Any, clean: Callable[[str], str]) -> tuple[list[Element], bool]:
    """The elements of `input` in their order, and whether it is one that stands in no list. `clean` is what an endpoint
    does to a text before it compares it. Raises ApiError 400."""
    if isinstance(value, str):
        return [_text(value, "input", clean)], True
    if not isinstance(value, list):
        raise bad_request(f"`input` is required: {KINDS}.", param="input")
    if not value:
        raise bad_request("`input` must have at least one element.", param="input")
    if type(value[0]) is int:  # a list of numbers is one text, already in tokens
        return [_tokens(value, "input")], True
    if len(value) > MOST:
        raise bad_request(f"`input` has {len(value)} elements; at most {MOST} are taken at once.", param="input")
    if isinstance(value[0], str):
        return [_text(item, f"input[{i}]", clean) for i, item in enumerate(value)], False
    return [_tokens(item, f"input[{i}]") for i, item in enumerate(value)], False


def _text(value: Any, name: str, clean: Callable[[str], str]) -> Element:
    if not isinstance(value, str):
        raise _wrong(name, "a string, as the elements before it are")
    if not value:
        raise bad_request(f"`{name}` must not be empty.", param=name)
    return Element(value, (b"text", clean(value).encode()), len(value.encode()))


def _tokens(value: Any, name: str) -> Element:
    if not isinstance(value, list):
        raise _wrong(name, "a list of token ids" if name != "input[0]" else "a string or a list of token ids")
    if not value:
        raise bad_request(f"`{name}` must not be empty.", param=name)
    for i, token in enumerate(value):
        if type(token) is not int or token < 0:
            raise _wrong(f"{name}[{i}]", "a token id: a whole number, 0 or more")
    return Element(value, (b"tokens", ",".join(map(str, value)).encode()), len(value))


def _wrong(name: str, what: str) -> ApiError:
    return bad_request(f"`{name}` must be {what}.", param=name)
