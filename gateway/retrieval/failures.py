"""A retriever that failed, as the client hears of it."""

from backends.retrievers import RetrieverError
from gateway.errors import ApiError

RETRY_AFTER = {"starting": "2", "busy": "1"}
"""Seconds until it is worth while to ask again."""


class RetrieverFailed(ApiError):
    """A retriever had no results. `reason` is the retriever's word for it."""

    def __init__(self, error: RetrieverError) -> None:
        status, code = _FAILURES[error.reason]
        headers = {}
        if error.reason in RETRY_AFTER:
            headers["retry-after"] = RETRY_AFTER[error.reason]
        elif error.reason in ("bad_results", "failed"):
            headers["x-should-retry"] = "false"  # it will say the same again
        super().__init__(status, str(error), code=code, headers=headers)
        self.reason = error.reason


_FAILURES = {
    "starting": (503, "retriever_starting"),
    "busy": (503, "retriever_busy"),
    "deadline": (504, "retriever_timeout"),
    "unavailable": (502, "retriever_unavailable"),
    "bad_results": (502, "retriever_reply_broken"),
    "failed": (502, "retriever_failed"),
}
