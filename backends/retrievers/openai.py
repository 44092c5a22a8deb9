"""Another server's vector store, searched over the OpenAI API.

    POST {base_url}/vector_stores/{store}/search {"query", "max_num_results", "rewrite_query": false}
    -> {"data": [{"file_id", "filename", "score", "attributes": {...}, "content": [{"type": "text", "text"}]}]}

It knows no permissions: who may use the retriever sees the whole store. What is malformed is treated as in service.py.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any
from urllib.parse import quote

import msgspec

from backends.retrievers.base import Found, RetrieverError
from backends.retrievers.calling import Request, revision
from backends.retrievers.elsewhere import Elsewhere
from backends.retrievers.noticed import Gone
from backends.retrievers.pieces import LONGEST_NAME, Defect, Piece, id_at, parse, score_at, text_at, usable, version_at

MOST_AT_ONCE = 50
"""OpenAI refuses to give more results than this."""
WHAT = "the vector store"


class OpenAIRetriever(Elsewhere):
    """`base_url` ends before "vector_stores"."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        api_key: str | None,
        store: str,
        gone: Gone | None = None,
        mono: Callable[[], float] = monotonic,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/vector_stores/{quote(store, safe='')}/search"
        headers = {"content-type": "application/json"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        super().__init__(
            name, WHAT, revision=revision("openai", base_url, store), headers=headers, gone=gone, mono=mono
        )

    def effective(self, permissions: frozenset[str]) -> frozenset[str]:
        """None: they are not sent, and results do not name them."""
        return frozenset()

    async def search(
        self, query: str, *, top_k: int, permissions: frozenset[str] | None, deadline: float
    ) -> list[Found]:
        wanted = {"query": query, "max_num_results": min(top_k, MOST_AT_ONCE), "rewrite_query": False}
        try:
            request = Request("POST", self._url, msgspec.json.encode(wanted))
        except UnicodeEncodeError:
            raise RetrieverError("failed", "the question is not valid Unicode") from None
        return await self._find(request, self._read, top_k=top_k, deadline=deadline)

    def _read(self, data: bytes) -> list[Piece]:
        items = _member(parse(data, WHAT), "data")
        if not isinstance(items, list):
            raise RetrieverError("bad_results", f"{WHAT} answered without a list at data")
        return usable(items, _piece, name=self.name, what=WHAT)


def _piece(item: Any) -> Piece:
    document = id_at("file_id", _member(item, "file_id"))
    parts = _member(item, "content")
    if not isinstance(parts, list):
        raise Defect("content is no list")
    texts = [_member(part, "text") for part in parts if _member(part, "type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise Defect("content[].text is no text")
    text = text_at("content", "\n".join(texts))
    score = score_at("score", _member(item, "score"))
    version = version_at("attributes.version", _member(_member(item, "attributes"), "version"), text)
    title = _member(item, "filename")
    good = isinstance(title, str) and title.strip() and len(title) <= LONGEST_NAME
    return Piece(document, version, text, score, title if good else document)


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
