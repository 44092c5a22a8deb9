"""Errors as clients see them: one class, one envelope.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

Everything that goes wrong before an answer becomes an ApiError, whatever route it came from.
Types and codes are OpenAI's where OpenAI has one.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

JSON_TYPE = "application/json"

TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_exceeded",
}


MAX_WORD = 64
"""Characters of an error's code that are kept in records."""


class ApiError(Exception):
    """An answer that is an error. `param` names the field at fault, `code` is for programs; `final`: to ask the backend
    again would be in vain, and is not for us to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,  # the envelope's own name for it
        headers: Mapping[str, str] | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.type = type or TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
        self.headers = dict(headers or {})
        self.final = final

    @property
    def word(self) -> str:
        """What it is called in records. A code may be an upstream's, of any length."""
        return (self.code or self.type)[:MAX_WORD]

    def fresh(self) -> "ApiError":
        """The same error, not raised yet. One that is kept to be raised again, by many, would keep alive the frames of
        all who have raised it, and what they hold."""
        return ApiError(
            self.status,
            self.message,
            code=self.code,
            param=self.param,
            type=self.type,
            headers=self.headers,
            final=self.final,
        )

    def body(self) -> bytes:
        return msgspec.json.encode({"error": self.envelope()})

    def envelope(self) -> dict[str, Any]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def __repr__(self) -> str:
        return f"ApiError({self.status}, {self.code or self.type}, param={self.param})"


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def shorten(text: str, limit: int = 64) -> str:
    """Client text inside our own messages: short, and without control characters."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return clean if len(clean) <= limit else clean[:limit] + "..."
