"""What the retrievers have in common that ask a service over HTTP."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic

from backends.retrievers.base import Found, RetrieverState
from backends.retrievers.calling import Caller, Request
from backends.retrievers.noticed import Gone, Noticed
from backends.retrievers.pieces import Piece, found

LASTING = 300.0
"""Seconds for which results are used again. Nobody has to tell of a change, so one may go unnoticed for so long."""


class Elsewhere:
    """`what` is the service in words, such as "the search service". `headers` may hold a credential. `gone` is as in
    Noticed. `tells_versions`: those of its results are the ones that notices name."""

    def __init__(
        self,
        name: str,
        what: str,
        *,
        revision: str,
        headers: Mapping[str, str],
        tells_versions: bool = False,
        gone: Gone | None = None,
        mono: Callable[[], float] = monotonic,
    ) -> None:
        self.name = name
        self.revision = revision
        self.lasting = LASTING
        self._noticed = Noticed(name, gone, mono)
        self._tells_versions = tells_versions
        self._caller = Caller(name, what, headers, mono)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.state})"

    async def start(self) -> None:
        """Nothing to wait for: connections are opened when calls need them."""

    @property
    def state(self) -> RetrieverState:
        return self._caller.state

    @property
    def detail(self) -> str:
        return self._caller.detail

    @property
    def generation(self) -> str:
        return self._noticed.generation

    async def changed(self, document: str, *, version: str | None, deleted: bool) -> None:
        """Ends all results. One that is `deleted` is found no more until a version of it is named."""
        self._noticed.changed(document, version, deleted)

    async def aclose(self) -> None:
        await self._caller.aclose()

    async def _find(
        self, request: Request, read: Callable[[bytes], list[Piece]], *, top_k: int, deadline: float
    ) -> list[Found]:
        since = self._noticed.mark()
        pieces = await self._caller.call(request, read, top_k=top_k, deadline=deadline)
        best = found(pieces, top_k=top_k, gone=partial(self._noticed.gone, since=since))
        if not self._tells_versions:
            return best
        return [replace(one, lasting=0.0) if self._noticed.ended(one.document, one.version) else one for one in best]
