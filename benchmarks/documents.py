"""Documentation that is there anyway: this repository's pages, and what the installed packages say of themselves.

Real pages are taken as they are. Where many more are needed, they are made up of the sentences and headings of the real
ones, drawn with fixed seeds.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from itertools import islice
from pathlib import Path

from backends.retrievers.folder import formats
from backends.retrievers.folder.chunking import MOST, Section, chunks
from backends.retrievers.folder.pieces import embedded, titled

OURS, PACKAGES = "docs", "packages"
"""Folders of real pages."""
SHORTEST = 1_000
"""Characters of a page; less is a line that names a site."""
_SENTENCE = re.compile(r"[A-Z][^<>`|#*\[\]_\\]{40,300}[.!?]")
"""Of prose. What code, tables and addresses do to the model is another matter: real pages show it."""
_HEADING = re.compile(r"[A-Za-z][A-Za-z ,'-]{4,60}")


def pages(every: int = 1) -> dict[str, bytes]:
    """Every so manyth real one, by the path that they get below a folder of documents."""
    return dict(islice(_pages().items(), None, None, every))


@cache
def _pages() -> Mapping[str, bytes]:
    root = Path(__file__).resolve().parents[1]
    ours = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))]
    found = {f"{OURS}/{page.name}": page.read_bytes() for page in ours}
    for package in sorted(metadata.distributions(), key=lambda package: package.metadata["Name"].lower()):
        name, kind = package.metadata["Name"], package.metadata["Description-Content-Type"] or ""
        text = package.metadata["Description"] or ""
        if len(text) >= SHORTEST and not name.startswith("refrain"):
            found[f"{PACKAGES}/{name}.{'md' if kind.startswith('text/markdown') else 'rst'}"] = text.encode()
    return found


def write(root: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def texts(root: Path) -> list[str]:
    """What is embedded of all pages below `root`, piece by piece."""
    found = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = path.relative_to(root).as_posix()
        pieces = chunks(formats.read(name, path.read_bytes()), most=MOST)
        found += [embedded(piece) for piece in titled(name, pieces)]
    return found


def questions(count: int, files: Mapping[str, bytes]) -> list[str]:
    """Different ones about what these pages have headings for."""
    about = {
        f"What does the documentation of {section.headings[0]} say about {section.headings[-1]}?"
        for section in _sections(files)
        if len(section.headings) > 1 and all(map(_HEADING.fullmatch, section.headings))
    }
    return random.Random(11).sample(sorted(about), count)


def page(seed: str, sections: int, lengths: tuple[float, float]) -> str:
    """A made-up page in Markdown. `lengths` are those of its sections, the least and the most, as parts of the longest
    piece that there may be: where all together are longer than one, each section is a piece."""
    rnd = random.Random(seed)
    headings, sentences = _material()
    parts = [f"# {rnd.choice(headings)}"]
    for number in range(sections):
        wanted, body = rnd.uniform(*lengths) * MOST, ""
        while len(body) < wanted:
            body += rnd.choice(sentences) + " "
        parts.append(f"## {number + 1} {rnd.choice(headings)}\n\n{body[: round(wanted)].rstrip()}")
    return "\n\n".join(parts) + "\n"


@cache
def _material() -> tuple[Sequence[str], Sequence[str]]:
    headings: set[str] = set()
    sentences: set[str] = set()
    for section in _sections(pages()):
        headings.update(filter(_HEADING.fullmatch, section.headings))
        sentences.update(filter(_SENTENCE.fullmatch, re.split(r"(?<=[.!?]) ", " ".join(section.text.split()))))
    return sorted(headings), sorted(sentences)


def _sections(files: Mapping[str, bytes]) -> Iterator[Section]:
    for name, data in files.items():
        yield from formats.read(name, data)
