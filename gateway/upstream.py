"""Upstream replies, read: a whole answer, or the chunks of one; and their errors, in our envelope.

An upstream's error text may repeat what it was sent: the provider's key, an internal URL. So the text of an error
that is not the client's to mend (401, 403, 5xx, redirects) stays here, and in the text of one that is, everything
that looks like a credential or an address is masked.
"""

import re
from collections.abc import AsyncGenerator, Container, Iterable
from contextlib import aclosing
from typing import Any

import msgspec

from backends.base import Backend, BackendError, Call, Reply
from cache.entry import Usage
from gateway.backend_errors import failure
from gateway.errors import ApiError
from gateway.wire.sse import DONE, EventParser, EventTooLarge

# Statuses whose cause is in the request: their messages tell the client what to change.
CLIENTS_FAULT = frozenset({400, 404, 409, 413, 415, 422, 429})
ENGINE_FAULTS = {
    "engine_failed": "The model failed on this request.",
    "engine_out_of_memory": "The engine ran out of memory on this request.",
    "engine_stopping": "The engine is stopping.",
}
"""What our own engine reports with a status of 500 or more, by its code."""
MAX_TOKENS = 10**9
"""Of one call; what is reported beyond that is nonsense, and would spoil the sums."""
PASSED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
_ADDRESS = re.compile(r"(?i)\bbearer\s+\S+|\b[a-z][a-z0-9+.-]*://\S+")
_TIMING = re.compile(r"(?:^|,)\s*(queue|prefill);dur=(\d{1,9}(?:\.\d{1,9})?)\s*(?=,|$)")
_FIELD = re.compile(r"[A-Za-z_][\w.\[\]]{0,100}")
_FIELD_HEAD = re.compile(r"[.\[]")
_PREFIXED = re.compile(r"(?i)\b(?:sk|rf|pk|key|api|xai|gsk)[-_][\w*+/=.-]{6,}")
_LONG_WORD = re.compile(r"[\w*+/=.-]{12,}")

Json = dict[str, Any]
Event = tuple[bytes, Json | None]


async def send(backend: Backend, call: Call, model: str = "", fields: Container[str] = ()) -> Reply:
    """A reply of status 200. Raises ApiError for every other status and for every failure before it; `model` is what
    was asked for and `fields` are the names in the body: an error may name them."""
    try:
        reply = await backend.send(call)
    except BackendError as error:
        raise failure(error) from error
    if reply.status == 200:
        return reply
    try:
        raise _refusal(backend, reply, await reply.read(), model, fields)
    except BackendError as error:
        raise failure(error) from error
    finally:
        await reply.aclose()


async def read_whole(reply: Reply) -> bytes:
    """The body of a reply. Raises ApiError."""
    try:
        return await reply.read()
    except BackendError as error:
        raise failure(error) from error


async def read_answer(reply: Reply) -> tuple[bytes, Json]:
    """The whole answer, as bytes and parsed. Raises ApiError 502."""
    raw = await read_whole(reply)
    try:
        answer = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise broken("The backend's answer is not valid JSON.") from None
    if not isinstance(answer, dict):
        raise broken("The backend's answer is not a JSON object.")
    return raw, answer


async def read_events(reply: Reply) -> AsyncGenerator[list[Event], None]:
    """The events of a streamed answer as they arrive: (data, parsed), parsed None for `[DONE]`. Raises ApiError."""
    parser = EventParser()
    try:
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                if found := parser.feed(chunk):
                    events, wrong = _parsed(found)
                    if events:
                        yield events
                    if wrong:
                        raise broken(wrong)
        events, wrong = _parsed(parser.finish())
        if events:
            yield events
        if wrong:
            raise broken(wrong)
    except BackendError as error:
        raise failure(error) from error
    except EventTooLarge:
        raise broken("The backend's stream holds an event that is too large.") from None


def _parsed(found: Iterable[bytes]) -> tuple[list[Event], str]:
    """The events up to the first that is none, and what is wrong with that one: how the network has split a stream
    must not decide what of it arrives."""
    events: list[Event] = []
    for data in found:
        if data.startswith(DONE):
            events.append((data, None))
            continue
        try:
            parsed = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return events, "The backend's stream holds an event that is not valid JSON."
        if not isinstance(parsed, dict):
            return events, "The backend's stream holds an event that is not a JSON object."
        events.append((data, parsed))
    return events, ""


