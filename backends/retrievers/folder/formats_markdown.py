"""Markdown: its headings (ATX and Setext), and all else as it is written, without front matter, comments and tags."""

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

from backends.retrievers.folder.chunking import Section
from backends.retrievers.folder.formats_base import Outline
from backends.retrievers.folder.formats_html import visible
from backends.retrievers.folder.formats_text import decode

_FRONT = re.compile(
    r"""(---|\+\+\+)[ \t]*\n
        (?=[ \t]*(?:[\w"'-]+[ \t]*[:=]|\#|\n|\1))  # a field, a comment: what only looks like it begins with text
        (?s:.*?)^(?:\1|\.\.\.)[ \t]*(?:\n|\Z)""",
    re.MULTILINE | re.VERBOSE,
)
_COMMENT = re.compile(r"\\.|(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)|<!--.*?(?:-->|\Z)", re.DOTALL)
"""A comment; or what only looks like one, in code or behind a backslash."""

_parser = MarkdownIt("commonmark").enable("table").disable("inline")


def read_markdown(data: bytes) -> list[Section]:
    """Raises Unreadable."""
    text = re.sub("\r\n?", "\n", decode(data))
    if front := _FRONT.match(text):
        text = text[front.end() :]
    lines = text.split("\n")
    outline = Outline()
    body: list[str] = []
    done = 0  # lines
    heading: Token | None = None
    for token in _parser.parse(text):
        if token.map is None:
            continue
        begin, end = token.map
        if token.type == "heading_open" and token.level == 0:
            heading = token
            outline.text("\n".join([*body, *lines[done:begin]]))
            body, done = [], end
        elif heading is not None and token.type == "inline":
            outline.heading(int(heading.tag[1:]), _plain(token.content))
            heading = None
        elif token.type == "html_block" and token.level == 0:
            body += [*lines[done:begin], visible("\n".join(lines[begin:end]))]
            done = end
        elif token.type in ("inline", "html_block") and "<!--" in token.content:
            body += [*lines[done:begin], _uncommented("\n".join(lines[begin:end]))]
            done = end
    outline.text("\n".join([*body, *lines[done:]]))
    return outline.sections()


def _uncommented(text: str) -> str:
    return _COMMENT.sub(lambda match: "" if match[0].startswith("<!--") else match[0], text)


def _plain(text: str) -> str:
    """A heading without its marks."""
    text = _uncommented(text)
    text = re.sub(r"!?\[([^\]\[]*)\](?:\([^()]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"<[^<>]+>|\\(?=[!-/:-@\[-`{-~])", "", text)
    return re.sub(r"(`+|\*+|~~)(\S(?:.*?\S)?)\1", r"\2", text)
