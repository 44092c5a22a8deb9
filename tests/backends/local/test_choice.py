"""How an answer ends, and which log probabilities go with its text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.local.choice import Choice
from backends.local.sampler import Drawn, Logprobs
from backends.local.work import TokenLogprob

TEXTS = {1: b"Hel", 2: b"lo", 3: b" wor", 4: b"ld", 5: b"", 6: b"\xf0\x9f", 7: b"\x8e", 8: b"\x89!", 9: b""}
END = 9


def decode(ids: Sequence[int]) -> str:
    return b"".join(TEXTS[i] for i in ids).decode("utf-8", "replace")


def open_choice(stops: Sequence[str] = (), max_tokens: int = 10) -> Choice:
    return Choice(index=0, decode=decode, spell=TEXTS.__getitem__, stops=stops, end_tokens={END}, max_tokens=max_tokens)


def run(choice: Choice, tokens: Sequence[int], last: int | None = None) -> list[tuple[str, list[int]]]:
    """The text after each token, and the tokens whose log probabilities came with it; `last` is the place of the token
    that completes a grammar. A token's log probability is minus its id."""
    pieces = []
    for place, token in enumerate(tokens):
        assert choice.finish_reason is None
        logprobs = Logprobs(-float(token), ((token, -float(token)), (END, -20.0)))
        text, told = choice.push(Drawn(token, logprobs, last=place == last))
        pieces.append((text, [round(-logprob.chosen.logprob) for logprob in told]))
    return pieces


@pytest.mark.parametrize(
    ("tokens", "stops", "max_tokens", "text", "told", "reason"),
    [
        ([1, 2, END], [], 10, "Hello", [1, 2], "stop"),
        ([END], [], 10, "", [], "stop"),
        ([1, 2, 3], [], 3, "Hello wor", [1, 2, 3], "length"),
        ([1, 2, 3], ["lo w"], 10, "Hel", [1], "stop"),
        ([1, 2, 3], ["o w"], 10, "Hell", [1, 2], "stop"),  # a token that the cut goes through is told
        ([1, 2], ["lo w"], 2, "Hello", [1, 2], "length"),  # what was held back belongs to the answer after all
        ([1, 2, END], ["lo w"], 10, "Hello", [1, 2], "stop"),
        ([1, 2, 3], ["wor"], 3, "Hello ", [1, 2, 3], "stop"),  # the stop string and the limit in the same token
        ([1, END], [], 2, "Hel", [1], "stop"),
        ([1, 5, END], [], 10, "Hel", [1, 5], "stop"),
        ([1, 5, 2, 3], ["lo "], 10, "Hel", [1], "stop"),
        ([1, 6, 7], [], 3, "Hel", [1, 6, 7], "length"),  # half a character is never shown
        ([6, 7, 8, END], ["!"], 10, "\U0001f389", [6, 7, 8], "stop"),
    ],
)
def test_the_end(tokens: list[int], stops: list[str], max_tokens: int, text: str, told: list[int], reason: str) -> None:
    choice = open_choice(stops, max_tokens)
    if "!" in stops:
        tokens = tokens[:3]
    pieces = run(choice, tokens)
    assert "".join(piece for piece, _ in pieces) == text
    assert [token for _, some in pieces for token in some] == told
    assert (choice.finish_reason, choice.tokens) == (reason, len(tokens))


def test_a_complete_grammar_ends_the_answer_with_all_its_text() -> None:
    choice = open_choice(["o w"])
    assert run(choice, [1, 2], last=1) == [("Hel", [1]), ("lo", [2])]
    assert choice.finish_reason == "stop"


def test_log_probabilities_come_with_the_text_of_their_tokens() -> None:
    assert run(open_choice(), [1, 5, 6, 7, 8, 2]) == [
        ("Hel", [1]),
        ("", []),
        ("", []),
        ("", []),
        ("\U0001f389!", [5, 6, 7, 8]),
        ("lo", [2]),
    ]


def test_log_probabilities_wait_with_text_that_may_be_a_stop_string() -> None:
    assert run(open_choice(["o worm"]), [1, 2, 3, 4]) == [("Hel", [1]), ("l", [2]), ("", []), ("o world", [3, 4])]


def test_a_token_has_its_text_and_its_bytes() -> None:
    choice = open_choice()
    choice.push(Drawn(6, Logprobs(-0.5, ((1, -0.1), (6, -0.5)))))
    choice.push(Drawn(7, Logprobs(-0.5, ())))
    _, told = choice.push(Drawn(8, Logprobs(-0.5, ())))
    assert [logprob.chosen.data for logprob in told] == [b"\xf0\x9f", b"\x8e", b"\x89!"]
    assert [logprob.chosen.text for logprob in told] == ["\ufffd", "\ufffd", "\ufffd!"]
    assert [(other.text, other.data, other.logprob) for other in told[0].top] == [
        ("Hel", b"Hel", -0.1),
        ("\ufffd", b"\xf0\x9f", -0.5),
    ]


def test_without_log_probabilities_there_are_none() -> None:
    assert open_choice().push(Drawn(1)) == ("Hel", ())


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]), max_size=12),
    st.lists(st.sampled_from(["lo w", "Hel", "d", "\U0001f389!", "orlx"]), max_size=2),
)
def test_log_probabilities_spell_the_answer(tokens: list[int], stops: list[str]) -> None:
    """In order, none lost, and enough of them for the text at any time."""
    choice = open_choice(stops, max_tokens=12)
    told: list[TokenLogprob] = []
    shown = ""
    for token in [*tokens, END]:
        if choice.finish_reason is not None:
            break
        text, some = choice.push(Drawn(token, Logprobs(-1.0, ())))
        shown += text
        told += some
        assert b"".join(logprob.chosen.data for logprob in told).decode("utf-8", "replace").startswith(shown)
    spelled = [TEXTS[token] for token in tokens]
    assert [logprob.chosen.data for logprob in told] == spelled[: len(told)]
    if "\ufffd" not in decode(tokens) and not any(stop in decode(tokens) for stop in stops):
        assert shown == decode(tokens)
        assert len(told) == len(tokens)
