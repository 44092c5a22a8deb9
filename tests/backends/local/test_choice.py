"""How an answer ends."""

from collections.abc import Sequence

import pytest

from backends.local.choice import Choice

TEXTS = {1: "Hel", 2: "lo", 3: " wor", 4: "ld", 9: ""}
END = 9


def decode(ids: Sequence[int]) -> str:
    return "".join(TEXTS[i] for i in ids)


def run(tokens: list[int], *, stops: Sequence[str] = (), max_tokens: int = 10) -> tuple[str, Choice]:
    choice = Choice(decode=decode, stops=stops, end_tokens={END}, max_tokens=max_tokens)
    text = ""
    for token in tokens:
        assert choice.finish_reason is None
        text += choice.push(token)
    return text, choice


@pytest.mark.parametrize(
    ("tokens", "stops", "max_tokens", "text", "reason"),
    [
        ([1, 2, END], [], 10, "Hello", "stop"),
        ([END], [], 10, "", "stop"),
        ([1, 2, 3], [], 3, "Hello wor", "length"),
        ([1, 2, 3], ["lo w"], 10, "Hel", "stop"),
        ([1, 2], ["lo w"], 2, "Hello", "length"),  # what was held back belongs to the answer after all
        ([1, 2, END], ["lo w"], 10, "Hello", "stop"),
        ([1, 2, 3], ["wor"], 3, "Hello ", "stop"),  # the stop string and the limit in the same token
        ([1, END], [], 2, "Hel", "stop"),
    ],
)
def test_the_end(tokens: list[int], stops: list[str], max_tokens: int, text: str, reason: str) -> None:
    shown, choice = run(tokens, stops=stops, max_tokens=max_tokens)
    assert (shown, choice.finish_reason, choice.tokens) == (text, reason, len(tokens))
