"""Uploads that are refused: with what, as soon as it is known, and without the rest being handed on."""

import asyncio
from typing import Any

import pytest

from gateway.asgi import BODY_TIMEOUT, SLOWEST, Disconnected
from gateway.batch.upload import FORM, PIECE, read_upload
from gateway.errors import ApiError
from tests.gateway.batch.forms import BOUNDARY, GONE, PURPOSE, Part, Taking, field_of, file_of, form, messages
from tests.gateway.timeless import timeless

FILE = file_of(b"content")
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
CREATED = field_of(ANCHOR, b"created_at")


async def refusal(taking: Taking, sent: list[dict[str, Any]], *args: Any, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await taking(sent, *args, **options)
    return caught.value


def what(error: ApiError) -> tuple[int, str | None, str | None]:
    return error.status, error.code, error.param


@pytest.mark.parametrize(
    ("parts", "code", "param"),
    [
        pytest.param([PURPOSE], None, "file", id="no-file"),
        pytest.param([FILE], None, "purpose", id="no-purpose"),
        pytest.param([PURPOSE, file_of(b"")], "empty_file", "file", id="empty-file"),
        pytest.param([PURPOSE, FILE, FILE], None, "file", id="two-files"),
        pytest.param([PURPOSE, FILE, PURPOSE], None, "purpose", id="two-purposes"),
        pytest.param([field_of("purpose", b"fine-tune"), FILE], None, "purpose", id="another-purpose"),
        pytest.param([FILE, field_of("purpose", b"user_data")], None, "purpose", id="another-purpose-after"),
        pytest.param([field_of("purpose", b""), FILE], None, "purpose", id="purpose-empty"),
        pytest.param([field_of("purpose", b"\xff\0"), FILE], None, "purpose", id="purpose-not-text"),
        pytest.param([PURPOSE, FILE, CREATED], None, SECONDS, id="anchor-alone"),
        pytest.param([PURPOSE, FILE, field_of(SECONDS, b"3600")], None, ANCHOR, id="seconds-alone"),
        pytest.param(
            [PURPOSE, FILE, field_of(ANCHOR, b"now"), field_of(SECONDS, b"3600")], None, ANCHOR, id="another-anchor"
        ),
        *(
            pytest.param([PURPOSE, FILE, CREATED, field_of(SECONDS, seconds)], None, SECONDS, id=f"seconds-{i}")
            for i, seconds in enumerate([b"3599", b"2592001", b"", b"-3600", b"3600.0", b"1e4", b" 3600", b"9" * 99])
        ),
        pytest.param([PURPOSE, FILE, field_of("x", b"y" * 1025)], None, "x", id="field-too-large"),
        pytest.param([field_of(str(i), b"") for i in range(17)], "invalid_form", None, id="too-many-parts"),
        pytest.param([(b"Content-Disposition: form-data", b"x")], "invalid_form", None, id="part-without-name"),
        pytest.param([PURPOSE, (b"A: b", b"x")], "invalid_form", None, id="part-without-disposition"),
        pytest.param([(b"\r\n".join([b"A: b"] * 9), b"x")], "invalid_form", None, id="too-many-headers"),
        pytest.param([(b"A: " + b"b" * 5_000, b"x")], "invalid_form", None, id="header-too-large"),
        pytest.param([(b"A" * 5_000 + b": b", b"x")], "invalid_form", None, id="header-name-too-large"),
        pytest.param([(b"no header", b"x")], "invalid_form", None, id="no-header"),
    ],
)
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
async def test_what_a_form_must_have(parts: list[Part], code: str | None, param: str | None, bytewise: bool) -> None:
    body = form(*parts)
    taking = Taking()
    error = await refusal(taking, messages([body[i : i + 1] for i in range(len(body))] if bytewise else [body]))
    assert what(error) == (400, code, param)
    assert taking.handed == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="json"),
        pytest.param(form(PURPOSE, FILE, boundary=b"another"), id="another-boundary"),
        pytest.param(form(PURPOSE, FILE)[: -len(b"--\r\n")], id="last-boundary-cut"),
        pytest.param(form(PURPOSE, FILE)[: -len(BOUNDARY) - 10], id="in-the-file"),
        pytest.param(form(PURPOSE, FILE)[:40], id="in-a-header"),
        pytest.param(form(PURPOSE, FILE).replace(b"\r\n", b"\n"), id="lf-only"),
    ],
)
async def test_a_form_that_is_none(body: bytes) -> None:
    taking = Taking()
    assert what(await refusal(taking, messages([body]))) == (400, "invalid_form", None)
    assert taking.handed == []


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        pytest.param(None, 415, "unsupported_content_type", id="none"),
        pytest.param(b"application/json", 415, "unsupported_content_type", id="json"),
        pytest.param(b"application/x-www-form-urlencoded", 415, "unsupported_content_type", id="urlencoded"),
        pytest.param(b"multipart/mixed; boundary=x", 415, "unsupported_content_type", id="mixed"),
        pytest.param(b"multipart/form-data", 400, "invalid_form", id="no-boundary"),
        pytest.param(b"multipart/form-data; boundary=", 400, "invalid_form", id="boundary-empty"),
        pytest.param(b"multipart/form-data; boundary=" + b"x" * 71, 400, "invalid_form", id="boundary-too-long"),
    ],
)
async def test_a_body_of_another_kind_is_refused_unread(kind: bytes | None, status: int, code: str) -> None:
    error = await refusal(Taking(), [], {b"content-type": kind or b""})
    assert what(error) == (status, code, None)


