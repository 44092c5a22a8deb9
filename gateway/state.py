"""What must outlive the process beside the answers: revoked keys, erased documents, the audit log, what was used of the
limits.

What is written is on the disk when a call returns. Other processes may have the file open too: all their revocations
and audit lines are kept, but of the counters only what the last one saved.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from gateway import state_table as table
from gateway.durable_thread import DurableThread
from gateway.state_file import STATE, StateError, state_path
from gateway.state_table import AuditLine, Counter

__all__ = ["AuditLine", "State", "StateError", "state_path"]


class State:
    """Made by `open`; `durable` is false in memory. Every method raises StateError when it fails, is not done in time,
    or comes after `aclose`."""

    def __init__(self, file: DurableThread, *, durable: bool) -> None:
        self.durable = durable
        self._file = file

    @classmethod
    async def open(cls, path: Path | None) -> Self:
        """Open or make the file; None: in memory. A file that cannot be used is left as it is."""
        return cls(await DurableThread.open(STATE, path, name="state"), durable=path is not None)

    async def revoke(self, digest: bytes, *, at: float, by: str) -> None:
        """A second time changes nothing."""
        await self._file.do(lambda db: table.revoke(db, digest, at, by))

    async def revoked(self) -> frozenset[bytes]:
        return await self._file.do(table.revoked)

    async def report_wrong(self, pairs: Iterable[tuple[bytes, bytes]], *, at: float, by: str) -> None:
        """Of each pair, the answer under the second key was wrong for the question of the first."""
        kept = list(pairs)
        await self._file.do(lambda db: table.report_wrong(db, kept, at, by))

    async def wrong_pairs(self) -> list[tuple[bytes, bytes]]:
        """All that were reported: (asked, served)."""
        return await self._file.do(table.wrong_pairs)

    async def note_erased(self, retriever: str, said: Iterable[tuple[str, bool]], *, at: float) -> None:
        """What was said of its documents, in this order: (id, whether it is to be found no more, or is there again)."""
        kept = list(said)
        await self._file.do(lambda db: table.note_erased(db, retriever, kept, at))

    async def erased(self) -> list[tuple[str, str]]:
        """All that are to be found no more: (retriever, document), the oldest notice first."""
        return await self._file.do(table.erased)

    async def begin(self, line: AuditLine) -> int:
        """Write down what is going to be done; `end` takes the number of the line."""
        return await self._file.do(lambda db: table.begin(db, line))

    async def end(self, number: int, *, result: Mapping[str, Any]) -> None:
        """Write down what came of it, once."""
        if not await self._file.do(lambda db: table.end(db, number, result)):
            raise StateError(f"The audit log has no line {number} that waits for its result.")

    async def lines(self, *, tenant: str | None, limit: int) -> list[dict[str, Any]]:
        """What the people of one tenant have done, or all (None), newest first. Without a `result` it is under way, or
        the process ended in between."""
        return await self._file.do(lambda db: table.lines(db, tenant, limit))

    async def save_counters(self, rows: Iterable[Counter]) -> None:
        """Keep these and no others."""
        kept = list(rows)
        await self._file.do(lambda db: table.save_counters(db, kept))

    async def counters(self, now: float) -> list[Counter]:
        """Those whose window has not ended."""
        return await self._file.do(lambda db: table.counters(db, now))

    async def aclose(self) -> None:
        """Do what was asked for and close the file. A second call does nothing."""
        await self._file.aclose()