def usage_of(answer: Json | None) -> Usage:
    """Tokens as the backend reports them; nothing reported counts as nothing."""
    usage = (answer or {}).get("usage")
    if not isinstance(usage, dict):
        return Usage()
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))


def cached_of(answer: Json | None) -> int | None:
    """How many of the prompt's tokens the backend had from an earlier prompt, as it reports; None where it does not."""
    usage = (answer or {}).get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return _whole(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: Any) -> int:
    return _whole(value) or 0


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None


def upstream_id(reply: Reply) -> str:
    """The provider's own request id, for support cases; only what is safe in a header."""
    found = reply.headers.get("x-request-id", "")
    return found if len(found) <= 128 and found.isascii() and found.isprintable() else ""


def timings(reply: Reply) -> dict[str, float]:
    """What an engine says of the time before its first token, as phases of the decision: milliseconds by name."""
    found = _TIMING.findall(reply.headers.get("server-timing", ""))
    return {f"upstream_{name}": float(ms) for name, ms in found}


def stream_error(parsed: Json, backend: Backend) -> ApiError:
    """The error that a backend sent in place of an answer, or in the middle of its stream."""
    text = "The backend reported an error in the middle of its answer."
    return _from_envelope(502, parsed.get("error"), text, private=backend.private)


def _refusal(backend: Backend, reply: Reply, raw: bytes, model: str, fields: Container[str]) -> ApiError:
    name, status = backend.name, reply.status
    headers = {h: reply.headers[h] for h in PASSED_HEADERS if h in reply.headers}
    if status in (401, 403):
        text = f"Backend '{name}' refused the gateway's credentials ({status}): check its `api_key`."
        return ApiError(502, text, code="backend_auth_failed", headers={"x-should-retry": "false"}, final=True)
    try:
        envelope = msgspec.json.decode(raw).get("error")
    except (msgspec.DecodeError, AttributeError, RecursionError, UnicodeDecodeError):
        envelope = None
    if status not in CLIENTS_FAULT:
        known = status if 500 <= status < 600 else 502
        final = status < 500
        code = envelope.get("code") if isinstance(envelope, dict) else None
        fault = ENGINE_FAULTS.get(code) if isinstance(code, str) else None
        text = fault or f"Backend '{name}' answered {status}."
        return ApiError(known, text, code=code if fault else "backend_error", headers=headers, final=final)
    error = _from_envelope(
        status, envelope, f"Backend '{name}' refused the request ({status}).", model, fields, backend.private
    )
    error.headers.update(headers)
    error.final = True
    return error


def _from_envelope(
    status: int,
    envelope: Any,
    otherwise: str,
    model: str = "",
    fields: Container[str] = (),
    private: Iterable[str] = (),
) -> ApiError:
    if not isinstance(envelope, dict):
        return ApiError(status, otherwise, code="backend_error")

    def text(name: str) -> str | None:
        value = envelope.get(name)
        return mask(value[:2000], model, private) if isinstance(value, str) else None

    param = envelope.get("param")
    if not (isinstance(param, str) and _FIELD.fullmatch(param) and _FIELD_HEAD.split(param)[0] in fields):
        param = text("param")
    return ApiError(status, text("message") or otherwise, code=text("code"), param=param, type=text("type"))


def mask(text: str, model: str, private: Iterable[str] = ()) -> str:
    """The text without `private` words and without what looks like a credential or an address; the model's own name
    may stay."""
    for word in private:
        text = text.replace(word, "***")

    def shown(found: re.Match[str]) -> str:
        # Keys, tokens and ids are long words that mix letters and digits; what a client needs to read hardly ever is.
        word = found[0]
        mixed = any(c.isdigit() for c in word) and any(c.isalpha() for c in word)
        return "***" if mixed and word.strip(".") != model else word

    return _LONG_WORD.sub(shown, _PREFIXED.sub("***", _ADDRESS.sub("***", text)))


def broken(text: str) -> ApiError:
    """A reply that is no answer."""
    return ApiError(502, text, code="backend_reply_broken")
