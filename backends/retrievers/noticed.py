"""What is known of documents that lie elsewhere: which of them were said to be gone, and since when nothing changed.

The service may still find what has been deleted, so its results are compared with the list. Who makes the retriever
owns the list, and gives the same one to the next retriever of that name. A generation is a random token, so no result
that was found by one retriever is used by another, nor after a restart.
"""

import logging
import secrets
from collections.abc import Callable
from time import monotonic

MOST_GONE = 50_000
"""Deleted documents that are remembered; beyond that the oldest notice is forgotten, and the service has to know."""

LAGS = 300.0
"""Seconds after a notice of a version for which a service may still find the former one: so long results live."""

Gone = dict[str, None]
"""Ids of documents that are to be found no more, the oldest notice first."""

_log = logging.getLogger(__name__)


class Noticed:
    """`gone` is what is known already; it is kept up to date. None: nothing is."""

    def __init__(self, name: str, gone: Gone | None = None, mono: Callable[[], float] = monotonic) -> None:
        self._name = name
        self._gone: Gone = {} if gone is None else gone
        self._lifted: dict[str, int] = {}  # what is gone no more, by the number of the notice; the oldest first
        self._named: dict[str, tuple[str, float]] = {}  # versions that have not been found yet, and since when
        self._mono = mono
        self._notices = 0
        self.generation = secrets.token_hex(16)

    def changed(self, document: str, version: str | None, deleted: bool) -> None:
        self._notices += 1
        if (deleted or version is not None) and document in self._gone:
            del self._gone[document]
            self._lifted.pop(document, None)
            self._lifted[document] = self._notices
            if len(self._lifted) > MOST_GONE:
                del self._lifted[next(iter(self._lifted))]
        self._named.pop(document, None)
        if version is not None and not deleted:
            self._named[document] = version, self._mono()
            if len(self._named) > MOST_GONE:
                del self._named[next(iter(self._named))]
        if deleted:
            self._gone[document] = None
            if len(self._gone) > MOST_GONE:
                del self._gone[next(iter(self._gone))]
                _log.warning("retriever %s: more than %d deleted documents, one is forgotten", self._name, MOST_GONE)
        self.generation = secrets.token_hex(16)

    def ended(self, document: str, version: str) -> bool:
        """The service has found this version of a document. Has a notice ended it, and the service has not taken in the
        new one yet?"""
        named, since = self._named.get(document, (version, 0.0))
        if named != version and self._mono() - since <= LAGS:
            return True
        if named != version:
            text = "retriever %s: after a notice of version %r of %r the service has found version %r only"
            _log.warning(text, self._name, named, document, version)
        self._named.pop(document, None)
        return False

    def mark(self) -> int:
        """A point in the order of notices."""
        return self._notices

    def gone(self, document: str, since: int) -> bool:
        """Was it to be found no more at the point `since` or later? What a service has found by then may be the text
        that was erased, although a new version has been named meanwhile."""
        return document in self._gone or self._lifted.get(document, 0) > since
