"""`POST /v1/vector_stores/{id}/search`: what a retriever finds, in OpenAI's shape. Its name is the store's id.

A field that is not known is refused rather than passed over: it may be one that was to keep results out.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any

import msgspec

from cache.framing import digest
from cache.retrieval import Reference, Results
from cache.stores.memory import MemoryStore
from gateway.decisions import Decision, Outcome
from gateway.directives import read_directives
from gateway.errors import bad_request, shorten
from gateway.heads import JSON
from gateway.reception import Arrival
from gateway.retrieval.finder import TIER, Finder, Terms, managed_for
from gateway.retrieval.labels import labels, shown
from gateway.strict_json import large_body, parse_object
from gateway.visit import Visit

MAX_QUERIES = 10
MAX_QUERY = 4_096
"""Characters: more than any embedding model reads, and than a person asks."""
MAX_RESULTS = 50
DEFAULT_RESULTS = 10
MAX_RANKER = 64
PAGE = "vector_store.search"
"""The form of results that a page is kept as, beside them."""

_FIELDS = ("query", "filters", "max_num_results", "ranking_options", "rewrite_query", "cache")
_RANKING = ("ranker", "score_threshold")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`threshold`: the score that a result must have at least."""

    queries: tuple[str, ...] = field(repr=False)
    most: int
    threshold: float | None


def read_search(body: Json) -> Wanted:
    """Raises ApiError 400 naming the field."""
    _known(body, _FIELDS, "")
    if body.get("filters") is not None:
        raise bad_request("`filters` is not supported here: leave it out.", param="filters", code="unsupported_value")
    if not isinstance(body.get("rewrite_query"), bool | None):
        raise bad_request("`rewrite_query` must be true or false.", param="rewrite_query")
    most = body.get("max_num_results")
    if most is None:
        most = DEFAULT_RESULTS
    elif type(most) is not int or not 1 <= most <= MAX_RESULTS:
        message = f"`max_num_results` must be a whole number from 1 to {MAX_RESULTS}."
        raise bad_request(message, param="max_num_results")
    return Wanted(_queries(body.get("query")), most, _threshold(body.get("ranking_options")))


def _known(value: Json, names: Sequence[str], within: str) -> None:
    for name in value:
        if name not in names:
            path = within + shorten(name)
            raise bad_request(f"`{path}` is not known here.", param=path, code="unknown_parameter")


def _queries(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_query(value, "query"),)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_QUERIES:
        message = f"`query` is required: a text, or a list of 1 to {MAX_QUERIES} of them."
        raise bad_request(message, param="query")
    return tuple(dict.fromkeys(_query(one, f"query[{i}]") for i, one in enumerate(value)))


def _query(value: object, param: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_QUERY:
        message = f"`{param}` must be a text of at most {MAX_QUERY} characters, and not blank."
        raise bad_request(message, param=param)
    return value


def _threshold(options: object) -> float | None:
    if options is None:
        return None
    if not isinstance(options, dict):
        raise bad_request("`ranking_options` must be an object.", param="ranking_options")
    _known(options, _RANKING, "ranking_options.")
    ranker = options.get("ranker")  # there is one way to rank
    if ranker is not None and not (isinstance(ranker, str) and len(ranker) <= MAX_RANKER):
        raise bad_request("`ranking_options.ranker` must be the name of a ranker.", param="ranking_options.ranker")
    value = options.get("score_threshold")
    if value is None:
        return None
    if isinstance(value, bool | str | list | dict) or not isfinite(threshold := float(value)):
        message = "`ranking_options.score_threshold` must be a number."
        raise bad_request(message, param="ranking_options.score_threshold")
    return threshold


@dataclass(frozen=True, slots=True)
class Searches:
    """The handler. `front` keeps pages beside the results that they show."""

    finder: Finder
    front: MemoryStore

    async def __call__(self, visit: Visit, arrival: Arrival) -> None:
        d, at, raw = visit.decision, perf_counter(), arrival.raw
        managed, _ = managed_for(visit, arrival.name)
        body = await asyncio.to_thread(parse_object, raw) if large_body(raw) else parse_object(raw)
        wanted = read_search(body)
        directives = read_directives(arrival.headers, body.get("cache"))
        visit.phase("parse", at)
        try:
            terms = Terms(wanted.most, directives, arrival.receive)
            found = await self.finder.find_all(visit, managed.name, wanted.queries, terms)
            keys = [results.entry.key for results in found]
            d.key = keys[0] if len(keys) == 1 else digest("refrain.searches.1", keys)
            page, d.documents = await self._page(visit, managed.name, wanted, found)
        finally:
            d.outcome = _outcome(d)
        if d.outcome in ("exact", "joined"):
            d.age = max(results.age for results in found)
            d.ms_saved = sum(results.entry.cost.ms for results in found)
        d.status = 200
        await visit.outlet.whole(200, [JSON, *visit.head()], page)

    async def _page(self, visit: Visit, name: str, wanted: Wanted, found: Sequence[Results]) -> tuple[bytes, str]:
        """What is answered, and the names of the documents in it."""
        whole = len(found) == 1 and wanted.threshold is None
        if whole and (slot := found[0].slot) is not None and (page := slot.rendered.get(PAGE)) is not None:
            return page, shown(found[0].documents)
        full = [await self.finder.texts(visit, results) for results in found]
        chosen = choose(full, wanted)
        page = render(wanted.queries, chosen)
        if whole and (slot := full[0].slot) is not None:
            self.front.attach(slot, PAGE, page)
        return page, shown(labels(name, ((reference.document, reference.version) for reference, _ in chosen)))


def choose(found: Sequence[Results], wanted: Wanted) -> list[tuple[Reference, str]]:
    """Of all that was found what is wanted, with its texts: every piece once, by its best score, the best first."""
    pieces = [
        pair
        for results in found
        for pair in zip(results.references, results.texts or (), strict=True)
        if wanted.threshold is None or pair[0].score >= wanted.threshold
    ]
    if len(found) > 1:
        best: dict[bytes, tuple[Reference, str]] = {}
        # The sort is stable: among equals the order is that of the queries.
        for pair in sorted(pieces, key=lambda pair: -pair[0].score):
            best.setdefault(pair[0].digest, pair)
        pieces = list(best.values())
    return pieces[: wanted.most]


def render(queries: Sequence[str], pieces: Sequence[tuple[Reference, str]]) -> bytes:
    """The page, as OpenAI has it."""
    return _encode(
        {
            "object": "vector_store.search_results.page",
            "search_query": queries,
            "data": [_item(piece, text) for piece, text in pieces],
            "has_more": False,
            "next_page": None,
        }
    )


def _item(piece: Reference, text: str) -> Json:
    return {
        "file_id": piece.document,
        "filename": piece.document.rpartition("/")[2] or piece.document,
        "score": piece.score,
        "attributes": {"version": piece.version, "title": piece.title, "position": piece.position},
        "content": [{"type": "text", "text": text}],
    }


def _outcome(d: Decision) -> Outcome:
    """In a word what the tier has said."""
    said = next((tier for tier in d.tiers if tier.name == TIER), None)
    if said is None or said.result == "miss":
        return "joined" if said is not None and said.why == "joined" else "miss"
    if said.result == "hit":
        return "exact"
    return "miss" if said.why == "no_cache" else "bypass"


_encode = msgspec.json.Encoder().encode
