"""Where documents come from."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.config.fields import BaseUrl, FrozenMap, HttpUrl, Secret, Section, Text, Texts, no_entries
from gateway.config.problems import Found, refusal

_HEADER = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
"""What the name of a header may be made of (RFC 9110), in small letters."""
# What the connection needs; a wrong value would break it.
_OUR_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def _path(value: object) -> object:
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        # Empty, it would be the folder of the configuration, with whatever lies there.
        raise ValueError("must be a path; the folder of this file is `.`")
    return value


_Path = Annotated[Path, BeforeValidator(_path)]


class _Retriever(Section):
    kind: str
    tenants: Texts = frozenset()
    on_error: Literal["fail", "answer_without"] = "fail"
    webhook_secret: Secret | None = None


class FolderRetriever(_Retriever):
    """Files below a folder; `acl` says which permissions they need."""

    kind: Literal["folder"]
    path: _Path
    acl: _Path | None = None


class HttpRetriever(_Retriever):
    """A search service. `results` is a JSON path into its answer, and the five after it are paths into one result."""

    kind: Literal["http"]
    url: HttpUrl = Field(repr=False)
    method: Literal["GET", "POST"] = "POST"
    headers: FrozenMap[Text, Secret] = Field(default_factory=no_entries)
    body: str | None = None
    results: Text = "$.results"
    id: Text = "$.id"
    text: Text = "$.text"
    score: Text = "$.score"
    version: Text | None = None
    permissions: Text | None = None

    @model_validator(mode="after")
    def _usable(self) -> "HttpRetriever":
        if found := [*self._unusable_headers(), *self._unusable_texts()]:
            raise refusal(found)
        return self

    def _unusable_headers(self) -> Iterator[Found]:
        seen: set[str] = set()
        for name in self.headers:
            known = name.lower()
            if not _HEADER.issuperset(known):
                yield ("headers", name), "is no name of a header"
            elif known in _OUR_HEADERS:
                yield ("headers", name), "is set by the gateway itself"
            elif known in seen:
                yield ("headers", name), "is there already, in other letters"
            seen.add(known)

    def _unusable_texts(self) -> Iterator[Found]:
        # Here, since they bring libraries with them that take a while, and that few configurations need.
        from backends.retrievers.body import Template
        from backends.retrievers.paths import ListPath, OnePath

        if self.body is not None and self.method == "GET":
            yield ("body",), "does nothing with `method: GET`, which puts the question into the URL"
        checks: Mapping[str, Callable[[str], object]] = {"body": Template, "results": ListPath} | dict.fromkeys(
            ("id", "text", "score", "version", "permissions"), OnePath
        )
        for name, check in checks.items():
            if (text := getattr(self, name)) is not None:
                try:
                    check(text)
                except ValueError as error:
                    yield (name,), str(error)


class OpenAIRetriever(_Retriever):
    """A vector store behind the OpenAI API."""

    kind: Literal["openai"]
    base_url: BaseUrl
    api_key: Secret | None = None
    store: Text


Retriever = Annotated[FolderRetriever | HttpRetriever | OpenAIRetriever, Field(discriminator="kind")]
