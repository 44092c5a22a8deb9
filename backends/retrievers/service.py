"""Any search service that takes a question over HTTP and answers with JSON.

What is asked of it is in body.py, and where its answer has what in paths.py. Where results name the permissions that
they need, those for which the principal lacks one are dropped here, and so is a result that does not name them as it
should. Otherwise the service is trusted to heed the permissions that it is sent.

    one result is left out     its id, text, score or version is missing, of another kind or too long
    the whole answer fails     no JSON, no list of results, too many bytes, values or results; or of those that the
                               principal may see none is left
"""

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from backends.retrievers.base import Found, RetrieverError
from backends.retrievers.body import DEFAULT, Template, parameters
from backends.retrievers.calling import Request, revision
from backends.retrievers.elsewhere import Elsewhere
from backends.retrievers.noticed import Gone
from backends.retrievers.paths import ListPath, OnePath
from backends.retrievers.pieces import (
    MOST_RESULTS,
    Piece,
    id_at,
    parse,
    score_at,
    text_at,
    text_version,
    usable,
    version_at,
)

WHAT = "the search service"


class ServiceRetriever(Elsewhere):
    """Raises ValueError for a template or path that cannot be used. The higher a score, the better: of a service that
    answers with distances the worst results would come first."""

    def __init__(
        self,
        name: str,
        *,
        url: str,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        results: str = "$.results",
        id: str = "$.id",
        text: str = "$.text",
        score: str = "$.score",
        version: str | None = None,
        permissions: str | None = None,
        gone: Gone | None = None,
        mono: Callable[[], float] = monotonic,
    ) -> None:
        self._method = method
        self._url = url
        self._body = Template(DEFAULT if body is None else body) if method == "POST" else None
        self._results = ListPath(results)
        self._id, self._text, self._score = OnePath(id), OnePath(text), OnePath(score)
        self._version = None if version is None else OnePath(version)
        self._permissions = None if permissions is None else OnePath(permissions)
        kind = {} if self._body is None else {"content-type": "application/json"}
        super().__init__(
            name,
            WHAT,
            revision=revision("http", url, method, body, results, id, text, score, version, permissions),
            headers=kind | {header.lower(): value for header, value in (headers or {}).items()},
            tells_versions=version is not None,
            gone=gone,
            mono=mono,
        )

    def effective(self, permissions: frozenset[str]) -> frozenset[str]:
        """All, since nobody knows what the service does with them; none where it is not told and results name none."""
        told = self._body is None or "permissions" in self._body.names
        return permissions if told or self._permissions is not None else frozenset()

    async def search(
        self, query: str, *, top_k: int, permissions: frozenset[str] | None, deadline: float
    ) -> list[Found]:
        request = self._request(query, top_k, permissions)
        return await self._find(request, partial(self._read, permissions), top_k=top_k, deadline=deadline)

    def _request(self, query: str, top_k: int, permissions: frozenset[str] | None) -> Request:
        try:
            if self._body is not None:
                return Request(self._method, self._url, self._body.fill(query, top_k, permissions))
            joint = "&" if "?" in self._url else "?"
            return Request(self._method, f"{self._url}{joint}{parameters(query, top_k, permissions)}")
        except UnicodeEncodeError:
            raise RetrieverError("failed", "the question is not valid Unicode") from None

    def _read(self, permissions: frozenset[str] | None, data: bytes) -> list[Piece]:
        items = self._results.values(parse(data, WHAT), MOST_RESULTS)
        if items is None:
            raise RetrieverError("bad_results", f"{WHAT} answered without a list at {self._results.text}")
        return usable(items, partial(self._piece, permissions), name=self.name, what=WHAT)

    def _piece(self, permissions: frozenset[str] | None, item: Any) -> Piece | None:
        # First, so that no error tells somebody of a result that is not for him.
        if not self._visible(item, permissions):
            return None
        document = id_at(self._id.text, self._id.value(item))
        text = text_at(self._text.text, self._text.value(item))
        score = score_at(self._score.text, self._score.value(item))
        if self._version is None:
            version = text_version(text)
        else:
            version = version_at(self._version.text, self._version.value(item), text)
        return Piece(document, version, text, score, title=document)

    def _visible(self, item: Any, permissions: frozenset[str] | None) -> bool:
        if permissions is None or self._permissions is None:
            return True
        needed = self._permissions.value(item)
        if isinstance(needed, str):
            needed = [needed]
        return isinstance(needed, list) and all(isinstance(one, str) and one in permissions for one in needed)
