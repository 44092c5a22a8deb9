"""What an answer rests on: the pieces of documents that were found for its question.

They are found (from the cache, if it may be) before the answer is looked for, since the answer's key holds their
digests: whoever is given the same pieces may share an answer, and nobody else can find it. Their texts are needed only
where an answer is made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from backends.retrievers import Retriever
from cache.retrieval import Reference
from gateway.asgi import Receive
from gateway.ask import Ask
from gateway.config.endpoints import Retrieval, SemanticPolicy
from gateway.errors import ApiError
from gateway.retrieval.failures import RetrieverFailed
from gateway.retrieval.finder import Finder, Terms
from gateway.retrieval.labels import labels, shown, versioned
from gateway.retrieval.template import (
    UNREACHABLE,
    Json,
    Shown,
    documents_text,
    question_of,
    template_of,
    with_documents,
)
from gateway.strict_json import large_body
from gateway.visit import Visit

NO_DOCUMENTS = "unavailable"
"""`x-refrain-documents` of an answer that was to be made from documents and was not."""
RETRIEVER_DOWN = "retriever_down"

Texts = Callable[[], Awaitable[Mapping[bytes, str]]]
"""The texts of pieces, by their digests. Raises ApiError."""


class DocumentsUnreachable(ApiError):
    """The texts of what was found are gone, and nobody can be asked for them, as `failure` says: whoever gets this is
    to be answered without documents. `reason` is the retriever's word for it."""

    def __init__(self, failure: "RetrieverFailed | DocumentsUnreachable") -> None:
        super().__init__(failure.status, failure.message, code=failure.code, headers=failure.headers)
        self.reason: str = failure.reason

    def fresh(self) -> "DocumentsUnreachable":
        return DocumentsUnreachable(self)


@dataclass(frozen=True, slots=True)
class Grounds:
    """`references` are in the order of their documents; `documents` are their labels. The same would be found while
    `corpus` is of this `generation`, and no later than `expires` (wall-clock seconds). Without `texts` nobody could be
    asked for documents."""

    retrieval: Retrieval
    references: tuple[Reference, ...] = ()
    documents: tuple[str, ...] = ()
    texts: Texts | None = field(default=None, repr=False)
    corpus: Retriever | None = field(default=None, repr=False)
    generation: str = ""
    expires: float = inf
    mark: int | None = None  # in the order of purges, before the search: a later one meets what is made of it

    @property
    def digests(self) -> list[bytes]:
        """Of the pieces, 32 bytes each, in the one order that a set has: a part of the answer's key."""
        return sorted(reference.digest for reference in self.references)

    @property
    def shown(self) -> str:
        """The value of `x-refrain-documents`."""
        return NO_DOCUMENTS if self.texts is None else shown(self.documents)

    def titles(self) -> dict[str, str]:
        """Titles by the name that a document is cited by: its address where its id is one."""
        found: dict[str, str] = {}
        for r in self.references:
            name = r.document if r.document.startswith(("https://", "http://")) else self._name(r)
            found.setdefault(name, r.title or r.document)
        return found

    async def compose(self, ask: Ask) -> Json:
        """The body to send: the request's, with the documents beside the question. Raises ApiError."""
        template = template_of(self.retrieval)
        if self.texts is None:
            return with_documents(ask.api, ask.body, template, UNREACHABLE)
        texts = await self.texts()
        if any(reference.digest not in texts for reference in self.references):
            # The key, and whoever waits under it, is of pieces that are no more.
            message = "A document was changed while this question was being answered; ask again."
            raise ApiError(503, message, code="documents_changed", headers={"retry-after": "1"})
        pieces = [Shown(self._name(r), r.title, texts[r.digest]) for r in self.references]
        return with_documents(ask.api, ask.body, template, documents_text(pieces))

    def _name(self, reference: Reference) -> str:
        return versioned(self.retrieval.retriever, reference.document, reference.version)


class Grounding:
    """One per gateway."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    async def __call__(self, visit: Visit, ask: Ask, retrieval: Retrieval, receive: Receive | None = None) -> Ask:
        """The request with what its answer rests on, and with the key that follows from that; as it is where it asks
        nothing. With `receive` no search goes on for a client that has left. Raises ApiError and Disconnected."""
        question = question_of(ask.api, ask.body)
        if not question:
            visit.tier("retrieval", "skipped", "no_question")
            return ask
        name, mark = retrieval.retriever, self._finder.mark()
        lenient = visit.snapshot.retrievers[name].config.on_error == "answer_without"
        try:
            terms = Terms(retrieval.top_k, ask.directives, receive, _alike(ask, retrieval))
            results = await self._finder.find(visit, name, question, terms)
        except RetrieverFailed:
            if lenient:
                return without_documents(ask, retrieval)
            raise

        async def texts() -> Mapping[bytes, str]:
            try:
                full = await self._finder.texts(visit, results)
            except RetrieverFailed as error:
                raise (DocumentsUnreachable(error) if lenient else error) from None
            return {r.digest: text for r, text in zip(full.references, full.texts or (), strict=True)}

        references = chosen_of(results.references, retrieval.min_score)
        grounds = Grounds(
            retrieval,
            references,
            labels(name, ((r.document, r.version) for r in references)),
            texts,
            visit.snapshot.retrievers[name].retriever,
            results.search.generation,
            results.expires,
            mark,
        )
        return await asyncio.to_thread(ask.resting_on, grounds) if large_body(ask.raw) else ask.resting_on(grounds)


def without_documents(ask: Ask, retrieval: Retrieval) -> Ask:
    """The request for an answer of its own that says that the documents cannot be reached."""
    return replace(ask.resting_on(None), grounds=Grounds(retrieval), bypass=ask.bypass or RETRIEVER_DOWN)


def _alike(ask: Ask, retrieval: Retrieval) -> SemanticPolicy | None:
    """By which policy what was found for other questions may be used, if it may."""
    if not retrieval.semantic or "semantic" not in ask.directives.tiers:
        return None
    return ask.endpoint.config.cache.semantic or SemanticPolicy()


def chosen_of(references: Sequence[Reference], min_score: float | None) -> tuple[Reference, ...]:
    """Those that are good enough. In the order of their documents and not of their scores: the same pieces make one
    prompt and one key, whichever question has found them."""
    good = {r.digest: r for r in references if min_score is None or r.score >= min_score}
    return tuple(sorted(good.values(), key=lambda r: (r.document, r.version, r.position, r.digest)))
