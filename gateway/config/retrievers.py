"""Where documents come from."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gateway.config.fields import BaseUrl, FrozenMap, HttpUrl, Secret, Section, Text, Texts, no_entries


class _Retriever(Section):
    kind: str
    tenants: Texts = frozenset()
    on_error: Literal["fail", "answer_without"] = "fail"
    webhook_secret: Secret | None = None


class FolderRetriever(_Retriever):
    """Files below a folder; `acl` says which permissions they need."""

    kind: Literal["folder"]
    path: Path
    acl: Path | None = None


class HttpRetriever(_Retriever):
    """A search service. The last six settings are JSON paths into its answer."""

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


class OpenAIRetriever(_Retriever):
    """A vector store behind the OpenAI API."""

    kind: Literal["openai"]
    base_url: BaseUrl
    api_key: Secret | None = None
    store: Text


Retriever = Annotated[FolderRetriever | HttpRetriever | OpenAIRetriever, Field(discriminator="kind")]
