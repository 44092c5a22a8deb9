"""One canonical form for requests that mean the same, and the key made from it.

Everything in a body is part of the key except a short deny-list: a field that nobody here has heard of costs a miss,
never a wrong answer. What counts as the same is written out below and nowhere else:

- keys in any order, whitespace, escapes (JSON itself);
- numbers that are equal (0.70 and 0.7, 1.0 and 1); compared exactly, never through a double;
- null and absent for fields known to be nullable; `n: 1` and `logprobs: false` and absent. Sampling fields have no
  default here, since a backend may have its own;
- a message's text as a string or as its only text part;
- `max_tokens` and `max_completion_tokens`.

Text is not touched, except on endpoints with `normalize: text`: Unicode NFC, line ends, outer blanks.
"""

import unicodedata
from collections.abc import Callable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact
from typing import Any, Literal

import msgspec

from cache.framing import digest
from cache.scope import Scope

Api = Literal["chat", "completions", "embeddings"]
KEY_VERSION = b"1"
"""Part of every key: raise it when the canonical form changes."""

WHOLE = 10**32
"""Whole numbers below this are written as such in the canonical form, larger ones with an exponent."""

# Wide enough for every number that the parser lets through, so that nothing is rounded: Inexact would be raised.
_EXACT = Context(prec=2_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])

NOT_IN_KEY = frozenset(
    {
        *("stream", "stream_options", "user", "safety_identifier", "metadata", "store", "service_tier"),
        *("cache", "cache_control"),
    }
)
NOT_IN_KEY_PREFIX = "prompt_cache_"

NULLABLE = frozenset(
    {
        *("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "n", "seed", "stop"),
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "tools", "tool_choice", "functions"),
        *("function_call", "parallel_tool_calls", "response_format", "reasoning_effort", "verbosity", "modalities"),
        *("audio", "prediction", "web_search_options", "moderation", "suffix", "echo", "best_of"),
    }
)
NULLABLE_IN_MESSAGE = frozenset({"content", "name", "refusal", "tool_calls", "function_call", "audio"})

_encode = msgspec.json.Encoder(decimal_format="number", order="deterministic").encode
Json = dict[str, Any]


def aside(body: Json) -> Json:
    """The fields that a backend is sent although the key leaves them out: who asks, and how to bill it."""
    ours = ("stream", "stream_options", "cache")
    return {k: v for k, v in body.items() if k not in ours and (k in NOT_IN_KEY or k.startswith(NOT_IN_KEY_PREFIX))}


def canonical(api: Api, body: Json, *, text: Literal["json", "text"] = "json") -> bytes:
    """The canonical bytes of a parsed body. Does not change `body`."""
    return _encode(_exact(_form(api, body, text)))


def canonical_parts(
    api: Api, body: Json, *, text: Literal["json", "text"] = "json"
) -> tuple[dict[str, bytes], list[bytes]]:
    """The canonical form in parts: its fields by name, without the messages or the prompt, and each message (a prompt
    is one). Bodies have equal parts where `canonical` gives equal bytes."""
    form = _form(api, body, text)
    said = form.pop("messages" if api == "chat" else "prompt", None)
    turns = said if api == "chat" and isinstance(said, list) else [said]
    return {name: _encode(_exact(value)) for name, value in form.items()}, [_encode(_exact(turn)) for turn in turns]


def _form(api: Api, body: Json, text: Literal["json", "text"]) -> Json:
    clean = str if text == "json" else normalize_text
    out = {k: v for k, v in body.items() if not _left_out(k, v)}
    if "max_tokens" in out and "max_completion_tokens" not in out:
        out["max_completion_tokens"] = out.pop("max_tokens")
    if api == "chat":
        if isinstance(messages := out.get("messages"), list):
            out["messages"] = [_message(m, clean) for m in messages]
        if isinstance(tools := out.get("tools"), list):
            out["tools"] = [_without_hint(t) for t in tools]
    elif isinstance(prompt := out.get("prompt"), str):
        out["prompt"] = clean(prompt)
    return out


def request_key(
    *,
    scope: Scope,
    endpoint: str,
    settings: bytes,
    api: Api,
    model: str,
    backend: str,
    revision: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    chunks: Sequence[bytes] | None = None,
) -> bytes:
    """The 32-byte key of one request in one scope. `settings` is the digest of the endpoint's settings that can
    change an answer, `headers` are those passed on upstream (with the query), `body` is the canonical body, `chunks`
    are the digests of the pieces of documents that the answer is made from (None: it is made from none)."""
    passed_on = digest("refrain.headers.1", [part.encode() for pair in sorted(headers) for part in pair])
    names = (endpoint, api, model, backend, revision)
    fields = [KEY_VERSION, scope.digest(), settings, *(n.encode() for n in names), passed_on, _chunks(chunks), body]
    return digest("refrain.key.1", fields)


def _chunks(digests: Sequence[bytes] | None) -> bytes:
    # No document found is another prompt than no documents asked for.
    return b"" if digests is None else digest("refrain.chunks.1", digests)


def normalize_text(text: str) -> str:
    """What `normalize: text` treats as equal: NFC, line ends, outer blanks (space, tab, line ends only)."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n")).strip(" \t\n")


def _left_out(name: str, value: Any) -> bool:
    if name in NOT_IN_KEY or name.startswith(NOT_IN_KEY_PREFIX):
        return True
    if value is None:
        return name in NULLABLE
    # `1 == True` in Python, so types are asked as well.
    one = isinstance(value, int | Decimal) and not isinstance(value, bool) and value == 1
    return (name == "n" and one) or (name == "logprobs" and value is False)


def _message(message: Any, clean: Callable[[str], str]) -> Any:
    if not isinstance(message, dict):
        return message
    out = {k: v for k, v in message.items() if k != "cache_control" and not (v is None and k in NULLABLE_IN_MESSAGE)}
    content = out.get("content")
    if isinstance(content, list):
        content = [_part(p, clean) for p in content]
        if len(content) == 1 and isinstance(p := content[0], dict) and p.keys() == {"type", "text"}:
            only_text = p["type"] == "text" and isinstance(p["text"], str)
            content = p["text"] if only_text else content
        out["content"] = content
    elif isinstance(content, str):
        out["content"] = clean(content)
    return out


def _part(part: Any, clean: Callable[[str], str]) -> Any:
    part = _without_hint(part)
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": clean(part["text"])}
    return part


def _without_hint(item: Any) -> Any:
    if isinstance(item, dict) and "cache_control" in item:
        return {k: v for k, v in item.items() if k != "cache_control"}
    return item


def _exact(value: Any) -> Any:
    """The same value with every Decimal in its one canonical spelling."""
    if isinstance(value, dict):
        return {k: _exact(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_exact(v) for v in value]
    if isinstance(value, Decimal):
        return _number(value)
    if type(value) is int and not -WHOLE < value < WHOLE:
        return _number(Decimal(value))
    return value


def _number(value: Decimal) -> Decimal | int:
    number = _EXACT.normalize(value)
    # Whole numbers become int, so that 1.0 and 1e2 meet 1 and 100; the bound keeps 1e308 from growing digits.
    return int(number) if -WHOLE < number < WHOLE and number == number.to_integral_value() else number
