"""HTML: what a reader of the page sees, as lines, below its headings; no scripts, no navigation, nothing hidden."""

import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

from backends.retrievers.folder.chunking import Section
from backends.retrievers.folder.formats_base import Outline, line
from backends.retrievers.folder.formats_text import decode


def _tags(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


_UNSEEN = _tags(
    "audio button canvas embed head iframe math nav noscript object script select style svg template textarea video"
)
_BLOCKS = _tags(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure",
    "footer form header hgroup hr html li main menu ol p pre section summary table tbody tfoot thead tr ul",
)
_APART = _tags("blockquote dl figure ol p pre section table ul")
"""Blocks with an empty line around them."""
_ANCHORS = frozenset("#¶§🔗")
"""The text of links that many tools put behind a heading."""
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_HIDDEN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
_EMPTY_LINES = re.compile(r"\n{3,}")
_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w-]{1,40})", re.IGNORECASE)
_ENCODINGS = re.compile(
    r"iso-8859-\d{1,2}|windows-(?:125\d|874)|koi8-[ru]|gbk|gb2312|gb18030|big5|shift_jis|euc-jp|euc-kr|us-ascii",
    re.IGNORECASE,
)


def read_html(data: bytes) -> list[Section]:
    """What is in the `main` part, where there is one, else all. The title is a heading where there is no h1. Raises
    Unreadable."""
    tree = LexborHTMLParser(decode(data, _encoding(data)))
    outline = Outline()
    main = tree.css("main, [role=main]")
    root = main[0] if len(main) == 1 else tree.root
    if root is None:
        return []
    title = tree.css_first("head > title")
    if title is not None and root.css_first("h1") is None:
        outline.heading(0, title.text())
    _Walk(outline).below(root)
    return outline.sections()


def visible(html: str) -> str:
    """What is seen of a fragment, headings included, as lines."""
    outline = Outline()
    root = LexborHTMLParser(html).root
    if root is not None:
        _Walk(outline).below(root)
    return "\n\n".join("\n".join([*section.headings[-1:], section.text]) for section in outline.sections())


def _encoding(data: bytes) -> str:
    """The old encoding that the page says it has; "" for none that is known."""
    match = _CHARSET.search(data[:2048])
    name = match[1].decode() if match else ""
    return name if _ENCODINGS.fullmatch(name) else ""


class _Walk:
    """Over the nodes in their order, without recursion: foreign pages are nested as deep as they like."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._lines: list[str] = []
        self._line: list[str] = []
        self._mark = ""  # what the next line begins with
        self._pre = 0  # how many are open
        self._cells = 0

    def below(self, root: LexborNode) -> None:
        node, depth = root, 0
        while True:
            if self._open(node):
                child = node.child
                if child is not None:
                    node, depth = child, depth + 1
                    continue
                self._close(node)
            while depth and node.next is None:
                assert node.parent is not None
                node, depth = node.parent, depth - 1
                self._close(node)
            if not depth:
                break
            assert node.next is not None
            node = node.next
        self._flush()

    def _open(self, node: LexborNode) -> bool:
        """Whether what is below it is seen."""
        tag = node.tag
        if node.is_text_node:
            text = node.text_content or ""
            if text not in _ANCHORS or node.parent is None or node.parent.tag != "a":
                self._line.append(text)
            return False
        if not node.is_element_node or tag in _UNSEEN or _hidden(node):
            return False
        if tag in _HEADINGS:
            self._flush()
            self._mark = ""
        elif tag == "br":
            self._break()
        elif tag in ("td", "th"):
            self._cells += 1
            if "".join(self._line).strip():
                self._line.append(" | ")
        else:
            self._edge(tag)
        if tag == "li":
            self._mark = "- "
        elif tag == "pre":
            self._pre += 1
        return True

    def _close(self, node: LexborNode) -> None:
        tag = node.tag
        if tag in _HEADINGS:
            self._break()
            title, self._lines = " ".join(self._lines), []
            self._outline.heading(_HEADINGS[tag], title)
        elif tag in ("td", "th"):
            self._cells -= 1
        elif tag == "pre":
            self._pre -= 1
            if not self._pre:
                self._code()
        elif tag == "li":
            self._break()
            self._mark = ""
        else:
            self._edge(tag)

    def _edge(self, tag: str | None) -> None:
        """Where a block begins or ends."""
        if self._cells and tag in ("p", "div"):
            self._line.append(" ")  # a row stays on its line
        elif tag in _BLOCKS:
            self._break()
            if tag in _APART and not self._pre:
                self._lines.append("")

    def _break(self) -> None:
        if self._pre:
            self._line.append("\n")
            return
        if text := line("".join(self._line)):
            self._lines.append(self._mark + text)
            self._mark = ""
        self._line = []

    def _code(self) -> None:
        text = "".join(self._line).strip("\n")
        if text.strip():
            self._lines += ["", "```", text, "```", ""]
        self._line = []

    def _flush(self) -> None:
        self._break()
        self._outline.text(_EMPTY_LINES.sub("\n\n", "\n".join(self._lines)))
        self._lines = []


def _hidden(node: LexborNode) -> bool:
    attributes = node.attributes
    if not attributes:
        return False
    return (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or attributes.get("role") in ("navigation", "search")
        or (node.tag == "dialog" and "open" not in attributes)
        or _HIDDEN.search(attributes.get("style") or "") is not None
    )
