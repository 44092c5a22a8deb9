"""What is read of text, reStructuredText, Markdown and HTML, and what is refused."""

import codecs
import gzip

import pytest

from backends.retrievers.folder import formats, formats_base
from backends.retrievers.folder.chunking import Section
from backends.retrievers.folder.formats_base import Outline, Unreadable, normal


def read(name: str, text: str | bytes) -> list[Section]:
    return formats.read(name, text if isinstance(text, bytes) else text.encode())


def refusal(name: str, data: str | bytes) -> str:
    with pytest.raises(Unreadable) as caught:
        read(name, data)
    return str(caught.value)


def one(name: str, text: str | bytes) -> str:
    [section] = read(name, text)
    assert section.headings == ()
    return section.text


# Text


@pytest.mark.parametrize(
    "data",
    [
        "Die Größe – 5 €".encode(),
        codecs.BOM_UTF8 + "Die Größe – 5 €".encode(),
        codecs.BOM_UTF16_LE + "Die Größe – 5 €".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "Die Größe – 5 €".encode("utf-16-be"),
        codecs.BOM_UTF32_LE + "Die Größe – 5 €".encode("utf-32-le"),
        "Die Größe – 5 €".encode("cp1252"),
        "Die Gro\u0308ße – 5 €".encode(),
    ],
    ids=["utf-8", "utf-8 bom", "utf-16-le", "utf-16-be", "utf-32", "windows", "decomposed"],
)
def test_text_is_read_in_its_encoding(data: bytes) -> None:
    assert one("README", data) == "Die Größe – 5 €"


@pytest.mark.parametrize("name", ["a", "a.txt", "a.md", "a.rst", "a.html", "A.HTM", "a.Markdown"])
@pytest.mark.parametrize(
    "data",
    [
        b"text\0text",
        gzip.compress(b"text" * 100, mtime=0),
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        bytes(range(128, 256)) * 4,
        b"\x01\x02\x03\x04" * 20,
        "text".encode("utf-16-le"),
        codecs.BOM_UTF16_LE + b"a\0\0\0",
    ],
    ids=["NUL", "gzip", "PNG", "high bytes", "controls", "UTF-16 without a mark", "NUL in UTF-16"],
)
def test_what_is_no_text_is_refused_whatever_its_name_is(name: str, data: bytes) -> None:
    assert refusal(name, data) == "is binary"


@pytest.mark.parametrize("name", ["a", "a.md", "a.rst", "a.html"])
@pytest.mark.parametrize("data", [b"", b" \n\t\r\n", codecs.BOM_UTF8], ids=["empty", "blanks", "mark"])
def test_a_file_without_text_is_refused(name: str, data: bytes) -> None:
    assert refusal(name, data) == "has no text"


def test_a_kind_that_is_not_known_is_refused() -> None:
    assert refusal("a.docx", b"text") == "is of a kind that is not read (.docx)"


def test_text_is_normal_inside() -> None:
    assert normal("a\r\nb\rc\x0cd\u2028e\tf\x07\x1b\x9f\ud800e\u0301") == "a\nb\nc\nd\ne\tf\ufffdé"


def test_a_document_with_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats_base, "MAX_TEXT", 100)
    monkeypatch.setattr(formats_base, "MAX_SECTIONS", 5)
    assert refusal("a.txt", "x" * 101) == "has more than 100 characters of text"
    assert refusal("a.md", "# Heading\n\ntext\n" * 5 + "x" * 60) == "has more than 100 characters of text"
    assert refusal("a.md", "# A\n" * 6) == "has more than 5 headings"


def test_a_long_heading_is_cut_and_is_in_the_text_as_a_whole() -> None:
    long = "Very " * 30 + "long"
    [section] = read("a.md", f"# {long}\n\nText.")
    assert section == Section((long[:119] + "…",), f"{long}\n\nText.")


def test_headings_of_any_level_make_a_path() -> None:
    outline = Outline()
    for level, title in [(3, "c"), (1, "a"), (2, "b"), (2, "\n"), (2, "b2"), (1, "a2")]:
        outline.heading(level, title)
        outline.text(f"under {title.strip() or 'b'}")
    assert outline.sections() == [
        Section(("c",), "under c"),
        Section(("a",), "under a"),
        Section(("a", "b"), "under b\n\nunder b"),
        Section(("a", "b2"), "under b2"),
        Section(("a2",), "under a2"),
    ]


# reStructuredText


def test_rst_headings_have_their_level_by_the_order_of_their_lines() -> None:
    text = """
=====
Title
=====

Intro.

Part
====

A table:

===== =====
a     b
===== =====
1     2
===== =====

Deeper
------
.. note:: kept

Part two
========
x
-- not a heading
"""
    assert read("a.rst", text) == [
        Section(("Title",), "Intro."),
        Section(("Title", "Part"), "A table:\n\n===== =====\na     b\n===== =====\n1     2\n===== ====="),
        Section(("Title", "Part", "Deeper"), ".. note:: kept"),
        Section(("Title", "Part two"), "x\n-- not a heading"),
    ]


# Markdown


