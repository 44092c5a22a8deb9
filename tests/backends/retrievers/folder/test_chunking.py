"""From sections to pieces: nothing lost, nothing twice, nothing too long, and the rest stays as it is."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.retrievers.folder.chunking import Piece, Section, chunks
from backends.retrievers.folder.cutting import cut

# Headings in large letters and texts in small ones, so that what becomes of each can be told apart.
HEADINGS = st.lists(st.sampled_from(["A", "BB", "C D"]), max_size=3).map(tuple)
TEXTS = st.text(st.sampled_from("ab.!\n\n  \t`-|#中。é1"), max_size=120)
SECTIONS = st.lists(st.builds(Section, HEADINGS, TEXTS), max_size=8)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@given(SECTIONS, st.integers(1, 60))
@settings(max_examples=150, deadline=None)
def test_no_text_is_lost_or_there_twice_and_no_piece_is_too_long(sections: list[Section], most: int) -> None:
    pieces = chunks(sections, most=most)
    small = re.compile("[A-Z]")
    assert small.sub("", squeezed("".join(p.text for p in pieces))) == squeezed("".join(s.text for s in sections))
    assert all(0 < len(piece.text) <= most and piece.text.strip() for piece in pieces)
    headings = {heading for section in sections for heading in section.headings}
    seen = "\n".join(f"{piece.title}\n{piece.text}" for piece in pieces)
    assert all(heading in seen for heading in headings if len(heading) <= most)


@given(st.text(st.sampled_from("abc. \n`|-\t"), max_size=400), st.integers(1, 50))
@settings(max_examples=150, deadline=None)
def test_pieces_of_a_text_are_well_filled(text: str, most: int) -> None:
    pieces = list(cut(text, most))
    assert squeezed("".join(pieces)) == squeezed(text)
    assert all(len(piece) <= most for piece in pieces)
    # Of two neighbours that would fit into one piece there are few: only where a longer part has been cut.
    assert sum(len(a) + len(b) + 2 <= most for a, b in pairwise(pieces)) <= len(pieces) // 2


DAY = "Everybody has thirty days of leave. They may be taken in one go or one by one."


def section(*headings: str, text: str) -> Section:
    return Section(headings, text)


def test_a_short_chapter_is_one_piece_with_the_headings_below_it_as_lines() -> None:
    sections = [
        section("Leave", text="All about it."),
        section("Leave", "Days", text="Thirty."),
        section("Leave", "Days", "Half days", text="Yes."),
        section("Travel", text="Book it."),
    ]
    assert chunks(sections, most=200) == [
        Piece("Leave", "All about it.\n\nDays\nThirty.\n\nHalf days\nYes."),
        Piece("Travel", "Book it."),
    ]


def test_a_long_chapter_is_cut_at_its_headings() -> None:
    sections = [
        section("Leave", text="All about it."),
        section("Leave", "Days", text=DAY),
        section("Leave", "Sick", text="Call."),
        section("Leave", "Sick", "How", text="By phone."),
    ]
    assert chunks(sections, most=100) == [
        Piece("Leave", "All about it."),
        Piece("Leave > Days", DAY),
        Piece("Leave > Sick", "Call.\n\nHow\nBy phone."),
    ]


def test_what_stands_before_the_first_heading_has_no_title() -> None:
    sections = [section(text="Preface."), section("One", text="Text.")]
    assert chunks(sections, most=100) == [Piece("", "Preface."), Piece("One", "Text.")]


def test_a_heading_without_text_is_in_the_titles_below_it_or_stands_for_itself() -> None:
    sections = [
        section("Handbook", text=""),
        section("Handbook", "Leave", text=""),
        section("Handbook", "Leave", "Days", text=DAY),
        section("Handbook", "To be written", text=" \n"),
    ]
    assert chunks(sections, most=100) == [
        Piece("Handbook > Leave", f"Days\n{DAY}"),
        Piece("Handbook > To be written", "To be written"),
    ]
    assert chunks([section("Alone", text="")], most=100) == [Piece("Alone", "Alone")]
    assert chunks([section(text="")], most=100) == []


@pytest.mark.parametrize("edit", ["", "One line.", f"{DAY}\n\n" * 20], ids=["emptied", "shortened", "lengthened"])
def test_an_edit_in_one_section_leaves_the_pieces_of_the_others_as_they_are(edit: str) -> None:
    before = [section("Book", f"Chapter {n}", text=f"{DAY} {n}.\n\n" * 9) for n in range(20)]
    after = [*before[:7], Section(before[7].headings, edit), *before[8:]]

    def others(sections: list[Section]) -> list[Piece]:
        return [piece for piece in chunks(sections, most=300) if piece.title != "Book > Chapter 7"]

    assert others(after) == others(before)
    assert len(others(before)) > 40


def test_a_text_is_cut_between_paragraphs_then_sentences_then_words_then_anywhere() -> None:
    assert list(cut("One two.\n\nThree four.\n\nFive six.", 24)) == ["One two.\n\nThree four.", "Five six."]
    assert list(cut("One two. Three four! Five (six.) Seven", 16)) == [
        "One two.",
        "Three four!",
        "Five (six.) Seven"[:11],
        "Seven",
    ]
    assert list(cut("one two three four", 9)) == ["one two", "three", "four"]
    assert list(cut("abcdefgh", 3)) == ["abc", "def", "gh"]
    assert list(cut("一二三。四五六。七八", 5)) == ["一二三。", "四五六。", "七八"]


def test_numbers_of_headings_are_no_ends_of_sentences() -> None:
    assert list(cut("Some text here. 2.1. Layout of it", 20)) == ["Some text here.", "2.1. Layout of it"]


def test_code_with_empty_lines_is_in_one_piece_where_it_fits() -> None:
    code = "```python\nfirst()\n\n\nsecond()\n```"
    text = f"Before it there are words.\n\n{code}\n\nAfter it too."
    assert list(cut(text, 50)) == ["Before it there are words.", f"{code}\n\nAfter it too."]


def test_long_code_lists_and_tables_are_cut_between_lines() -> None:
    lines = [f"    call({n}). And more" for n in range(10)]
    for first, rest in [
        ("```", lines),
        ("| a | b |", [f"| {n}. X | y |" for n in range(10)]),
        ("- a", [f"- b. C {n}" for n in range(10)]),
    ]:
        text = "\n".join([first, *rest])
        pieces = list(cut(text, 70))
        assert len(pieces) > 1
        assert [line for piece in pieces for line in piece.split("\n")] == text.split("\n")


def test_many_blanks_and_long_documents_take_no_time() -> None:
    assert list(cut("\n" * 1_000_000 + "a" + " " * 1_000_000 + "b", 5)) == ["a", "b"]
    assert len(list(cut("a" * 1_000_000, 1_000))) == 1_000
    deep = tuple(f"H{n}" for n in range(7))
    assert len(chunks([Section((*deep, str(n)), DAY) for n in range(20_000)], most=100)) == 20_000
