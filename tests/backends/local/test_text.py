"""However the tokens fall, the text is the same, no character is cut and no stop string shows."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders

from backends.local.text import PATIENCE, Detokenizer, StopMatcher


@st.composite
def split_bytes(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    """Bytes cut into pieces at any places, empty pieces included."""
    whole = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def detokenize(pieces: list[bytes]) -> list[str]:
    def decode(ids: Sequence[int]) -> str:
        return b"".join(pieces[i] for i in ids).decode("utf-8", "replace")

    detokenizer = Detokenizer(decode)
    return [detokenizer.push(i) for i in range(len(pieces))]


ENCODED = st.text(st.characters(exclude_characters="\ufffd", codec="utf-8")).map(str.encode)


@pytest.mark.slow
@given(split_bytes(ENCODED))
@example([b"\xf0", b"\x9f", b"\x8e", b"\x89"])
def test_text_of_any_split_is_whole_and_no_character_is_cut(pieces: list[bytes]) -> None:
    texts = detokenize(pieces)
    assert "".join(texts) == b"".join(pieces).decode()
    assert "\ufffd" not in "".join(texts)


@given(split_bytes(st.binary(max_size=40)))
def test_bytes_that_are_no_text_lose_at_most_their_end(pieces: list[bytes]) -> None:
    whole = b"".join(pieces).decode("utf-8", "replace")
    shown = "".join(detokenize(pieces))
    assert whole.startswith(shown)
    assert set(whole[len(shown) :]) <= {"\ufffd"}


@given(st.text(st.characters(exclude_characters="\ufffd", codec="utf-8")))
def test_byte_fallback_tokens(text: str) -> None:
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokens = [f"<0x{byte:02X}>" for byte in text.encode()]
    detokenizer = Detokenizer(lambda ids: decoder.decode([tokens[i] for i in ids]))
    assert "".join(detokenizer.push(i) for i in range(len(tokens))) == text


def test_a_decoder_that_trims_the_first_space_keeps_the_spaces_between_words() -> None:
    words = ["▁Hello", "▁big", "▁world"]
    decoder = decoders.Metaspace()
    detokenizer = Detokenizer(lambda ids: decoder.decode([words[i] for i in ids]))
    assert [detokenizer.push(i) for i in range(3)] == ["Hello", " big", " world"]


def test_a_window_stays_small_however_long_the_answer() -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return "word " * len(ids)

    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(0) for _ in range(500)) == "word " * 500
    assert longest <= 3


def naive_cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """One character after the other, the longest stop that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


@given(st.lists(LETTERS, max_size=6), STOPS)
@example(["xa", "b", "cd"], ["abc", "b"])
@example(["a", "ab"], ["aab", "ab"])
def test_a_stop_string_cuts_the_same_place_in_any_split(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        assert not any(stop in "".join(shown) for stop in stops)
    shown.append(matcher.finish())
    assert ("".join(shown), matcher.matched) == naive_cut("".join(pieces), stops)


@given(LETTERS, STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    if not matcher.matched:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_what_comes_to_no_character_is_dropped_and_does_not_gather() -> None:
    """Special tokens decode to nothing; the cost of a token must not grow with their number."""
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return "".join(chr(i) for i in ids if i)

    text = Detokenizer(decode)
    shown = text.push(ord("a")) + "".join(text.push(0) for _ in range(1000)) + text.push(ord("b"))
    assert shown == "ab"
    assert longest <= PATIENCE + 2
