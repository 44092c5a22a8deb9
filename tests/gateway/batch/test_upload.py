"""Taking in a file that is sent well, in whatever pieces and order."""

import asyncio
import re
import time
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batch.upload import PIECE, SLICE
from tests.gateway.batch.forms import BOUNDARY, PURPOSE, Part, Taking, field_of, file_of, form, messages
from tests.gateway.values import some

CONTENT = b'{"custom_id": "a"}\r\n\r\n--' + BOUNDARY[:-1] + b"\r\n\n"
LIVES = [field_of("expires_after[anchor]", b"created_at"), field_of("expires_after[seconds]", b"7200")]
ALL = [PURPOSE, file_of(CONTENT, "é 1.jsonl"), *LIVES]


@pytest.mark.parametrize("parts", [pytest.param(p, id=str(i)) for i, p in enumerate(permutations(ALL))])
async def test_the_fields_may_come_in_any_order(parts: list[Part]) -> None:
    taking = Taking()
    upload = await taking.body(form(*parts))
    assert (upload.purpose, upload.filename, upload.lives) == ("batch", "é 1.jsonl", 7200.0)
    assert upload.size == len(CONTENT)
    assert taking.content == CONTENT


async def test_how_long_it_lives_need_not_be_said() -> None:
    assert (await Taking().body(form(PURPOSE, file_of(b"x")))).lives is None


@pytest.mark.parametrize("seconds", [3_600, 2_592_000])
async def test_the_shortest_and_the_longest_life(seconds: int) -> None:
    parts = [PURPOSE, file_of(b"x"), LIVES[0], field_of("expires_after[seconds]", str(seconds).encode())]
    assert (await Taking().body(form(*parts))).lives == seconds


async def test_fields_that_are_none_of_ours_are_passed_over() -> None:
    taking = Taking()
    upload = await taking.body(form(field_of("x", b"1"), PURPOSE, file_of(b"other", name="y"), file_of(b"content")))
    assert (upload.size, upload.filename, taking.content) == (7, "requests.jsonl", b"content")


TRICKY = [
    b"\r\n",
    b"\r",
    b"\n",
    b"-",
    b"--",
    b"\r\n-",
    b"\r\n--",
    b"\r\n--" + BOUNDARY[:-1],
    b"\r\n--" + BOUNDARY + b"x",
    b"\n--" + BOUNDARY + b"\r\n",
    BOUNDARY,
    b"\0",
    "é".encode(),
    b"\xff",
    b"x" * 40,
]
contents = st.lists(st.sampled_from(TRICKY), min_size=1, max_size=10).map(b"".join)
ENDS = re.compile(rb"\r\n--" + BOUNDARY + rb"(\r\n|--)")
"""What no content may hold, which is why its sender chose the boundary."""


@some
@given(contents.filter(lambda content: not ENDS.search(content + b"\r\n")), st.lists(st.integers(0, 600), max_size=6))
def test_any_pieces_give_the_same(content: bytes, cuts: list[int]) -> None:
    body = form(file_of(content), PURPOSE)
    at = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for pieces in ([body], [body[a:b] for a, b in pairwise(at)], [body[i : i + 1] for i in range(len(body))]):
        taking = Taking()
        upload = asyncio.run(taking.body(*pieces))
        assert (taking.content, upload.size) == (content, len(content))


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param("requests.jsonl", "requests.jsonl", id="plain"),
        pytest.param("/home/a/b.jsonl", "b.jsonl", id="path"),
        pytest.param("../../etc/passwd", "passwd", id="path-upwards"),
        pytest.param("C:\\\\Users\\\\a\\\\b.jsonl", "b.jsonl", id="windows-path"),
        pytest.param("a\0b\x1b[31m\u202e.jsonl", "ab[31m.jsonl", id="unprintable"),
        pytest.param("日本 😀.jsonl", "日本 😀.jsonl", id="unicode"),
        pytest.param(b"\xff.jsonl", "\ufffd.jsonl", id="not-utf-8"),
        pytest.param('a\\"b.jsonl', 'a"b.jsonl', id="quoted"),
        pytest.param("a;b=c.jsonl", "a;b=c.jsonl", id="semicolon"),
        pytest.param("x" * 300, "x" * 255, id="long"),
        pytest.param("", "upload", id="empty"),
        pytest.param("a/", "upload", id="a-folder"),
    ],
)
async def test_a_filename_is_for_reading_only(sent: str | bytes, kept: str) -> None:
    assert (await Taking().body(form(PURPOSE, file_of(b"x", sent)))).filename == kept


async def test_a_file_without_a_name_is_one() -> None:
    taking = Taking()
    assert (await taking.body(form(PURPOSE, field_of("file", b"x")))).filename == "upload"
    assert taking.content == b"x"


async def test_what_stands_around_the_form_is_ignored() -> None:
    taking = Taking()
    await taking.body(b"\r\n" + form(PURPOSE, file_of(b"x")) + b"--" + BOUNDARY + b"\r\nand more")
    assert taking.content == b"x"


# Size and speed


@pytest.mark.parametrize("message", [1_000, 65_536, 10_000_000], ids=["small", "usual", "all-at-once"])
async def test_a_file_is_handed_on_in_pieces_of_a_size(message: int) -> None:
    content = bytes(range(256)) * (3 * PIECE // 256) + b"end"
    body = form(PURPOSE, file_of(content))
    taking = Taking()
    await taking.body(*(body[i : i + message] for i in range(0, len(body), message)), limit=len(content))
    assert taking.content == content
    assert all(PIECE <= len(piece) < PIECE + SLICE for piece in taking.handed[:-1])
    assert len(taking.handed) == 4 or len(taking.handed[-1]) < PIECE


async def test_no_piece_is_empty() -> None:
    content = b"x" * PIECE
    begin, end = form(PURPOSE, file_of(content)).split(content)
    taking = Taking()
    await taking.body(begin, content, end, limit=PIECE)
    assert taking.handed == [content]


async def test_nothing_more_is_read_while_a_piece_is_handed_on() -> None:
    body = form(PURPOSE, file_of(b"x" * (4 * PIECE)))
    sent = messages([body[i : i + SLICE] for i in range(0, len(body), SLICE)])
    free, started = asyncio.Event(), asyncio.Event()

    class Slow(Taking):
        async def piece(self, data: bytes) -> None:
            started.set()
            await free.wait()
            await super().piece(data)

    taking = Slow()
    work = asyncio.create_task(taking(sent, limit=4 * PIECE))
    await started.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert taking.handed == []
    free.set()
    assert (await work).size == 4 * PIECE


HARD = {
    "text": b'{"custom_id": "a", "body": "' + b"x" * 100 + b'"}\n',
    "crlf": b"\r\n",
    "almost-boundaries": b"\r\n--" + BOUNDARY + b"x",
}


@pytest.mark.parametrize("unit", HARD.values(), ids=HARD)
async def test_others_have_their_turn_while_a_file_is_read(unit: bytes) -> None:
    """One message of 4 MB is not read in one go."""
    body = form(PURPOSE, file_of(unit * (4_000_000 // len(unit))))
    work = asyncio.create_task(Taking()(messages([body]), limit=4_000_000))
    turns = []
    while not work.done():
        begun = time.thread_time()
        await asyncio.sleep(0)
        turns.append(time.thread_time() - begun)
    await work
    assert len(turns) >= len(body) // SLICE
    assert sorted(turns)[len(turns) * 9 // 10] < 0.005
