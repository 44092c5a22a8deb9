"""How long a client waits for the first byte of its answer, and what it is told when that is over."""

import re

from gateway.asgi import Headers
from gateway.errors import ApiError

READ_TIMEOUT = b"x-stainless-read-timeout"
"""What the official clients say of themselves: so many seconds without a byte, and they give up."""
_SECONDS = re.compile(rb"\d{1,5}(?:\.\d{1,9})?")


def deadline_of(allowed: float | None, headers: Headers, since: float) -> float | None:
    """The earlier one of what the endpoint allows and what the client says, in seconds after `since`; None where there
    is neither. What makes no sense as a time is not heeded: a client may send anything."""
    said = headers.get(READ_TIMEOUT)
    if said is not None and _SECONDS.fullmatch(said) and (seconds := float(said)) > 0:
        allowed = seconds if allowed is None else min(allowed, seconds)
    return None if allowed is None else since + allowed


def exceeded(*, sent: bool) -> ApiError:
    """`sent`: the backend was at work on it, and would be as slow the next time."""
    text = "The backend did not begin with its answer" if sent else "The backend had no time for this request"
    headers = {"x-should-retry": "false"} if sent else {}
    return ApiError(504, f"{text} before the deadline.", code="deadline_exceeded", headers=headers)