def test_markdown_headings_of_both_kinds_and_text_as_it_is_written() -> None:
    text = """Intro.

Handbook
========

Some *text* with `code`.

## The `leave` **policy** [link](http://x/y) \\# 1 ##

1. one
2. two

```sh
# no heading
<!-- kept -->
```

> # quoted, no section

Days
---
| a | b |
|---|---|
| 1 | 2 |
"""
    assert read("a.md", text) == [
        Section((), "Intro."),
        Section(("Handbook",), "Some *text* with `code`."),
        Section(
            ("Handbook", "The leave policy link # 1"),
            "1. one\n2. two\n\n```sh\n# no heading\n<!-- kept -->\n```\n\n> # quoted, no section",
        ),
        Section(("Handbook", "Days"), "| a | b |\n|---|---|\n| 1 | 2 |"),
    ]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("---\ntitle: x\ntags: [a]\n---\nText", "Text"),
        ("+++\ntitle = 'x'\n+++\nText", "Text"),
        ("---\r\n# comment\r\n...\r\nText", "Text"),
        ("---\nText that begins with a line.\n\n---\nMore", "---\nText that begins with a line.\n\n---\nMore"),
        ("---\ntitle: never ends\n\nText", "---\ntitle: never ends\n\nText"),
        ("Text\n\n---\na: b\n\n---\nMore", "Text\n\n---\na: b\n\n---\nMore"),
    ],
    ids=["YAML", "TOML", "dots", "rule", "open", "later"],
)
def test_front_matter_is_left_out_and_what_only_looks_like_it_is_not(text: str, seen: str) -> None:
    assert one("a.md", text) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a <!-- hidden -->b", "a b"),
        ("a <!-- hidden\nover lines --> b", "a  b"),
        ("<!-- hidden\n\nblock -->\n\nText", "Text"),
        ("- item <!-- hidden -->\n- next", "- item \n- next"),
        ("- <!-- hidden -->\n- next", "- \n- next"),
        ("a `<!-- code -->` b", "a `<!-- code -->` b"),
        ("a ``<!-- ` -->`` <!-- hidden -->", "a ``<!-- ` -->``"),
        ("a \\<!-- text --> b", "a \\<!-- text --> b"),
        ("Text\n\n<!-- never ends", "Text"),
        ("<p align=center><b>Name</b></p>\n<script>hidden()</script>\n\nText", "Name\n\nText"),
        ("<div style='display: none'>hidden</div>\n\nText", "Text"),
    ],
    ids=["line", "lines", "block", "item", "whole item", "code", "code span", "escaped", "open", "tags", "invisible"],
)
def test_what_a_reader_of_markdown_does_not_see_is_left_out(text: str, seen: str) -> None:
    assert one("a.md", text) == seen


def test_deep_markdown_is_read_to_its_end() -> None:
    assert one("a.md", "> " * 5_000 + "end").endswith("end")
    assert one("a.md", "[" * 20_000 + "end").endswith("end")
    assert one("a.md", "*a `" * 20_000 + "end").endswith("end")


# HTML


def test_html_is_read_as_its_reader_sees_it() -> None:
    page = """<!DOCTYPE html><html><head><title>Site &amp; more</title><style>p {}</style><script>no()</script></head>
    <body><nav>Menu</nav><h1>Leave&nbsp;policy<a href="#l">¶</a></h1>
    <p>Thirty   <b>days</b> &lt; 31,<br>all paid.<!-- hidden --></p><template><p>hidden</p></template>
    <p hidden>hidden</p><p style="color: red; Display : NONE">hidden</p><div aria-hidden="true">hidden</div>
    <h2>Days <em>off</em></h2><ul><li>one<li><p>two</p><ul><li>three</ul></ul>
    <table><tr><th>Who<th>Days</tr><tr><td><p>New</p><td>20</tr></table>
    <pre>a = 1\n  if b:\n\n    c()</pre><noscript>hidden</noscript></body></html>"""
    assert read("a.html", page) == [
        Section(("Leave policy",), "Thirty days < 31,\nall paid."),
        Section(
            ("Leave policy", "Days off"),
            "- one\n\n- two\n\n- three\n\nWho | Days\nNew | 20\n\n```\na = 1\n  if b:\n\n    c()\n```",
        ),
    ]


def test_the_title_is_a_heading_where_there_is_no_other_first_one() -> None:
    page = "<title>Site</title><body>Text<h2>Part</h2>More"
    assert read("a.htm", page) == [Section(("Site",), "Text"), Section(("Site", "Part"), "More")]


def test_only_the_main_part_of_a_page_is_read() -> None:
    page = "<title>Site</title><div>Menu</div><div role=main><p>Text</div><footer>Imprint</footer>"
    assert read("a.html", page) == [Section(("Site",), "Text")]
    assert one("a.html", "<main>One</main><main>Two</main>") == "One\nTwo"


@pytest.mark.parametrize("head", [b"<meta charset=koi8-r>", b'<meta http-equiv=x content="text/html; charset=KOI8-R">'])
def test_a_page_in_an_old_encoding_says_so(head: bytes) -> None:
    assert one("a.html", head + "<p>Отпуск".encode("koi8-r")) == "Отпуск"


@pytest.mark.parametrize("name", [b"zlib_codec", b"idna", b"punycode", b"unicode_escape", b"no-such"])
def test_a_page_cannot_choose_any_codec(name: bytes) -> None:
    assert (
        one("a.html", b"<meta charset=" + name + b"><p>" + "Größe is all of it".encode("cp1252"))
        == "Größe is all of it"
    )


def test_broken_and_deep_pages_are_read() -> None:
    assert one("a.html", "<p>one<p>two</div></span><b>three") == "one\n\ntwothree"
    assert one("a.html", "<div>" * 3_000 + "deep") == "deep"
    assert one("a.html", "just text & nothing <else") == "just text & nothing"
    assert one("a.html", "<p>&#xD800;&#0;x") == "\ufffd\ufffdx"


def test_a_whole_page_of_headings_inside_other_things_is_read() -> None:
    page = "<div><a><h2>In a link</h2></a>text</div><li><h3>In an item</h3>more"
    assert read("a.html", page) == [
        Section(("In a link",), "text"),
        Section(("In a link", "In an item"), "more"),
    ]
