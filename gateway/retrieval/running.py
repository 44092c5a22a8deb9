"""One search on a retriever: how long it may take, and what of its results may be believed."""

import asyncio
from math import isfinite

import structlog

from backends.retrievers import Found, RetrieverError
from cache.retrieval import Passage, Search
from gateway.logs import where
from gateway.retrieval.managed import Managed
from gateway.visit import Visit

DEADLINE = 10.0
"""Seconds for one search: whoever waits for an answer made from documents has that before the first token, and a
search that takes longer is of a service that will not answer at all."""
GRACE = 1.0
"""Seconds that a retriever may take to notice its deadline."""

log = structlog.get_logger("refrain")


async def run_search(managed: Managed, search: Search, visit: Visit) -> list[Passage]:
    """The visit is the one that pays for it, whoever else waits, and also when it has ended before. Raises
    RetrieverError, whatever happens."""
    try:
        # Here, and not where it is waited for: the search goes on when the one who has begun it leaves others waiting.
        with managed.paid_by(visit):
            async with asyncio.timeout(DEADLINE + GRACE):
                found = await managed.search(
                    search.query, top_k=search.top_k, permissions=search.permissions, deadline=DEADLINE
                )
        return [_passage(piece) for piece in found[: search.top_k]]
    except RetrieverError:
        raise
    except TimeoutError:
        raise RetrieverError("deadline", "The search took too long.") from None
    except Exception as error:
        log.error("a retriever failed", retriever=search.retriever, kind=type(error).__name__, where=where(error))
        raise RetrieverError("failed", "The retriever failed on this search.") from None


def _passage(found: Found) -> Passage:
    try:
        for text in (found.document, found.version, found.title, found.text):
            text.encode()
    except UnicodeEncodeError:
        raise RetrieverError("bad_results", "The retriever has found what is no text.") from None
    if not isfinite(found.score):
        raise RetrieverError("bad_results", "The retriever has given a score that is no number.")
    return Passage(found.document, found.version, found.position, found.text, found.score, found.title, found.lasting)
