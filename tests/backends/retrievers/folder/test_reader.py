"""The reading process: what it answers, and what becomes of it and of others when a file is too much for it."""

import asyncio
import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends.retrievers.folder import reader as reader_module
from backends.retrievers.folder.chunking import Piece
from backends.retrievers.folder.formats_base import Unreadable
from backends.retrievers.folder.reader import Reader
from backends.retrievers.folder.reader_process import ReadingProcess
from backends.retrievers.folder.reader_wire import Read, frame
from backends.retrievers.folder.reader_worker import MEMORY
from tests.backends.retrievers.folder.pdfs import pages, shown, stream
from tests.support.process import ROOT, environment

pytestmark = pytest.mark.slow

SOON = 60.0  # seconds, on a busy machine
HANGING = "<div>" * 100_000  # the parser takes minutes for so deep a page, in one call of C


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "good.md").write_text("# Leave\n\nThirty days.\n\n# Travel\n\nBook it.")
    (tmp_path / "hanging.html").write_text(HANGING)
    return tmp_path


@asynccontextmanager
async def reading(root: Path) -> AsyncIterator[Reader]:
    reader = Reader(root)
    try:
        yield reader
    finally:
        pid = reader.pid
        await reader.aclose()
        await reader.aclose()
    assert pid is None or not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def used(pid: int) -> int:
    """Bytes of its address space."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


async def gone(pid: int) -> None:
    async with asyncio.timeout(SOON):
        while alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def good(reader: Reader) -> int:
    """Read what can be read; the process that has done it."""
    assert (await reader.read("good.md", most=1_000)).pieces[0] == Piece("Leave", "Thirty days.")
    assert reader.pid is not None
    return reader.pid


async def refusal(reader: Reader, document: str) -> str:
    with pytest.raises(Unreadable) as caught:
        await reader.read(document, most=1_000)
    return str(caught.value)


async def test_a_document_is_read_and_cut_in_a_process_of_its_own(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a b.pdf").write_bytes(pages([stream(shown("From a page."))]))
    async with reading(root) as reader:
        assert reader.pid is None  # it costs nothing until it is needed
        document = await reader.read("good.md", most=1_000)
        pid = reader.pid
        assert document.id == "good.md"
        assert document.version == hashlib.blake2b((root / "good.md").read_bytes()).hexdigest()[:16]
        assert document.pieces == [Piece("Leave", "Thirty days."), Piece("Travel", "Book it.")]
        assert [piece.text for piece in (await reader.read("good.md", most=8)).pieces] == [
            "Thirty", "days.", "Book it.",
        ]  # fmt: skip
        assert (await reader.read("sub/a b.pdf", most=99)).pieces == [Piece("page 1", "From a page.")]
        assert reader.pid == pid


async def test_many_readers_at_once_get_each_their_own_document(root: Path) -> None:
    for number in range(20):
        (root / f"{number}.txt").write_text(f"text {number}")
    async with reading(root) as reader:
        documents = await asyncio.gather(*(reader.read(f"{number}.txt", most=99) for number in range(20)))
    assert [document.pieces for document in documents] == [[Piece("", f"text {number}")] for number in range(20)]


async def test_what_cannot_be_read_says_why_and_the_process_goes_on(root: Path) -> None:
    (root / "binary.md").write_bytes(bytes(256))
    (root / "link.md").symlink_to("/etc/passwd")
    (root / "circle.pdf").write_bytes(pages([stream(b"")]).replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"))
    with (root / "sparse.txt").open("wb") as file:
        file.truncate(2**30)
    async with reading(root) as reader:
        pid = await good(reader)
        assert await refusal(reader, "binary.md") == "is binary"
        assert await refusal(reader, "gone.md") == "is not there"
        assert await refusal(reader, "../etc/passwd") == "is no name of a document"
        assert await refusal(reader, "\ud800.md") == "is no name of a document"
        assert (await refusal(reader, "link.md")).startswith("cannot be read: ")
        assert await refusal(reader, "sparse.txt") == "has more than 20 MiB"
        assert "broken" in await refusal(reader, "circle.pdf")
        assert await good(reader) == pid


async def test_an_answer_that_is_too_long_for_a_frame_is_refused(root: Path) -> None:
    above = "".join(f"{'#' * level} {'汉' * 118}{level}\n\n" for level in range(1, 6))
    (root / "headings.md").write_text(above + "".join(f"###### {n}\n\ntext\n\n" for n in range(19_000)))
    async with reading(root) as reader:
        assert await refusal(reader, "headings.md") == "has too many headings"


async def test_a_file_that_hangs_the_parser_is_given_up_and_the_next_one_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading(root) as reader:
        pid = await good(reader)
        monkeypatch.setattr(reader_module, "TIMEOUT", 0.5)
        assert await refusal(reader, "hanging.html") == "takes more than 0.5 s to read"
        monkeypatch.undo()
        assert await good(reader) != pid
        await gone(pid)


async def test_a_file_that_kills_the_parser_is_given_up_and_the_next_one_is_read(root: Path) -> None:
    async with reading(root) as reader:
        pid = await good(reader)
        refused = asyncio.create_task(refusal(reader, "hanging.html"))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGSEGV)
        assert await refused == "cannot be read: the reading process was killed by SIGSEGV"
        assert await good(reader) != pid


async def test_a_file_that_takes_too_much_memory_is_given_up_and_the_next_one_is_read(root: Path) -> None:
    (root / "growing.txt").write_text("a" * 18_000_000 + "😀")  # as text it takes four bytes for each character
    async with reading(root) as reader:
        pid = await good(reader)
        assert resource.prlimit(pid, resource.RLIMIT_AS) == (MEMORY, MEMORY)
        # So that it comes to its end soon: not much more than it has now.
        resource.prlimit(pid, resource.RLIMIT_AS, (used(pid) + 2**26, MEMORY))
        assert await refusal(reader, "growing.txt") == "takes more than 2 GiB of memory to read"
        assert await good(reader) != pid


async def test_a_process_that_died_between_two_files_is_no_fault_of_the_next_one(root: Path) -> None:
    async with reading(root) as reader:
        pid = await good(reader)
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        await asyncio.sleep(0.1)
        assert await good(reader) != pid


async def test_a_reader_that_gives_up_leaves_no_answer_for_the_next_one(root: Path) -> None:
    async with reading(root) as reader:
        pid = await good(reader)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read("hanging.html", most=99)
        assert await good(reader) != pid
        await gone(pid)


async def test_a_process_whose_long_answer_nobody_reads_can_be_ended(root: Path) -> None:
    (root / "long.txt").write_text("word " * 300_000)
    process = await ReadingProcess.spawn(root, 60)
    await process.receive()
    await process.send(Read("long.txt", 100))
    await asyncio.sleep(1)
    async with asyncio.timeout(SOON):
        assert await process.end() == "the reading process was killed by SIGKILL"
    assert not alive(process.pid)


async def test_a_process_with_nothing_to_do_ends(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "IDLE", 0.2)
    async with reading(root) as reader:
        pid = await good(reader)
        assert await good(reader) == pid
        await gone(pid)
        assert reader.pid is None
        assert await good(reader) != pid


async def test_closing_ends_what_is_being_read(root: Path) -> None:
    async with reading(root) as reader:
        pid = await good(reader)
        refused = asyncio.create_task(refusal(reader, "hanging.html"))
        await asyncio.sleep(0.1)
        await reader.aclose()
        assert not alive(pid)
        assert await refused == "cannot be read: the reading process was killed by SIGKILL"
        with pytest.raises(RuntimeError, match="closed"):
            await reader.read("good.md", most=99)


async def test_closing_while_the_process_starts_leaves_none_behind(root: Path) -> None:
    reader = Reader(root)
    read = asyncio.create_task(reader.read("good.md", most=99))
    await asyncio.sleep(0.02)
    await reader.aclose()
    with pytest.raises((RuntimeError, Unreadable)):
        await read
    assert reader.pid is None


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
async def test_that_no_process_can_be_started_is_no_fault_of_the_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    async with reading(root) as reader:
        monkeypatch.setattr(sys, "executable", program)
        with pytest.raises(OSError, match=r"does not start|No such file"):
            await reader.read("good.md", most=99)
        monkeypatch.undo()
        await good(reader)


WORKER = (sys.executable, "-P", "-m", "backends.retrievers.folder.reader_worker")


def test_the_process_dies_with_its_parent_even_inside_a_parser(root: Path) -> None:
    program = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom backends.retrievers.folder.reader import Reader\n"
        "async def main():\n"
        "    reader = Reader(Path(sys.argv[1]))\n"
        "    await reader.read('good.md', most=99)\n"
        "    print(reader.pid, flush=True)\n"
        "    await reader.read('hanging.html', most=99)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert alive(pid)
        parent.kill()
    asyncio.run(gone(pid))


def test_the_system_ends_a_process_that_a_parser_does_not_let_end(root: Path) -> None:
    with subprocess.Popen(
        [*WORKER, str(root), "1"], env=environment(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as worker:
        assert worker.stdin is not None
        worker.stdin.write(frame(Read("hanging.html", 99)))
        worker.stdin.flush()  # and its standard input stays open
        assert worker.wait(SOON) == -signal.SIGALRM


def test_the_process_starts_with_little() -> None:
    """Neither models nor the gateway, and the parser of PDF files only when there is one."""
    program = "import sys, backends.retrievers.folder.reader_worker; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy = {
        "torch",
        "faiss",
        "gateway",
        "cache",
        "watchfiles",
        "pypdf",
        "markdown_it",
        "selectolax",
        "aiohttp",
        "httpx",
    }
    assert heavy.isdisjoint(done.stdout.split())
