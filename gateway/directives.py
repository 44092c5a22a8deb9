"""What a request asks of the cache: headers and the LiteLLM-style `cache` object, read into one value.

A request may narrow (skip, shorten, fewer tiers), never widen: nothing here lengthens a life, picks a scope, a
backend or a credential.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from gateway.config.units import parse_duration
from gateway.errors import bad_request, shorten

TIERS = ("exact", "semantic", "prefix", "retrieval")
MAX_TAGS = 32
MAX_TAG = 128

HEADERS = frozenset({b"cache-control", b"x-refrain-ttl", b"x-refrain-tags", b"x-refrain-tier"})
"""A request with one of these is never served by the byte-identical path."""


@dataclass(frozen=True, slots=True)
class Directives:
    """Seconds throughout. `max_age` None: any age; `max_stale` None: no stale answer."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    max_stale: float | None = None
    ttl: float | None = None
    tags: tuple[str, ...] = ()
    tiers: frozenset[str] = frozenset(TIERS)


NONE = Directives()


def read_directives(headers: Mapping[bytes, bytes], cache: Any) -> Directives:
    """Directives of one request. `cache` is the body's `cache` member (None: absent). Raises ApiError 400."""
    if cache is None and HEADERS.isdisjoint(headers):
        return NONE
    control = _cache_control(headers.get(b"cache-control", b"").decode("latin-1"))
    extra = _cache_object(cache)
    ages = [a for a in (control.max_age, extra.max_age) if a is not None]
    lives = [t for t in (extra.ttl, _ttl_header(headers.get(b"x-refrain-ttl"))) if t is not None]
    max_age = min(ages, default=None)
    return Directives(
        # An answer of age 0 is not younger than "0 seconds at most": max-age=0 asks for a fresh one.
        no_cache=control.no_cache or extra.no_cache or max_age == 0,
        no_store=control.no_store or extra.no_store,
        only_if_cached=control.only_if_cached,
        max_age=max_age,
        max_stale=control.max_stale,
        ttl=min(lives, default=None),
        tags=_tags(headers.get(b"x-refrain-tags")),
        tiers=_tiers(headers.get(b"x-refrain-tier")),
    )


_DIRECTIVE = re.compile(r'[\s,]*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^",\s]*))?\s*(?:,|$)')


def _cache_control(text: str) -> Directives:
    found: dict[str, str | None] = {}
    position = 0
    while position < len(text) and (match := _DIRECTIVE.match(text, position)):
        value = match[2]
        found.setdefault(match[1].lower(), value.strip('"') if value is not None else None)
        position = match.end()
    if text[position:].strip(", \t"):
        raise _bad_control("Cache-Control", text)
    return Directives(
        no_cache="no-cache" in found,
        no_store="no-store" in found,
        only_if_cached="only-if-cached" in found,
        max_age=_seconds(found, "max-age"),
        max_stale=inf if found.get("max-stale", "") is None else _seconds(found, "max-stale"),
    )


def _seconds(found: Mapping[str, str | None], name: str) -> float | None:
    if name not in found:
        return None
    value = found[name] or ""
    if not (value.isascii() and value.isdigit()):
        raise _bad_control("Cache-Control", f"{name}={value}")
    return float(value[:10])  # more digits than that mean "for ever" as well (RFC 9111, 1.2.2)


def _bad_control(header: str, text: str) -> Exception:
    return bad_request(f"{header}: cannot read {shorten(text)!r}.", param=header.lower(), code="invalid_header")


def _cache_object(cache: Any) -> Directives:
    if cache is None:
        return NONE
    if not isinstance(cache, dict):
        raise bad_request('`cache` must be an object such as {"no-cache": true}.', param="cache")
    return Directives(
        no_cache=_flag(cache, "no-cache"),
        no_store=_flag(cache, "no-store"),
        max_age=_number(cache, "s-maxage"),
        ttl=_number(cache, "ttl"),
    )


def _flag(cache: Mapping[str, Any], name: str) -> bool:
    value = cache.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"`cache.{name}` must be true or false.", param=f"cache.{name}")
    return bool(value)


def _number(cache: Mapping[str, Any], name: str) -> float | None:
    value = cache.get(name)
    if value is None:
        return None
    if isinstance(value, bool | str | list | dict) or not isfinite(float(value)) or float(value) < 0:
        raise bad_request(f"`cache.{name}` must be a number of seconds, 0 or more.", param=f"cache.{name}")
    return float(value)


def _ttl_header(value: bytes | None) -> float | None:
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    try:
        return parse_duration(text)
    except ValueError as error:
        raise bad_request(f"x-refrain-ttl: {error}", param="x-refrain-ttl", code="invalid_header") from None


def _tags(value: bytes | None) -> tuple[str, ...]:
    if value is None:
        return ()
    try:
        tags = tuple(dict.fromkeys(t for t in (t.strip() for t in value.decode("utf-8").split(",")) if t))
    except UnicodeDecodeError:
        raise bad_request("x-refrain-tags is not valid UTF-8.", param="x-refrain-tags", code="invalid_header") from None
    if len(tags) > MAX_TAGS or any(len(t) > MAX_TAG for t in tags):
        message = f"x-refrain-tags: at most {MAX_TAGS} tags of {MAX_TAG} characters."
        raise bad_request(message, param="x-refrain-tags", code="invalid_header")
    return tags


def _tiers(value: bytes | None) -> frozenset[str]:
    if value is None:
        return frozenset(TIERS)
    names = frozenset(t.strip().lower() for t in value.decode("latin-1").split(",") if t.strip())
    if unknown := names.difference(TIERS):
        message = f"x-refrain-tier: {shorten(min(unknown))!r} is no tier; there are {', '.join(TIERS)}."
        raise bad_request(message, param="x-refrain-tier", code="invalid_header")
    return names
