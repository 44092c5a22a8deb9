"""A backend's errors in our envelope: what a client is told when there was no usable reply."""

from math import ceil

from backends.base import (
    BackendError,
    BackendStarting,
    BackendTimeout,
    CannotBeInTime,
    ConnectFailed,
    Overloaded,
    Refused,
    ReplyBroken,
)
from gateway.errors import ApiError


def failure(error: BackendError) -> ApiError:
    text = str(error)
    match error:
        case BackendStarting():
            retry = {"retry-after": str(max(1, round(error.retry_after)))}
            return ApiError(503, text, code="backend_starting", headers=retry)
        case Overloaded():  # to ask again at once would be in vain
            return ApiError(429, text, code=error.code, headers=_later(error), final=True)
        case CannotBeInTime():
            return ApiError(503, text, code=error.code, headers=_later(error))
        case BackendTimeout():
            return ApiError(504, text, code=f"backend_timeout_{error.phase}")
        case ConnectFailed():
            return ApiError(502, text, code="backend_unreachable")
        case ReplyBroken():
            return ApiError(502, text, code="backend_reply_broken")
        case _:
            return ApiError(502, text, code="backend_reply_too_large")


def _later(error: Refused) -> dict[str, str]:
    """When to come back, in the two forms that clients know."""
    ms = max(1, ceil(error.retry_after * 1000))
    return {"retry-after": str(ceil(ms / 1000)), "retry-after-ms": str(ms)}
