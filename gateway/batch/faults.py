"""What is wrong with one request of an input file. Codes are OpenAI's where public material shows one for the case.

The body's own fields are the request's to judge when it runs, but for those that the batch itself rests on.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.ask import read_model
from gateway.batch.records import Fault, Url
from gateway.errors import ApiError, shorten

FIELDS = ("custom_id", "method", "url", "body")
"""What a request needs. Others are ignored: they mean nothing here, and files that are in use have some."""
MAX_CUSTOM_ID = 512
TOGETHER = 100
"""Faults that are kept as one piece."""


def in_pieces(faults: Sequence[Fault]) -> list[bytes]:
    """As clients read them: JSON objects with commas between them, some in each piece."""
    parts = (faults[start : start + TOGETHER] for start in range(0, len(faults), TOGETHER))
    return [msgspec.json.encode(part)[1:-1] for part in parts]


def unreadable(error: ApiError, line: int) -> Fault:
    """The strict parser has refused it."""
    message = error.message.replace("The body", "The line", 1)
    return Fault("invalid_json_line", message, error.param, line)


def too_long(most: int, line: int) -> Fault:
    return Fault("request_too_large", f"The line is over {most} bytes: make the request smaller.", None, line)


def too_many_requests(most: int, line: int) -> Fault:
    text = f"The file holds more than {most} requests: spread them over several. What follows was not checked."
    return Fault("too_many_tasks", text, None, line)


def too_many_inputs(most: int, line: int) -> Fault:
    text = f"The requests hold more than {most} inputs in all, from this one on: spread them over several files."
    return Fault("too_many_inputs", text, "body.input", line)


def no_request() -> Fault:
    return Fault("empty_file", "The file holds no request: it needs at least one, each on a line of its own.")


def duplicate(custom_id: str, first: int, line: int) -> Fault:
    text = f"The custom_id {shorten(custom_id)!r} is a duplicate of that in line {first}: each must be unique."
    return Fault("duplicate_custom_id", text, "custom_id", line)


def faults_of(request: dict[str, Any], url: Url, line: int) -> list[Fault]:
    """All that is wrong with a request as such, beside what the others in the file have to do with it."""
    missing = [name for name in FIELDS if request.get(name) is None]
    found = [Fault("missing_required_parameter", f"Missing required parameter: '{n}'.", n, line) for n in missing]
    if "custom_id" not in missing:
        found += _custom_id(request["custom_id"], line)
    if "method" not in missing and request["method"] != "POST":
        found.append(Fault("invalid_method", "`method` must be 'POST'.", "method", line))
    if "url" not in missing and request["url"] != url:
        text = f"The URL does not match the batch endpoint: `url` must be '{url}'."
        found.append(Fault("invalid_url", text, "url", line))
    if "body" not in missing:
        found += _body(request["body"], line)
    return found


def _custom_id(value: Any, line: int) -> list[Fault]:
    if not isinstance(value, str) or not value:
        return [Fault("invalid_value", "`custom_id` must be a string that is not empty.", "custom_id", line)]
    if len(value) > MAX_CUSTOM_ID:
        text = f"`custom_id` is longer than {MAX_CUSTOM_ID} characters."
        return [Fault("string_above_max_length", text, "custom_id", line)]
    return []


def _body(value: Any, line: int) -> list[Fault]:
    if not isinstance(value, dict):
        return [Fault("invalid_value", "`body` must be an object: the request itself.", "body", line)]
    found = []
    try:
        read_model(value)
    except ApiError as error:
        found.append(Fault("invalid_request", error.message, "body.model", line))
    if value.get("stream") is True:
        text = "Streaming is not supported in a batch: leave `stream` out."
        found.append(Fault("streaming_unsupported", text, "body.stream", line))
    return found
