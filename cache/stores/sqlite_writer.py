"""The thread that writes to the SQLite store's file.

- The queue is written in transactions, `write_interval` seconds after its first operation, or at once when somebody
  waits (purge, flush, close). A transaction that somebody waits for is synced to the disk; the others are not: they
  survive the death of the process, not that of the machine.
- Nothing but `close` ends the thread. A transaction that fails is dropped and counted, and who waits for it is told.
  A damaged file is replaced by an empty one.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from cache.stores import codec, question_codec
from cache.stores import sqlite_questions as questions
from cache.stores import sqlite_table as table
from cache.stores.base import StoreError, StoreUnavailable
from cache.stores.sqlite_file import Damage, inode_of, is_damage, open_database
from cache.stores.sqlite_queue import Flush, Note, Op, Purge, Put, Touch, WriteQueue, batches

MAX_QUEUED = 64 * 1024 * 1024
"""Bytes that may wait to be written; beyond it what is put or noted is dropped and counted."""

OPS_PER_TRANSACTION = 500
"""So that other processes get their turn."""

IDLE_SWEEP = 60.0
"""Seconds between two looks for expired entries while nothing is put."""

_log = logging.getLogger(__name__)


class Writer:
    """Opens the file (StoreError when that fails), owns its writing connection, and its thread.

    The constructor and `close` block; the other public methods only touch the queue and may be called from any
    thread. StoreUnavailable once it is closed.
    """

    def __init__(
        self, path: Path, *, max_bytes: int, max_body: int, now: Callable[[], float], write_interval: float
    ) -> None:
        self.generation = 0  # number of the connection: with a new one the file may be another, so readers open anew
        self.evicted = 0
        self.dropped = 0
        self.healthy = True
        self._path = path
        self._max_bytes = max_bytes
        self._max_body = max_body
        self._now = now
        self._write_interval = write_interval
        self._queue = WriteQueue()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._damage: Damage | None = None
        self._damage_lock = threading.Lock()
        self._last_use = 0
        self._more_to_clean = False
        self._connected()
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self._thread.start()

    def pending(self, key: bytes) -> Put | None:
        """The newest change of the key that is not written yet."""
        return self._queue.pending(key)

    def put(self, entry: Entry) -> None:
        """Queue the entry; one that is too large takes away what its key held all the same."""
        if len(entry.body) > self._max_body or entry.size > self._max_bytes:
            self.forget(entry.key)
        elif self._queue.bytes + entry.size > MAX_QUEUED:
            self.dropped += 1
        else:
            self._queue.add(Put(entry.key, entry))

    def forget(self, key: bytes) -> None:
        self._queue.add(Put(key, None))

    def note(self, question: Question) -> None:
        """Queue the question."""
        op = Note(question.key, question)
        if self._queue.bytes + op.size > MAX_QUEUED:
            self.dropped += 1
        else:
            self._queue.add(op)

    def forget_question(self, key: bytes) -> None:
        self._queue.add(Note(key, None))

    def touch(self, key: bytes) -> None:
        """Note a use; best effort."""
        if self._queue.bytes < MAX_QUEUED:
            self._queue.add(Touch(key))

    def purge(self, match: Match, *, soft: bool, dry_run: bool) -> Future[int]:
        op = Purge(match, soft, dry_run)
        self._queue.add(op)
        return op.done

    def flush(self) -> Future[int]:
        op = Flush()
        self._queue.add(op)
        return op.done

    def report_damage(self, generation: int, reason: str) -> None:
        """A reader found the file damaged that was current in `generation`."""
        with self._damage_lock:
            if generation == self.generation:
                self._damage = Damage(self._inode, reason)
                self._queue.wake()

    def close(self) -> None:
        """Write what waits, end the thread, close the connection. A second call does nothing."""
        self._queue.close()
        self._thread.join()

    # The thread.

    def _run(self) -> None:
        while True:
            idle = self._write_interval if self._more_to_clean else IDLE_SWEEP
            ops = self._queue.take(gather=self._write_interval, idle=idle)
            if ops is None:
                break
            for batch in batches(ops, OPS_PER_TRANSACTION):
                self._write(batch)
        self._disconnect()

    def _write(self, ops: Sequence[Op]) -> None:
        """One transaction, and word to those who wait for it."""
        purged: dict[Purge, int] = {}
        failure: Exception | None = None
        try:
            purged = self._transact(ops)
        except Exception as error:
            failure = error
        self._account(failure, ops)
        self._queue.finish(ops)
        for op in ops:
            # False when the caller has gone in the meantime.
            if isinstance(op, Purge | Flush) and op.done.set_running_or_notify_cancel():
                if failure is None:
                    op.done.set_result(purged.get(op, 0) if isinstance(op, Purge) else 0)
                else:
                    op.done.set_exception(StoreUnavailable(f"could not write: {failure}"))

    def _transact(self, ops: Sequence[Op]) -> dict[Purge, int]:
        """Apply `ops` in their order, all or none; what the purges among them found."""
        connection = self._connected()
        values = {op: self._value(op.entry) for op in ops if isinstance(op, Put) and op.entry is not None}
        rows = {op: self._row(op.question) for op in ops if isinstance(op, Note) and op.question is not None}
        awaited = any(isinstance(op, Purge | Flush) for op in ops)
        purged: dict[Purge, int] = {}
        connection.execute(f"PRAGMA synchronous = {'FULL' if awaited else 'NORMAL'}")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            self._last_use = max(self._last_use, table.last_use(connection))  # other processes use entries too
            for op in ops:
                match op:
                    case Put(key, entry):
                        if entry is not None and (value := values[op]) is not None:
                            table.put(connection, entry, value, self._tick())
                        else:
                            table.remove(connection, key)
                    case Note(key, question):
                        if question is None:
                            questions.remove(connection, key)
                        elif (row := rows[op]) is not None:
                            questions.note(connection, row)
                    case Touch(key):
                        table.touch(connection, key, self._tick())
                    case Purge(match, soft, dry_run) as purge:
                        purged[purge] = table.purge(connection, match, self._now(), soft=soft, dry_run=dry_run)
                    case Flush():
                        table.stir(connection)
            more_expired = table.expire(connection, self._now())
            evicted = table.evict(connection, self._max_bytes)
        self.evicted += evicted
        self._more_to_clean = more_expired
        with suppress(sqlite3.Error):  # what matters is written; space can be given back another time
            self._more_to_clean |= table.trim(connection)
            if any(purged[op] for op in purged if not (op.soft or op.dry_run)):
                table.overwrite_log(connection)
        return purged

    def _connected(self) -> sqlite3.Connection:
        """The connection; a new one where the file was found damaged, or is another by now: somebody deleted it, or
        another process found it damaged."""
        damage = self._damage
        if damage is not None or inode_of(self._path) != self._inode:
            self._disconnect()
        if self._connection is None:
            self._connection = open_database(self._path, damage)
            self._inode = inode_of(self._path)
            with self._damage_lock:
                self.generation += 1
                self._damage = None
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _account(self, failure: Exception | None, ops: Sequence[Op]) -> None:
        """Count what a failure cost, and log the first in a row."""
        if failure is not None:
            lost = (op.entry if isinstance(op, Put) else op.question for op in ops if isinstance(op, Put | Note))
            self.dropped += sum(each is not None for each in lost)
            if is_damage(failure):
                self._damage = Damage(self._inode, str(failure))
            if self.healthy:
                foreseen = isinstance(failure, sqlite3.Error | StoreError | OSError)
                _log.warning("cannot write to %s: %s", self._path, failure, exc_info=None if foreseen else failure)
        elif not self.healthy:
            _log.warning("writing to %s works again", self._path)
        self.healthy = failure is None

    def _value(self, entry: Entry) -> bytes | None:
        """The entry's stored form; None where it has none that could be read back, which counts as dropped."""
        with suppress(ValueError):
            value = codec.encode(entry)
            if len(value) <= self._max_body + codec.MAX_FIELDS:
                return value
        self.dropped += 1
        return None

    def _row(self, question: Question) -> question_codec.Row | None:
        """The same for a question."""
        with suppress(ValueError):
            return question_codec.encode(question)
        self.dropped += 1
        return None

    def _tick(self) -> int:
        """The time of a use in microseconds, later than every other whatever the clock does."""
        self._last_use = max(self._last_use + 1, int(self._now() * 1_000_000))
        return self._last_use
