"""A folder of documents becomes an index: how fast, against bare embedding of the same texts; and what a change costs.

The model runs in a process of its own, as in the gateway, and both sides use the same one.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from backends.retrievers.folder.retriever import FolderRetriever
from benchmarks import documents
from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, Steps, in_turns, say
from cache.semantic.embedder import BATCH, LocalEmbedder
from gateway.retrieval.retrievers import SharedModel


class Amount(NamedTuple):
    """Pieces that are indexed in so many folders, which take turns with the bare model; every so manyth real page; and
    the files of the folder in which one changes."""

    pieces: int = 10_000
    parts: int = 5
    every: int = 10
    files: int = 1_000


LITTLE = Amount(pieces=100, parts=1, every=60, files=20)
SECTIONS = 10
"""Of a page, each a piece."""
LENGTHS = (0.4, 0.9)
"""Of the sections, as parts of the longest piece: real ones have two thirds of it on average."""
FEW, SHORT = 3, (0.35, 0.45)
"""Sections of the files of which one changes, and their lengths."""
DEADLINE = 120.0
"""Seconds for a call of the model."""
PATIENCE = 1_800.0
"""Seconds that an index may take."""
LOOK_EVERY, SAY_EVERY = 0.02, 5.0  # seconds
LATER = 1.5
"""Seconds after a change in which more could be embedded than was to be."""


class Counted(SharedModel):
    """The model as a folder has it; `texts` is how many it was given."""

    texts = 0

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        self.texts += len(texts)
        return await super().embed(texts, deadline=deadline)


def measure(size: Size) -> Figures:
    amount = Amount() if size.rounds > 1 else LITTLE
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner:
        embedder = LocalEmbedder("all-MiniLM-L6-v2")
        runner.run(_start(embedder))
        try:
            files = amount.pieces // amount.parts // SECTIONS
            folders = [_made(Path(name, f"part {n}"), files, n) for n in range(amount.parts)]
            figures = in_turns("indexing", amount.parts, lambda n: _steps(runner, embedder, folders[n]), _compare)
            say("indexing: real pages")
            documents.write(Path(name, "real"), documents.pages(amount.every))
            figures |= runner.run(_real(embedder, Path(name, "real")))
            say(f"indexing: one file of {amount.files:,} changes")
            figures |= runner.run(_change(embedder, Path(name, "changing"), amount.files))
        finally:
            runner.run(embedder.aclose())
    return figures | {"pieces": amount.pieces, "files": amount.files}


def rows(f: Figures) -> list[Row]:
    many, files = f"{f['pieces']:,.0f}", f"{f['files']:,.0f}"

    def change(what: str, name: str) -> Row:
        found = f"found after {f[f'{name}_s']:.1f} s"
        embedded, new = f"{f[f'{name}_texts']:.0f} pieces embedded", f"{f[f'{name}_pieces']:.0f} new"
        return Row(what, embedded, new, found, "only new pieces")

    return [
        Row(
            f"{many} pieces indexed, against the bare model",
            f"{f['indexed_rate']:.1f} a second",
            f"{f['bare_rate']:.1f} a second",
            f"{f['rate_ratio']:.2f}x",
            ">= 0.8x",
        ),
        Row(
            f"(real pages as they are, {f['real_pieces']:,.0f} pieces)",
            f"{f['real_rate']:.1f} a second",
            "",
            f"{f['real_texts'] / f['real_pieces']:.2f} texts to embed for each",
        ),
        change(f"one section of one file of {files} changed", "section"),
        change(f"one file of {files} written anew", "file"),
    ]


async def _start(embedder: LocalEmbedder) -> None:
    await embedder.start()
    while embedder.state != "ready":
        if embedder.state == "failed":
            sys.exit(f"the embedder cannot be used: {embedder.detail}")
        await asyncio.sleep(0.05)


def _made(root: Path, files: int, part: int) -> Path:
    """A folder of made-up pages, no two pieces of which are alike."""
    documents.write(root, {f"{n}.md": documents.page(f"{part} {n}", SECTIONS, LENGTHS).encode() for n in range(files)})
    return root


def _steps(runner: asyncio.Runner, embedder: LocalEmbedder, root: Path) -> Steps:
    texts = documents.texts(root)
    if len(set(texts)) < len(texts):
        sys.exit("two pieces are alike: one vector would do for both")
    return [
        ("bare_rate", lambda: runner.run(_bare(embedder, texts))),
        ("indexed_rate", lambda: runner.run(_indexed(embedder, root, len(texts)))),
    ]


def _compare(f: Figures) -> Figures:
    return {"rate_ratio": f["indexed_rate"] / f["bare_rate"]}


async def _bare(embedder: LocalEmbedder, texts: Sequence[str]) -> float:
    """Texts in a second. In the order that suits the model best, as it pads a batch to its longest text; and two
    batches are under way, so that it never waits for the next one."""
    ordered = sorted(texts, key=len)
    batches = iter([ordered[at : at + BATCH] for at in range(0, len(ordered), BATCH)])

    async def feed(batches: Iterator[list[str]]) -> None:
        for batch in batches:
            await embedder.embed(batch, deadline=DEADLINE)

    begun = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(feed(batches))
    return len(texts) / (perf_counter() - begun)


async def _indexed(embedder: LocalEmbedder, root: Path, pieces: int) -> float:
    """Pieces in a second, from the start to the first search that is possible."""
    model, begun = Counted(embedder), perf_counter()
    async with _folder(model, root) as folder:
        reports = await _ready(folder)
        taken = perf_counter() - begun
        await folder.search("Is everything there?", top_k=1, permissions=None, deadline=DEADLINE)
    if model.texts != pieces + 1:
        sys.exit(f"{model.texts} texts were embedded, of {pieces} pieces and a question")
    if not reports:
        sys.exit("an index was made without a word of its progress")
    return pieces / taken


async def _real(embedder: LocalEmbedder, root: Path) -> Figures:
    model, pieces, begun = Counted(embedder), len(documents.texts(root)), perf_counter()
    async with _folder(model, root) as folder:
        await _ready(folder)
    rate = pieces / (perf_counter() - begun)
    return {"real_pieces": pieces, "real_rate": rate, "real_texts": model.texts}


async def _change(embedder: LocalEmbedder, root: Path, files: int) -> Figures:
    """One section of one file of a folder, and then a whole file."""
    documents.write(root, {f"{n}.md": documents.page(f"changing {n}", FEW, SHORT).encode() for n in range(files)})
    section, file = root / f"{files // 3}.md", root / f"{files // 2}.md"
    model = Counted(embedder)
    async with _folder(model, root) as folder:
        await _ready(folder)
        longer = section.read_text() + "\nThis is no longer so.\n"
        other = documents.page("another", FEW, SHORT)
        figures = await _changed("section", folder, model, section, longer)
        return figures | await _changed("file", folder, model, file, other)


async def _changed(name: str, folder: FolderRetriever, model: Counted, path: Path, text: str) -> Figures:
    before, known, generation = model.texts, set(documents.texts(path.parent)), folder.generation
    begun = perf_counter()
    await asyncio.to_thread(path.write_text, text)
    await _until(lambda: folder.generation != generation, folder)
    taken = perf_counter() - begun
    await asyncio.sleep(LATER)
    new = set(documents.texts(path.parent)) - known
    return {f"{name}_texts": model.texts - before, f"{name}_pieces": len(new), f"{name}_s": taken}


@asynccontextmanager
async def _folder(model: Counted, root: Path) -> AsyncIterator[FolderRetriever]:
    database = root.with_suffix(".db")
    folder = FolderRetriever("handbook", root, None, model, database, changed=lambda documents: None)
    await folder.start()
    try:
        yield folder
    finally:
        await folder.aclose()


async def _ready(folder: FolderRetriever) -> int:
    """How often the folder said something new of its progress until it was ready."""
    return await _until(lambda: folder.state == "ready", folder)


async def _until(done: Callable[[], bool], folder: FolderRetriever) -> int:
    said: set[str] = set()
    begun = shown = perf_counter()
    while not done():
        if (now := perf_counter()) - begun > PATIENCE or folder.state == "down":
            sys.exit(f"the folder is not indexed: {folder.detail}")
        if folder.detail.startswith("indexing: "):
            said.add(folder.detail)
        if now - shown > SAY_EVERY:
            say(folder.detail)
            shown = now
        await asyncio.sleep(LOOK_EVERY)
    return len(said)
