"""Why a request was not answered from a cache: a code, words for people, and what differed from the nearest entry.

Only names of components and keys (digests) are in it, never a text: `parameter temperature`, not the temperature. The
words are made when somebody reads them, since a hundred thousand of these are kept.
"""

from typing import Any

from gateway.errors import shorten
from gateway.why.reasons import EXACT, REQUEST, not_stored, semantic

MAX_NAMES = 8
"""Names of components that are told; of more, how many."""

CODES: dict[str, str] = {
    "first_request": "No answer that may be shared with this request was stored yet, since the start of this gateway.",
    "parameter": "Send the same value to have that answer reused.",
    "tools": "Tools are part of the key, in the order in which they are sent.",
    "header": "Headers that are sent on to the backend are part of the key.",
    "query": "The API version is part of the key.",
    "system_prompt": "If it holds something that changes, such as a date, move that into the last turn.",
    "earlier_turn": "Everything said before is part of the key.",
    "continued": "The nearest entry is an earlier turn of the same conversation. Each turn has an answer of its own.",
    "question": "Only what is asked differs from the nearest entry.",
    "documents": "Other pieces of documents were found for the same request: a document is new, was changed or "
    "deleted, or may be seen by other people.",
    "model": "Models share no answers.",
    "endpoint": "Endpoints share no answers, even for the same request.",
    "api": "The APIs share no answers, even for the same prompt.",
    "backend": "The backend, its address, weights or precision changed, and what the former one said is not reused.",
    "several": "All of it is part of the key.",
    "purged_or_evicted": "The same request was answered and stored before, but that answer is gone: it was purged, had "
    "to make room (store.memory, store.max_bytes), went long after its end, or the store did not answer.",
    "not_stored_before": "The same request came before, and its answer was not kept:",
    "failed": "It was not answered:",
}
"""Codes beside those of gateway.why.reasons, and what is said of them."""


class Why:
    """`differs` are names of components (at most MAX_NAMES, `more` beside them), `nearest` the key of the entry that
    they differ from. `reason` is the code behind the code: what the semantic tier said, or why an answer was not kept.
    `amount` is a similarity (cosine) or seconds since an expiry."""

    __slots__ = ("amount", "code", "differs", "more", "nearest", "reason")

    def __init__(
        self,
        code: str,
        differs: tuple[str, ...] = (),
        nearest: bytes | None = None,
        *,
        reason: str | None = None,
        amount: float | None = None,
    ) -> None:
        self.code = code
        self.differs = differs[:MAX_NAMES]
        self.more = max(0, len(differs) - MAX_NAMES)
        self.nearest = nearest
        self.reason = reason
        self.amount = amount

    @property
    def text(self) -> str:
        """One or two plain sentences."""
        code, reason = self.code, self.reason
        if code == "expired":
            ago = "" if self.amount is None else f" It ended {duration(self.amount)} ago."
            return EXACT[code] + ago
        if code == "not_stored_before":
            return f"{CODES[code]} {_closed(not_stored(reason or ''))}"
        if code == "failed":
            return f"{CODES[code]} {shorten(reason or 'internal_error')}."
        if self.nearest is None or not self.differs:
            return CODES.get(code) or REQUEST.get(code) or EXACT[code]
        if code == "question":
            return CODES[code] + (f" {semantic(reason, self.amount)}" if reason else "")
        names = ", ".join(self.differs) + (f" and {self.more} more" if self.more else "")
        asked_too = f" {semantic(reason, self.amount)}" if reason else ""
        return f"It differs from the nearest entry in: {names}. {CODES[code]}{asked_too}"

    def as_dict(self) -> dict[str, Any]:
        nearest = None if self.nearest is None else self.nearest.hex()
        return {"code": self.code, "text": self.text, "differs": list(self.differs), "nearest": nearest}

    def __repr__(self) -> str:
        return f"Why({self.code}, {len(self.differs) + self.more} differ)"


def code_of(differs: tuple[str, ...]) -> str:
    """The one word for what differs. What follows from something else that differs (another model has another backend)
    is not counted."""
    kinds = {_kind(name) for name in differs}
    if "endpoint" in kinds:
        kinds -= {"backend"}
    if "model" in kinds:
        kinds -= {"backend"}
    if "question" in kinds:
        kinds -= {"documents"}
    if "earlier_turn" in kinds:
        kinds -= {"question"}
    return kinds.pop() if len(kinds) == 1 and len(differs) > 0 and _alone(differs) else "several"


def _alone(differs: tuple[str, ...]) -> bool:
    """Several parameters, or headers, are several things; several turns are one."""
    return sum(name.startswith(("parameter ", "header ")) for name in differs) <= 1


def _kind(name: str) -> str:
    if name in ("prompt", "last turn"):
        return "question"
    if name == "endpoint settings":
        return "endpoint"
    if name == "other parameters":
        return "parameter"
    first = name.partition(" ")[0]
    if first in ("parameter", "header", "query"):
        return first
    return "earlier_turn" if first == "earlier" else name.replace(" ", "_")


def _closed(text: str) -> str:
    return text if text.endswith(".") else text + "."


def duration(seconds: float) -> str:
    """Such as "90 seconds" or "3 days", rounded down."""
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {name}s"
    count = max(0, int(seconds))
    return f"{count} second" + ("" if count == 1 else "s")
