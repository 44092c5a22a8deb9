"""The types of settings: each reads what the file holds, checks it, and prints back as it would be written.

Everything here is immutable, since one configuration is shared by all requests that began under it.
"""

import math
from collections.abc import Mapping
from ipaddress import ip_address
from types import MappingProxyType
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    SerializerFunctionWrapHandler,
    WrapSerializer,
)

from gateway.config.units import (
    Rate,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
    parse_whole_rate,
)

K = TypeVar("K")
V = TypeVar("V")


class Section(BaseModel):
    """A mapping of the file. Unknown keys are refused, and no error shows what was written."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _dump_map(value: Mapping[Any, Any], handler: SerializerFunctionWrapHandler) -> Any:
    return handler(dict(value))


FrozenMap = Annotated[Mapping[K, V], AfterValidator(MappingProxyType), WrapSerializer(_dump_map)]
"""A mapping in the order of the file."""


def no_entries() -> Mapping[Any, Any]:
    return MappingProxyType({})


# Durations


def _positive_duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds == 0:
        raise ValueError("must be more than 0")
    return seconds


def _ttl(value: object) -> float:
    seconds = parse_duration(value)
    if seconds == 0:
        # In other caches 0 means "for ever", "not at all" or "the default"; here it means nothing.
        raise ValueError("must be more than 0; to switch the tier off, write `off` in place of its settings")
    return seconds


_as_duration = PlainSerializer(format_duration)
Duration = Annotated[float, BeforeValidator(_positive_duration), _as_duration]
Ttl = Annotated[float, BeforeValidator(_ttl), _as_duration]
Grace = Annotated[float, BeforeValidator(parse_duration), _as_duration]
"""A duration that may be 0s."""

# Sizes and rates

Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size)]
RateLimit = Annotated[Rate, BeforeValidator(parse_whole_rate), PlainSerializer(format_rate)]
UsdRate = Annotated[Rate, BeforeValidator(parse_rate), PlainSerializer(format_rate)]

# Numbers. `${NAME}` gives text, so text that is a number is read as one; true is no number though Python thinks so.


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Whole = Annotated[int, BeforeValidator(_no_bool)]
Count = Annotated[Whole, Field(ge=1, le=10_000_000)]
Number = Annotated[float, BeforeValidator(_no_bool), AfterValidator(_finite)]
Usd = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(gt=0, le=1)]
"""A part of a whole: more than 0, at most 1."""

# Text


def _plain(value: str) -> str:
    if not value or value != value.strip() or not value.isprintable():
        raise ValueError("must be text without blanks at its ends and without control characters")
    return value


def _word(value: str) -> str:
    if not value.isprintable() or not value or any(c in " ,;" for c in value):
        # Lists of permissions travel in headers and tokens, separated by these.
        raise ValueError("must be one word, without blanks, commas and semicolons")
    return value


def _name(value: str) -> str:
    if not value or not all(c.isascii() and (c.isalnum() or c in "-_") for c in value):
        raise ValueError("a name may have letters a to z, digits, `-` and `_` only")
    return value


Text = Annotated[str, Field(max_length=1_000), AfterValidator(_plain)]
Word = Annotated[str, Field(max_length=200), AfterValidator(_word)]
Name = Annotated[str, Field(max_length=100), AfterValidator(_name)]
Words = Annotated[frozenset[Word], PlainSerializer(sorted)]
Texts = Annotated[frozenset[Text], PlainSerializer(sorted)]

# Secrets and addresses

MASK = "***"


def _secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text or not text.isprintable() or not text.isascii() or text != text.strip():
        # Secrets travel in HTTP headers, which cannot hold anything else.
        raise ValueError("must be printable ASCII text, not empty, without blanks at its ends")
    return value


def _mask(_: SecretStr) -> str:
    return MASK


Secret = Annotated[SecretStr, AfterValidator(_secret), PlainSerializer(_mask)]


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        usable = False
    if not usable or not value.isprintable() or " " in value:
        raise ValueError("must be a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or password; put a credential into its own setting")
    if parts.fragment:
        raise ValueError("must not hold a fragment (#...)")
    return value


def _base_url(value: str) -> str:
    if "?" in _http_url(value):
        raise ValueError("must not hold a query (?...)")
    return value.rstrip("/")


def _store_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        redis = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
    except ValueError:
        redis = False
    sqlite = value.startswith("sqlite:///") and value != "sqlite:///"
    if not (value == "memory://" or sqlite or redis) or not value.isprintable():
        raise ValueError("must be memory://, sqlite:///path, redis://host or rediss://host")
    return value


def _mask_url(value: str) -> str:
    """The URL without the two places where a credential can be: before the @ of the host, and the query."""
    scheme, separator, rest = value.partition("://")
    rest, query_mark, _ = rest.partition("?")
    host, slash, path = rest.partition("/")
    _, at, address = host.rpartition("@")
    return "".join(
        (scheme, separator, MASK if at else "", at, address, slash, path, query_mark, MASK if query_mark else "")
    )


BaseUrl = Annotated[str, AfterValidator(_base_url)]
# Fields of the next two are declared with `repr=False`, which a type cannot bring along by itself.
HttpUrl = Annotated[str, AfterValidator(_http_url), PlainSerializer(_mask_url)]
StoreUrl = Annotated[str, AfterValidator(_store_url), PlainSerializer(_mask_url)]


def is_loopback(host: str) -> bool:
    """Whether a server that binds to `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
