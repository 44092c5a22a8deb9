"""Answers that are compared as a whole: JSON by its value, code by its text; and refusals, which say nothing."""

import json
import re
from decimal import Decimal
from typing import Any

MAX_JSON = 1_000_000
MAX_DIGITS = 28  # more would be rounded
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_COMMENT = re.compile(r"\s*(?:# |// |-- )")
_REFUSAL = re.compile(
    r"\b(?:can(?:'t|not| not)|unable to|won't|not able to|couldn't|must decline to|have to decline to)"
    r" (?:\w+ )?(?:help|assist|provide|answer|comply|fulfill|do that|support|share|engage|discuss|access)\b"
    r"|\bas an ai\b|kann (?:ihnen|dir) (?:dabei|damit|bei)\b.{0,40}\bnicht"
    r"|je ne peux pas (?:vous )?aider|no puedo ayudar"
    r"|(?:don't|do not) (?:have (?:access|information|enough)|know)\b",
    re.IGNORECASE,
)
_REFUSAL_WITHIN = 200  # characters: a refusal says so at once


class _NotPlain(ValueError):
    """JSON that other programs read in other ways."""


def canonical_json(text: str) -> str | None:
    """One spelling of an object or array, alone or in one fence; None when the answer is none."""
    body = text.strip()
    if (fence := _FENCE.fullmatch(body)) is not None:
        body = fence[1].strip()
    if body[:1] not in ("{", "[") or len(body) > MAX_JSON:
        return None
    try:
        value = json.loads(
            body, object_pairs_hook=_object, parse_float=_number, parse_int=_number, parse_constant=_none
        )
        return repr(value)  # which tells a number from a text, and an object (a tuple) from an array
    except (ValueError, RecursionError, ArithmeticError):
        return None


def _object(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _NotPlain
    return tuple(sorted(found.items()))


def _number(digits: str) -> Decimal:
    if len(digits) > MAX_DIGITS:
        raise _NotPlain
    return Decimal(digits).normalize() + 0  # no -0


def _none(name: str) -> None:
    raise _NotPlain(name)


def cut_code(text: str) -> tuple[str, str]:
    """(the code blocks, without blank and comment lines; the rest). The first is "" where there are none."""
    blocks = [canonical_json(found) or _bare(found) for found in _FENCE.findall(text)]
    return "\0".join(block for block in blocks if block), _FENCE.sub("\n", text)


def _bare(code: str) -> str:
    lines = (line.rstrip() for line in code.splitlines())
    return "\n".join(line for line in lines if line and not _COMMENT.match(line))


def is_refusal(prose: str) -> bool:
    return _REFUSAL.search(prose, 0, _REFUSAL_WITHIN) is not None
