"""The policy of an endpoint: how it works, who shares its answers, and how long they live."""

from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    WrapSerializer,
    model_validator,
)

from gateway.config.fields import (
    Count,
    Duration,
    Fraction,
    Grace,
    Number,
    RateLimit,
    Section,
    Texts,
    Ttl,
    UsdRate,
    Words,
)
from gateway.config.problems import Found, refusal


class ExactPolicy(Section):
    """Seconds that an answer lives, and that it may be used beyond that while another is fetched or after an error."""

    ttl: Ttl = 86_400.0
    stale_while_revalidate: Grace = 0.0
    stale_if_error: Grace = 0.0


class AuditBudget(Section):
    requests: RateLimit | None = None
    usd: UsdRate | None = None


class SemanticPolicy(Section):
    ttl: Ttl = 86_400.0
    max_error: Fraction = 0.01
    min_precision: Fraction = 0.97
    strict: bool = False
    adapt: bool = True
    threshold: Fraction | None = None
    max_words: Count = 64
    audit_budget: AuditBudget = AuditBudget()


def _read_switch(value: object) -> object:
    """YAML 1.1 reads an unquoted `off` as false; None stands for a tier that is off."""
    match value:
        case False | "off" | "false":
            return None
        case True | "on" | "true":
            return {}
        case None:
            # `exact:` with nothing after it. Someone who commented out the last setting wanted the defaults.
            raise ValueError("must be a mapping of settings, or `off`")
    return value


def _dump_switch(value: Any, handler: SerializerFunctionWrapHandler) -> Any:
    return "off" if value is None else handler(value)


class CachePolicy(Section):
    """The two tiers that keep answers. None: the tier is off."""

    exact: Annotated[ExactPolicy | None, BeforeValidator(_read_switch), WrapSerializer(_dump_switch)] = ExactPolicy()
    semantic: Annotated[SemanticPolicy | None, BeforeValidator(_read_switch), WrapSerializer(_dump_switch)] = (
        SemanticPolicy()
    )


class Allow(Section):
    """Who may use the endpoint; empty: no limit."""

    tenants: Texts = frozenset()
    permissions: Words = frozenset()


def _template(value: str) -> str:
    if value.count("{documents}") != 1 or value.count("{question}") > 1:
        raise ValueError("must hold {documents} once, and may hold {question} once")
    return value


class Retrieval(Section):
    """`semantic`: what was found for another query that means the same is used for this one, too."""

    retriever: str
    top_k: Annotated[Count, Field(le=1_000)] = 4
    template: Annotated[str, Field(max_length=20_000), AfterValidator(_template)] | None = None
    min_score: Number | None = None
    semantic: bool = False


def _time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ValueError, OSError, LookupError):  # no such zone, a path that leads out of the database, a folder of it
        raise ValueError("must be a time zone of the IANA database, such as Europe/Berlin or UTC") from None
    return value


class Endpoint(Section):
    mode: Literal["stream", "request_response", "batch"] = "stream"
    share: Literal["user", "permissions", "tenant", "public"] = "tenant"
    backend: str | None = None
    fallback: tuple[str, ...] = ()
    deadline: Duration | None = None
    priority: Literal["interactive", "batch"] = "interactive"
    normalize: Literal["json", "text"] = "json"
    sampled: Literal["reuse", "bypass"] = "reuse"
    volatile_ttl: Duration = 300.0
    valid: Literal["day", "week"] | None = None
    time_zone: Annotated[str, AfterValidator(_time_zone)] | None = None
    finish: bool = False
    prefix_scope: Literal["user", "tenant", "public"] = "tenant"
    allow: Allow = Allow()
    retrieval: Retrieval | None = None
    budget: Duration | None = None
    cache: CachePolicy = CachePolicy()

    @model_validator(mode="before")
    @classmethod
    def _public_is_exact(cls, data: Any) -> Any:
        """On `share: public` the semantic tier is refused, so its default there is off."""
        if isinstance(data, dict) and data.get("share") == "public":
            cache = data.get("cache", {})
            if isinstance(cache, dict) and "semantic" not in cache:
                return {**data, "cache": {**cache, "semantic": False}}
        return data

    @model_validator(mode="after")
    def _agree(self) -> "Endpoint":
        found: list[Found] = []
        if self.share == "public" and self.cache.semantic is not None:
            found.append((("cache", "semantic"), "must be off on `share: public`"))
        if self.valid is not None and self.time_zone is None:
            found.append((("time_zone",), "is needed with `valid`, such as Europe/Berlin or UTC"))
        if self.valid is None and self.time_zone is not None:
            found.append((("time_zone",), "does nothing without `valid`"))
        if found:
            raise refusal(found)
        return self
