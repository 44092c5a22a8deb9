"""What is known of documents that lie elsewhere: which of them were said to be gone, and since when nothing changed.

The service may still find what has been deleted, so its results are compared with the list. Both live in the process:
a generation is a random token, so no result that was found before a restart is used after it.
"""

import logging
import secrets

MOST_GONE = 50_000
"""Deleted documents that are remembered; beyond that the oldest notice is forgotten, and the service has to know."""

_log = logging.getLogger(__name__)


class Noticed:
    def __init__(self, name: str) -> None:
        self._name = name
        self._gone: dict[str, None] = {}  # the oldest first
        self.generation = secrets.token_hex(16)

    def changed(self, document: str, version: str | None, deleted: bool) -> None:
        if deleted or version is not None:
            self._gone.pop(document, None)
        if deleted:
            self._gone[document] = None
            if len(self._gone) > MOST_GONE:
                del self._gone[next(iter(self._gone))]
                _log.warning("retriever %s: more than %d deleted documents, one is forgotten", self._name, MOST_GONE)
        self.generation = secrets.token_hex(16)

    def gone(self, document: str) -> bool:
        return document in self._gone
