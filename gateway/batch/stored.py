"""The errors of the store of batches, as clients see them."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from gateway.batch.store import BatchStoreError
from gateway.errors import ApiError

log = structlog.get_logger("refrain")


@contextmanager
def translated() -> Iterator[None]:
    """What the store says is for those who run the gateway; the client is told what it means. Raises ApiError."""
    try:
        yield
    except BatchStoreError as error:
        log.warning("the store of batches has failed", reason=str(error))
        if error.full:
            text = "There is no room for it on the gateway's disk. Nothing of it was kept."
            raise ApiError(507, text, code="storage_full", headers={"x-should-retry": "false"}) from error
        text = "The gateway's store of batches is not available. Try again in a moment."
        raise ApiError(503, text, code="storage_unavailable", headers={"retry-after": "5"}) from error
