"""What is found of a folder now, and how it becomes something else.

- All that decides what is found is one `InForce`, which never changes and is replaced as a whole. Only `_apply` does
  that, under a lock.
- While the rules cannot be read nobody knows what they say of a document that is new: it waits for them. The others
  stay under the former ones.
- What is said of several documents at one time is done at once: an index is made anew for all of them.
- A run of reading and embedding has a number. Where somebody has said meanwhile that a document is gone or is to be
  made anew, what an older run has read of it is not used.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from backends.retrievers.base import Changed
from backends.retrievers.folder import plan
from backends.retrievers.folder.acl import Acl
from backends.retrievers.folder.chunking import Piece
from backends.retrievers.folder.database import DatabaseError
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.index import Index
from backends.retrievers.folder.kept import Kept
from backends.retrievers.folder.plan import Read
from backends.retrievers.folder.table import NO_ROOM, Refused
from backends.retrievers.folder.watch import Look

SAID = 50  # rules in a line of the log

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InForce:
    """`named`: all permissions that the rules name. `told`: how often somebody said that something had changed."""

    index: Index
    named: frozenset[str]
    told: int

    @property
    def generation(self) -> str:
        return f"{self.index.digest}-{self.told}"


@dataclass(eq=False, slots=True)
class Leaving:
    """A document that somebody said is to be taken out: for good, if it has one of the versions `erased`, or until it
    is read again. `file` is the state in which its file had the last of these versions."""

    document: str
    erased: Collection[str] | None = None
    file: FileState | None = None
    done: bool = False
    error: DatabaseError | None = None


class Documents:
    """`look` is what the folder had last; `acl` the rules, None until there are any, and `sound` whether their file
    says so now; `index` is the next one in force,
    or that one; `known` are the states of files when read, and `refused` those that are no documents. `in_force` is
    None until the folder has been compared once."""

    def __init__(self, name: str, kept: Kept, changed: Changed) -> None:
        self.in_force: InForce | None = None
        self.look: Look | None = None
        self.acl: Acl | None = None
        self.sound = True
        self.index: Index | None = None
        self.known: dict[str, FileState] = {}
        self.refused: dict[str, Refused] = {}
        self._name = name
        self._kept = kept
        self._changed = changed
        self._lock = asyncio.Lock()
        self._leaving: list[Leaving] = []
        self._index_acl: Acl | None = None
        self._marks: dict[str, plan.Mark] = {}  # of documents that others may have made something of
        self._run_number = 0
        self._since: dict[str, int] = {}  # the first run that may say something about a document

    async def open(self) -> None:
        await self._kept.open()
        self._marks = self._kept.marks()

    async def restore(self, embedder: str, dimensions: int) -> None:
        """The first index, of what the database had; it is not in force yet."""
        async with self._lock:
            self.index, self.known = await self._kept.index(embedder, dimensions)
            self.refused = self._kept.refused
            self.known |= {name: refused.state for name, refused in self.refused.items()}

    async def clean(self, embedder: str) -> None:
        async with self._lock:
            await self._kept.clean(embedder)

    def _version(self, document: str) -> str | None:
        """That which is in the index, or was when this process began."""
        if self.index is not None:
            found = self.index.documents.get(document)
            return None if found is None else found.version
        return next((row.document.version for row in self._kept.rows if row.id == document), None)

    def may_come(self, document: str) -> bool:
        """Is it known who may see it?"""
        return self.sound or (self.index is not None and document in self.index.documents)

    def pieces_without(self, documents: Iterable[str]) -> int:
        """Of the index, but for those of these documents."""
        if self.index is None:
            return 0
        known = self.index.documents
        return self.index.pieces - sum(len(known[name].pieces) for name in documents if name in known)

    # What changes it.

    async def seen(self, look: Look) -> None:
        async with self._lock:
            self.look = look
            if self.in_force is not None:
                pieces = self.in_force.index.pieces
                await self._apply({})
                if self.in_force.index.pieces < pieces:
                    self._make_room()

    async def take_out(self, leaving: Leaving) -> None:
        """It is found no more. Raises DatabaseError where it is to be erased and that could not be written down."""
        self._leaving.append(leaving)
        async with self._lock:
            if not leaving.done:
                batch, self._leaving = self._leaving, []
                await self._take_out(batch)
        if leaving.error is not None:
            raise leaving.error

    def _make_room(self) -> None:
        """Have documents read again for which there was none."""
        again = {name for name, refused in self.refused.items() if refused.reason == NO_ROOM}
        self.known = {name: state for name, state in self.known.items() if name not in again}

    def try_again(self) -> bool:
        """Have files read that could not be before a restart: perhaps the machine was to blame, and nobody had to wait.
        Are there any?"""
        before, self._kept.refused = self._kept.refused, {}
        same = {name for name, one in before.items() if one.reason and self.refused.get(name) is one}
        if same:
            self.known = {name: state for name, state in self.known.items() if name not in same}
        return bool(same)

    def begin_run(self) -> int:
        """Somebody begins to read; gives the run's number."""
        self._run_number += 1
        return self._run_number

    async def put(self, number: int, read: Mapping[str, Read], refused: Mapping[str, Refused]) -> None:
        """Put in force what the run of this number has read."""
        async with self._lock:
            read = {n: one for n, one in read.items() if self._since.get(n, 0) <= number and self.may_come(n)}
            refused = {name: one for name, one in refused.items() if self._since.get(name, 0) <= number}
            looked_at: dict[str, Read | Refused] = {**read, **refused}
            self.known |= {name: one.state for name, one in looked_at.items()}
            self._since |= dict.fromkeys(looked_at, number)
            self.refused = {name: one for name, one in self.refused.items() if name not in read} | refused
            try:
                await self._apply(read, begin=True)
            except BaseException:  # then they have to be read again
                self.known = {name: state for name, state in self.known.items() if name not in looked_at}
                raise

    async def _take_out(self, batch: Sequence[Leaving]) -> None:
        """Under the lock: these are not found until a later run has read them, and there is another generation."""
        pieces: list[Piece] = []
        for one in batch:
            if one.erased is None:
                self.known.pop(one.document, None)
                self.refused.pop(one.document, None)
                former = None if self.index is None else self.index.documents.get(one.document)
                pieces += () if former is None else former.pieces
                self._kept.told(one.document)
            else:
                versions = {version for version in (self._version(one.document), *one.erased) if version is not None}
                if versions and one.file is not None:
                    self.known[one.document] = one.file
                if versions and one.document in self.known:
                    self.refused[one.document] = Refused(self.known[one.document], "")
                self._kept.told(one.document, erased=versions)
            self._since[one.document] = self._run_number + 1
            one.done = True
        await self._apply({}, away={one.document for one in batch})
        if any(one.erased is None for one in batch):
            await self._kept.renew(pieces)
        try:
            await self._kept.erase([one.document for one in batch if one.erased is not None])
        except DatabaseError as error:
            for one in batch:
                one.error = None if one.erased is None else error

    async def _apply(self, read: Mapping[str, Read], *, away: Collection[str] = (), begin: bool = False) -> None:
        """Under the lock: put in force what the folder, the rules and those that said something want now, with the
        documents that were read, and without those of `away`. The first time only where that is the begin."""
        look, acl, index, before = self.look, self.acl, self.index, self._marks
        if look is None or acl is None or index is None:
            return
        refused = {*self.refused, *away}
        other_rules = acl is not self._index_acl

        def work() -> tuple[Index, dict[str, plan.Mark], list[str]]:
            changes = plan.changes(index, look.files, refused, read, acl, other_rules=other_rules)
            new = index.changed(put=changes.put, away=changes.away, required=changes.required) if changes else index
            if other_rules and (unused := acl.unused(new.documents)):
                _log.warning("retriever %s: access rules that no document needs: %s", self._name, unused[:SAID])
            marks = plan.marks(new.documents)
            return new, marks, plan.ended(before, marks)

        new, marks, ended = await asyncio.to_thread(work)
        self.index = new
        if self.in_force is None and not begin:
            return
        self.in_force = InForce(new, acl.named, self._kept.memory.told)
        self._index_acl, self._marks = acl, marks
        if ended:
            self._changed(ended)
        self.known = {name: state for name, state in self.known.items() if name in look.files}
        self.refused = {name: one for name, one in self.refused.items() if name in look.files}
        self._since = {name: number for name, number in self._since.items() if name in look.files}
        await self._kept.save(new, self.known, self.refused)
