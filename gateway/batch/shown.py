"""Files and batches as OpenAI's clients read them, and the lines of their output."""

from typing import Any

import msgspec

from gateway.batch.records import BatchRecord, End, FileRecord, Line, Result, State, Usage

CODES_OF_ENDS: dict[End, tuple[str, str]] = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, because the batch was cancelled."),
}


def shown_file(file: FileRecord) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created),
        "expires_at": _whole(file.expires),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def shown_batch(batch: BatchRecord, faults: bytes = b"") -> dict[str, Any]:
    """To be encoded by msgspec. `faults` are JSON objects with commas between them, which are passed on as they are."""
    times = {f"{state}_at": _whole(batch.times.get(state)) for state in _TIMED}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.url,
        "model": batch.model,
        "errors": {"object": "list", "data": msgspec.Raw(b"[" + faults + b"]")} if faults else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.window,
        "status": batch.state,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": int(batch.created),
        "expires_at": int(batch.deadline),
        **times,
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": _shown_usage(batch.usage),
        "metadata": batch.metadata or None,
    }


_TIMED: tuple[State, ...] = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def _shown_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)


def answered(batch: str, line: Line, status: int, request_id: str, body: bytes) -> Result:
    """The line of the output or error file for a request that got this answer. The same request of the same batch
    always has the same id."""
    good = status < 400
    if b"\n" in body or b"\r" in body:  # as some backends write, and no line of a file can
        body = msgspec.json.format(body, indent=-1)
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return Result(line.number, good, _line(batch, line, response, None), usage_of(body) if good else Usage())


def unanswered(batch: str, line: Line, code: str, message: str) -> Result:
    """The line of the error file for a request that got no answer."""
    return Result(line.number, False, _line(batch, line, None, {"code": code, "message": message}))


def _line(batch: str, line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    id = f"batch_req_{batch.removeprefix('batch_')}_{line.number}"
    return msgspec.json.encode({"id": id, "custom_id": line.custom_id, "response": response, "error": error})


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Answer).decode
_nothing = _Details()


def usage_of(body: bytes) -> Usage:
    """What an answer says that it took; nothing, where that is no usage."""
    try:
        usage = _decode(body).usage or _Usage()
    except msgspec.DecodeError:
        return Usage()
    counts = (
        usage.prompt_tokens,
        (usage.prompt_tokens_details or _nothing).cached_tokens,
        usage.completion_tokens,
        (usage.completion_tokens_details or _nothing).reasoning_tokens,
    )
    return Usage(*(max(0, count or 0) for count in counts))