async def test_a_compressed_body_is_refused_unread() -> None:
    error = await refusal(Taking(), [], {b"content-encoding": b"gzip"})
    assert what(error) == (415, "unsupported_content_encoding", None)


# Size


@pytest.mark.parametrize("length", [b"1e3", b"-1", b"%d" % (PIECE + FORM + 1), b"9" * 5_000])
async def test_a_declared_length_over_the_limit_is_refused_unread(length: bytes) -> None:
    error = await refusal(Taking(), [], {b"content-length": length}, limit=PIECE)
    assert what(error) == (413, "request_too_large", "file")
    assert error.headers["connection"] == "close"


async def test_a_file_may_be_as_large_as_the_limit() -> None:
    body = form(PURPOSE, file_of(b"x" * 1_000))
    assert (await Taking()(messages([body]), {b"content-length": b"%d" % len(body)}, limit=1_000)).size == 1_000


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(form(PURPOSE, file_of(b"x"))[: -len(BOUNDARY) - 8], id="in-the-file"),
        pytest.param(form(PURPOSE, file_of(b"x")), id="after-the-form"),
        pytest.param(b"\r\n", id="before-the-form"),
    ],
)
async def test_a_body_without_end_is_bounded(beginning: bytes) -> None:
    taking = Taking()
    sent = messages([beginning] + [b"\r\n" * 5_000] * 1_000)
    error = await refusal(taking, sent, limit=PIECE + 7)
    assert what(error) == (413, "request_too_large", "file")
    assert len(taking.content) <= PIECE + 7


# What is handed on


async def test_after_an_error_nothing_is_handed_on() -> None:
    """It came with the second piece, of which a large part was good."""
    content = b"x" * (PIECE + PIECE // 2)
    body = form(file_of(content), field_of("purpose", b"evals"))
    taking = Taking()
    assert what(await refusal(taking, messages([body]), limit=len(content))) == (400, None, "purpose")
    assert len(taking.handed) == 1


async def test_the_error_of_whom_it_is_handed_to_comes_through() -> None:
    class Full(Taking):
        async def piece(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await Full().body(form(PURPOSE, FILE))


@pytest.mark.parametrize("at", [0, 30, 150, PIECE, PIECE + 50_000], ids=str)
async def test_a_client_that_leaves_is_noticed(at: int) -> None:
    body = form(PURPOSE, file_of(b"x" * (2 * PIECE)))
    sent = [*messages([body[:at], b""])[:1], GONE]
    taking = Taking()
    with pytest.raises(Disconnected):
        await taking(sent, limit=2 * PIECE)
    assert len(taking.handed) == (1 if at > PIECE else 0)


# Time


@timeless
async def test_a_client_that_sends_nothing_is_given_up() -> None:
    assert what(await refusal(Taking(), [])) == (408, "request_timeout", None)
    assert asyncio.get_running_loop().time() == pytest.approx(BODY_TIMEOUT, abs=0.1)


@timeless
async def test_a_client_has_a_second_more_for_every_so_many_bytes() -> None:
    body = form(PURPOSE, file_of(b"x" * (10 * SLOWEST)))[: 10 * SLOWEST]
    error = await refusal(Taking(), messages([body, b""])[:1])
    assert error.headers == {"x-should-retry": "false"}
    assert asyncio.get_running_loop().time() == pytest.approx(BODY_TIMEOUT + 10, abs=0.1)


@timeless
async def test_a_client_that_trickles_has_no_more_time_for_it() -> None:
    left = list(form(PURPOSE, file_of(b"x" * 1_000)))

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(BODY_TIMEOUT / 4)
        return {"type": "http.request", "body": bytes([left.pop(0)]), "more_body": True}

    kind = b"multipart/form-data; boundary=" + BOUNDARY
    with pytest.raises(ApiError) as caught:
        await read_upload({b"content-type": kind}, receive, Taking().piece, limit=2_000)
    assert what(caught.value) == (408, "request_timeout", None)
    assert asyncio.get_running_loop().time() == pytest.approx(BODY_TIMEOUT, abs=0.1)


@timeless
async def test_the_time_that_handing_on_takes_is_not_the_clients() -> None:
    class Slow(Taking):
        async def piece(self, data: bytes) -> None:
            await asyncio.sleep(10 * BODY_TIMEOUT)

    body = form(PURPOSE, file_of(b"x" * (3 * PIECE)))
    sent = messages([body[i : i + 50_000] for i in range(0, len(body), 50_000)])
    assert (await Slow()(sent, limit=3 * PIECE)).size == 3 * PIECE
