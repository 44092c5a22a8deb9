"""Errors of the engine's API, in the OpenAI envelope, and the one that ends its start."""

from typing import Any


class CannotServe(Exception):
    """The engine cannot serve this model with these settings. The text says what to change."""


class RequestError(Exception):
    """The request cannot be served as it is. `param` names the field, "messages[0].content" for one inside."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def envelope(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def wrong_type(param: str, expected: str) -> RequestError:
    return RequestError(f"'{param}' must be {expected}.", param=param, code="invalid_type")


def wrong_value(param: str, expected: str) -> RequestError:
    return RequestError(f"'{param}' must be {expected}.", param=param, code="invalid_value")


def missing(param: str) -> RequestError:
    return RequestError(f"'{param}' is required.", param=param, code="missing_required_parameter")


def unsupported(param: str, message: str | None = None) -> RequestError:
    text = message or f"'{param}' is not supported by the local engine. Leave it out or use another backend."
    return RequestError(text, param=param, code="unsupported_parameter")
