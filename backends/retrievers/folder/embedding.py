"""Vectors of pieces, however long it takes.

The questions of users wait in the same queue as the pieces of documents. So a call has few texts, and few calls are
under way: enough that the model is never idle between two of them. Texts of about as many tokens go together, since
the model pads all of a batch to the longest.

A call fails as a whole, whatever one of its texts has done to it. So texts that failed are tried one by one: one that
is too long is shortened, and one of which the model makes no vector, while it makes one of a harmless text, is given
up. Everything else is the model's fault, and waited for.
"""

import asyncio
import logging
from collections.abc import Sequence

from backends.retrievers.base import Embeds, EmbedsError
from backends.retrievers.folder.index import Vectors
from backends.retrievers.folder.progress import FolderProgress

DEADLINE = 60.0  # seconds for a call
TRIES = 2
"""Failures of the same texts after which they are suspected, and not the model."""
FIRST_PAUSE, MAX_PAUSE = 0.25, 10.0  # seconds
HARMLESS = "What is the capital of France?"

_log = logging.getLogger(__name__)


async def vectors_of(texts: Sequence[str], embeds: Embeds, progress: FolderProgress) -> list[Vectors | None]:
    """One for each text; None where the model makes none."""
    failures = 0
    while True:
        try:
            made = await _call(texts, embeds)
        except EmbedsError as error:
            failures += 1
            if error.too_long or (failures >= TRIES and await _works(embeds)):
                return await _apart(texts, embeds, progress, too_long=error.too_long)
            await _pause(error, failures, embeds, progress)
        else:
            progress.trouble = ""
            return list(made)


async def _apart(
    texts: Sequence[str], embeds: Embeds, progress: FolderProgress, *, too_long: bool
) -> list[Vectors | None]:
    if len(texts) > 1:
        # Texts of about the same length come together: where one is too long, others are.
        return [vector for text in texts for vector in await vectors_of([text], embeds, progress)]
    shorter = texts[0][: len(texts[0]) * 3 // 4]
    if too_long and shorter:
        # What is left out is at the end of the piece: it is found by its beginning, and shown as a whole.
        return await vectors_of([shorter], embeds, progress)
    return [None]


async def _call(texts: Sequence[str], embeds: Embeds) -> Vectors:
    """Raises EmbedsError."""
    made: Vectors = await embeds.embed(texts, deadline=DEADLINE)
    if made.shape != (len(texts), embeds.dimensions):
        raise EmbedsError("the model made vectors of a wrong number or size")
    return made


async def _works(embeds: Embeds) -> bool:
    try:
        await _call([HARMLESS], embeds)
    except EmbedsError:
        return False
    return True


async def _pause(error: EmbedsError, failures: int, embeds: Embeds, progress: FolderProgress) -> None:
    """Longer after each failure, but over as soon as a model that was not ready is."""
    if not progress.trouble:
        _log.warning("the embedding model makes no vectors of documents at the moment: %s", error)
    progress.trouble = str(error)
    was_ready = embeds.ready
    left = min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 10))
    while left > 0 and (was_ready or not embeds.ready):
        await asyncio.sleep(min(left, FIRST_PAUSE))
        left -= FIRST_PAUSE
