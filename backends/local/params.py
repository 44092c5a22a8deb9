"""The request body, checked: what the engine can do, and a 400 that names the field for what it cannot.

A parameter that would change the answer and that we cannot honour is refused, never ignored. Empty values (`null`,
`tools: []`, a penalty of 0) ask for nothing and are fine, as are fields that do not touch the answer (`user`,
`metadata`, `store`, ...).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.local.errors import RequestError, missing, unsupported, wrong_type, wrong_value
from backends.local.work import Sampling

MAX_CHOICES = 16  # choices are made one after the other
MAX_STOPS = 4  # as at OpenAI
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class Options:
    """What chat and legacy completions have in common. `max_tokens` None: the default of the route."""

    sampling: Sampling
    n: int
    max_tokens: int | None
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[dict[str, str], ...]
    options: Options


@dataclass(frozen=True, slots=True)
class TextRequest:
    prompt: str
    options: Options


def parse_chat(body: object) -> ChatRequest:
    """A body of chat/completions. Raises RequestError."""
    fields = _object(body)
    _refuse(fields, NEUTRAL_CHAT)
    messages = fields.get("messages")
    if messages is None:
        raise missing("messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "a list")
    if not messages:
        raise wrong_value("messages", "a list with at least one message")
    return ChatRequest(
        tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages)), _options(fields)
    )


def parse_text(body: object) -> TextRequest:
    """A body of (legacy) completions: one prompt, as a string or a list with one string. Raises RequestError."""
    fields = _object(body)
    _refuse(fields, NEUTRAL_TEXT)
    prompt = fields.get("prompt")
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise unsupported("prompt", "'prompt' must be a string or a list with one string.")
    if not prompt:
        raise wrong_value("prompt", "a text that is not empty")
    return TextRequest(prompt, _options(fields))


def _object(body: object) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_type")
    return body


Neutral = Callable[[Any], bool]
"""Whether a value asks for nothing. `None` never comes here: it always asks for nothing."""


def _one_of(*values: object) -> Neutral:
    return lambda value: any(value == neutral and type(value) is type(neutral) for neutral in values)


def _number(neutral: float) -> Neutral:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == neutral


NEUTRAL_BOTH: dict[str, Neutral] = {
    "logit_bias": _one_of({}),
    "presence_penalty": _number(0),
    "frequency_penalty": _number(0),
    "repetition_penalty": _number(1),
    "min_p": _number(0),
}
NEUTRAL_CHAT: dict[str, Neutral] = NEUTRAL_BOTH | {
    "tools": _one_of([]),
    "tool_choice": _one_of("none", "auto"),
    "functions": _one_of([]),
    "function_call": _one_of("none", "auto"),
    "response_format": _one_of({"type": "text"}),
    "logprobs": _one_of(False),
    "top_logprobs": _number(0),
    "modalities": _one_of(["text"]),
    "audio": _one_of({}),
    "prediction": _one_of({}),
    "web_search_options": _one_of(),
}
NEUTRAL_TEXT: dict[str, Neutral] = NEUTRAL_BOTH | {
    "logprobs": _one_of(False),  # 0 asks for the log probabilities of the chosen tokens
    "echo": _one_of(False),
    "suffix": _one_of(""),
    "best_of": _number(1),
}


def _refuse(fields: Mapping[str, Any], neutral: Mapping[str, Neutral]) -> None:
    for name, asks_nothing in neutral.items():
        value = fields.get(name)
        if value is not None and not asks_nothing(value):
            raise unsupported(name)


def _message(message: object, param: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong_type(param, "an object")
    role = message.get("role")
    if role is None:
        raise missing(f"{param}.role")
    if not isinstance(role, str):
        raise wrong_type(f"{param}.role", "a string")
    if role in ("tool", "function"):
        raise unsupported(f"{param}.role", f"The local engine has no tools: '{param}.role' cannot be '{role}'.")
    if role not in ROLES:
        raise wrong_value(f"{param}.role", "system, developer, user or assistant")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise unsupported(f"{param}.{name}")
    content = message.get("content")
    if content is None and role != "assistant":
        raise missing(f"{param}.content")
    return {"role": ROLES[role], "content": _content(content, f"{param}.content")}


def _content(content: object, param: str) -> str:
    """Text parts are joined by line ends."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(param, "a string or a list of text parts")
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, dict):
            raise wrong_type(f"{param}[{i}]", "an object")
        if part.get("type") != "text":
            raise unsupported(
                f"{param}[{i}].type", f"The local engine reads text only: '{param}[{i}].type' must be 'text'."
            )
        if not isinstance(part.get("text"), str):
            raise wrong_type(f"{param}[{i}].text", "a string")
        texts.append(part["text"])
    return "\n".join(texts)


def _options(fields: Mapping[str, Any]) -> Options:
    stream_options = fields.get("stream_options")
    if stream_options is not None and not isinstance(stream_options, dict):
        raise wrong_type("stream_options", "an object")
    stream = _flag(fields, "stream")
    return Options(
        sampling=Sampling(
            temperature=_real(fields, "temperature", 0, 2, default=1.0),
            top_p=_real(fields, "top_p", 0, 1, default=1.0),
            top_k=max(0, _integer(fields, "top_k", -1, 2**31) or 0),  # -1 means "off" at vLLM
            seed=_integer(fields, "seed", -(2**63), 2**63 - 1),
        ),
        n=_integer(fields, "n", 1, MAX_CHOICES) or 1,
        max_tokens=_max_tokens(fields),
        stops=_stops(fields.get("stop")),
        stream=stream,
        include_usage=stream and _flag(stream_options or {}, "include_usage", "stream_options.include_usage"),
    )


def _flag(fields: Mapping[str, Any], name: str, param: str | None = None) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_type(param or name, "true or false")
    return value


def _integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer")
    if not low <= value <= high:
        raise wrong_value(name, f"between {low} and {high}")
    return value


def _real(fields: Mapping[str, Any], name: str, low: float, high: float, default: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a number")
    if not low <= value <= high:
        raise wrong_value(name, f"between {low} and {high}")
    return float(value)


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    old = _integer(fields, "max_tokens", 1, 2**31)
    new = _integer(fields, "max_completion_tokens", 1, 2**31)
    if old is not None and new is not None and old != new:
        raise wrong_value("max_tokens", "left out where 'max_completion_tokens' is given")
    return old if new is None else new


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong_type("stop", "a string or a list of strings")
    if len(stops) > MAX_STOPS or not all(stops):
        raise wrong_value("stop", f"at most {MAX_STOPS} strings, none of them empty")
    return tuple(stops)
