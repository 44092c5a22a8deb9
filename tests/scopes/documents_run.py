"""Many sequences about documents, one after the other."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from tests.scopes.documents_harness import Reading
from tests.scopes.documents_plan import plan
from tests.scopes.documents_world import Library, Step
from tests.scopes.model import Leak
from tests.scopes.run import Result, shortest, silence
from tests.scopes.world import World
from tests.support.retrievers import Shelf, serving

FOLDER_EVERY = 6
"""Every so many-th sequence has a folder beside the service: its watcher and its reading process take real time."""
STORED_EVERY = 4

ROWS = {
    "sequences": "sequences",
    "folders": "  with a folder beside the service",
    "stored": "  with a store behind the memory",
    "requests": "requests",
    "exact": "answers: exact",
    "byte_identical": "  of them byte-identical",
    "joined": "answers: joined",
    "stale": "answers: stale",
    "semantic": "answers: semantic",
    "miss": "answers: miss",
    "bypass": "answers: bypass",
    "retrieved": "answers whose documents were found in the cache",
    "search_exact": "searches: found in the cache",
    "search_joined": "searches: joined",
    "search_miss": "searches: miss",
    "search_bypass": "searches: bypass",
    "shared": "answers made for somebody with other permissions",
    "status_403": "refused at an endpoint whose documents are another tenant's",
    "status_404": "refused a search of another tenant's documents",
    "status_504": "only if cached, and not cached",
    "documents": "documents in answers and searches, all checked",
    "withheld": "answers and searches: a document was withheld",
    "opportunities": "answered before for another scope or endpoint",
    "change_text": "documents new or changed",
    "change_revert": "documents that are again what they were",
    "change_delete": "documents deleted",
    "change_needs": "documents under other permissions",
    "change_erase": "documents that were said to be gone",
    "watch": "  seen by the watcher",
    "notice": "  told of",
    "purge": "  followed by a purge",
    "silent": "  without a word",
    "purges": "purges of a document",
    "restarts": "restarts",
}


def run(
    sequences: int,
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    folder_every: int = FOLDER_EVERY,
) -> Result:
    """Run sequences with the seeds from `seed` on, up to the first that breaks a rule."""
    result, begun = Result(expected=tuple(ROWS)), perf_counter()
    with _runs(folder_every) as runs:
        for number in range(seed, seed + sequences):
            world, steps = runs.plan(number)
            result.counts["sequences"] += 1
            found = runs.take(number, world, steps, result.counts)
            progress(number - seed + 1)
            if found is not None:
                result.found = shortest(number, world, steps, found, runs.take)
                break
    result.seconds = perf_counter() - begun
    return result


class Runs:
    def __init__(self, runner: asyncio.Runner, directory: Path, shelf: Shelf, url: str, folder_every: int) -> None:
        self._runner = runner
        self._directory = directory
        self._shelf = shelf
        self._url = url
        self._folder_every = folder_every
        self._places = 0

    def plan(self, seed: int) -> tuple[Library, list[Step]]:
        return plan(seed, folder=not seed % self._folder_every, stored=not seed % STORED_EVERY)

    def take(self, seed: int, world: World, steps: Sequence[Step], counts: Counter[str]) -> Leak | None:
        assert isinstance(world, Library)
        self._places += 1
        place = self._directory / str(self._places)
        place.mkdir()
        stored = not seed % STORED_EVERY
        counts["stored"] += stored
        counts["folders"] += "folder" in world.retrievers
        file = place / "cache.db" if stored else None
        try:
            self._runner.run(Reading(world, counts, file, place, self._shelf, self._url).run(steps))
        except Leak as leak:
            return leak
        return None


@contextmanager
def _runs(folder_every: int) -> Iterator[Runs]:
    with ExitStack() as stack:
        stack.enter_context(silence())
        stack.enter_context(_quiet())
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="refrain-scopes-")))
        shelf = Shelf()
        url = stack.enter_context(serving(shelf))
        runner = stack.enter_context(asyncio.Runner())
        yield Runs(runner, directory, shelf, url, folder_every)


@contextmanager
def _quiet() -> Iterator[None]:
    """Retrievers warn of what is done to them here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
