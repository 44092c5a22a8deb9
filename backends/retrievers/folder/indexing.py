"""Keeps the index of a folder in step with it.

Rules:

- Nothing is served before the folder has been compared once: after a restart what was deleted or forbidden meanwhile
  must not come back.
- What is to be found no more goes at once: deleted, unreadable, erased and forbidden documents wait for no model. What
  is new or changed is read and embedded first, and comes into force all at once.
- All that decides what is found is one `InForce`, which never changes and is replaced as a whole. Only `_apply` does
  that, under a lock.
- A run of reading and embedding has a number. Where somebody has said meanwhile that a document is gone or is to be
  made anew, what an older run has read of it is not used.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backends.retrievers.base import Changed, Embeds
from backends.retrievers.folder import plan
from backends.retrievers.folder.acl import Acl, AclError, load
from backends.retrievers.folder.chunking import MOST
from backends.retrievers.folder.database import Database
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.filling import Filling
from backends.retrievers.folder.formats_base import Unreadable
from backends.retrievers.folder.index import Index
from backends.retrievers.folder.kept import Kept
from backends.retrievers.folder.plan import Read
from backends.retrievers.folder.progress import FolderProgress
from backends.retrievers.folder.reader import Reader
from backends.retrievers.folder.table import Refused
from backends.retrievers.folder.watch import AclState, Look, Watch

MAX_PIECES = 200_000
"""In an index: about 600 MB with 384 numbers each."""
AWHILE = 10.0
"""Seconds for which somebody waits who says that a document has changed; it comes later then."""
UNREADY = 0.1  # seconds between two looks at whether the model is ready
AGAIN = 5.0  # seconds after something that nobody thought of
SAID = 50  # lines about skipped files at a time

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


class Indexing:
    """`in_force` is None until the folder has been compared once."""

    def __init__(
        self, name: str, root: Path, acl: Path | None, embeds: Embeds, database: Path | None, changed: Changed
    ) -> None:
        self.in_force: InForce | None = None
        self.folder_trouble = ""  # why the folder cannot be read
        self.rules_trouble = ""  # why the access rules cannot be used
        self.progress: FolderProgress | None = None
        self._name = name
        self._acl_path = acl
        self._embeds = embeds
        self._changed = changed
        self._reader = Reader(root)
        self._database = Database(database)
        self._kept = Kept(name, self._database)
        self._watch = Watch(root, acl, _not_documents(acl, database))
        self._lock = asyncio.Lock()
        self._more = asyncio.Event()  # there may be something to read
        self._looked = asyncio.Event()
        self._look: Look | None = None
        self._acl = Acl.everyone() if acl is None else None
        self._acl_state: AclState = None
        self._index: Index | None = None  # the next one in force, or that one
        self._index_acl: Acl | None = None
        self._known: dict[str, FileState] = {}  # when read
        self._refused: dict[str, Refused] = {}
        self._marks: dict[str, plan.Mark] = {}  # of documents that others may have made something of
        self._run_number = 0
        self._since: dict[str, int] = {}  # the first run that may say something about a document
        self._said: Collection[tuple[str, str]] = ()

    @property
    def rules_missing(self) -> bool:
        """Whether there are no rules, and so nothing may be found."""
        return self._acl is None and bool(self.rules_trouble)

    @property
    def skipped(self) -> int:
        """Files that are no documents, for a reason that is in the log."""
        look = {} if self._look is None else self._look.skipped
        return len(look) + sum(1 for refused in self._refused.values() if refused.reason)

    async def run(self) -> None:
        """Until cancelled."""
        await self._kept.open()
        self._marks = self._kept.marks()
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._watch.run(self._seen, self._lost))
                    tasks.create_task(self._fill())
            except Exception:
                _log.exception("retriever %s: the index does not follow its folder; begun again", self._name)
                await asyncio.sleep(AGAIN)

    async def aclose(self) -> None:
        """After `run` has ended. Harmless when called twice."""
        await self._reader.aclose()
        await self._database.aclose()

    # What others say.

    async def erase(self, document: str) -> None:
        """It is found no more while its file has the version that it has now. Raises DatabaseError where that could
        not be written down; it is gone all the same."""
        await self._first_look()
        version, state = self._version(document), None
        if version is None and self._look is not None and (state := self._look.files.get(document)) is not None:
            with suppress(Unreadable, OSError):  # then it is not in the index, and is not known to be the same later
                version = (await self._reader.read(document, most=MOST)).version
        async with self._lock:
            if version is not None and state is not None:
                self._known[document] = state
            if version is not None and document in self._known:
                self._refused[document] = Refused(self._known[document], "")
            await self._take_out(document, erased=version)
            await self._kept.erase(document)
        self._more.set()

    async def renew(self, document: str) -> None:
        """Read it again, and make its vectors anew."""
        await self._first_look()
        async with self._lock:
            self._known.pop(document, None)
            self._refused.pop(document, None)
            former = None if self._index is None else self._index.documents.get(document)
            await self._take_out(document)
            await self._kept.renew(() if former is None else former.pieces)
        state = None if self._look is None else self._look.files.get(document)
        if state is not None and self.in_force is not None and self._embeds.ready:
            with suppress(TimeoutError):
                await self._read({document: state}, FolderProgress(1, state.size), within=AWHILE)
        self._watch.wake()
        self._more.set()  # where it was not read

    def _version(self, document: str) -> str | None:
        """That which is in the index, or was when this process began."""
        if self._index is not None:
            found = self._index.documents.get(document)
            return None if found is None else found.version
        return next((row.document.version for row in self._kept.rows if row.id == document), None)

    async def _first_look(self) -> None:
        """Before that it is not known what there is; where there can be none, nothing is found anyway."""
        with suppress(TimeoutError):
            async with asyncio.timeout(AWHILE):
                await self._looked.wait()

    async def _take_out(self, document: str, *, erased: str | None = None) -> None:
        """Under the lock: it is not found until a later run has read it, and there is another generation."""
        self._since[document] = self._run_number + 1
        self._kept.told(document, erased=erased)
        await self._apply({}, away={document})

    # What the folder says.

    async def _seen(self, look: Look) -> None:
        if self._acl_path is not None and (look.acl != self._acl_state or not self._looked.is_set()):
            await self._read_rules(self._acl_path, look.acl)
        async with self._lock:
            self._look = look
            if self.in_force is not None:
                await self._apply({})
        if self.folder_trouble:
            _log.info("retriever %s: the folder can be read again", self._name)
        self.folder_trouble = ""
        self._looked.set()
        self._more.set()
        self._say_skipped()

    def _lost(self, reason: str) -> None:
        if reason != self.folder_trouble:
            _log.warning("retriever %s: %s", self._name, reason)
        self.folder_trouble = reason

    async def _read_rules(self, path: Path, state: AclState) -> None:
        self._acl_state = state
        try:
            self._acl, self.rules_trouble = await asyncio.to_thread(load, path), ""
        except AclError as error:
            self.rules_trouble = str(error)
            until = "nothing is found until they can" if self._acl is None else "the former ones stay in force"
            _log.warning("retriever %s: the access rules cannot be used: %s; %s", self._name, error, until)

    async def _fill(self) -> None:
        """Read what has to be read, again and again."""
        while True:
            await self._more.wait()
            self._more.clear()
            if self._look is None or self._acl is None:
                continue
            if self._index is None:
                await self._restore()
            files = await asyncio.to_thread(plan.unread, self._look.files, dict(self._known))
            if files or self.in_force is None:
                self.progress = FolderProgress(len(files), sum(state.size for state in files.values()))
                try:
                    await self._read(files, self.progress)
                finally:
                    self.progress = None
                self._say_skipped()
                self._try_again()
            async with self._lock:
                await self._kept.clean(self._embeds.identity)

    def _try_again(self) -> None:
        """Files that could not be read before a restart: perhaps the machine was to blame, and nobody had to wait."""
        before, self._kept.refused = self._kept.refused, {}
        same = {name for name, one in before.items() if one.reason and self._refused.get(name) is one}
        if same:
            self._known = {name: state for name, state in self._known.items() if name not in same}
            self._more.set()

    async def _restore(self) -> None:
        """The first index, of what the database had; it is not in force yet."""
        while not self._embeds.ready:  # noqa: ASYNC110 (it tells nobody)
            await asyncio.sleep(UNREADY)
        async with self._lock:
            self._index, self._known = await self._kept.index(self._embeds.identity, self._embeds.dimensions)
            self._refused = self._kept.refused
            self._known |= {name: refused.state for name, refused in self._refused.items()}

    async def _read(
        self, files: Mapping[str, FileState], progress: FolderProgress, *, within: float | None = None
    ) -> None:
        """Read these files, and put in force what they have become. Raises TimeoutError where the reading takes more
        than `within` seconds."""
        assert self._index is not None
        self._run_number += 1
        number = self._run_number
        before = self._index.documents
        replaced = sum(len(before[name].pieces) for name in files if name in before)
        filling = Filling(
            self._reader,
            self._embeds,
            self._database,
            progress,
            erased=self._kept.is_erased,
            room=MAX_PIECES - self._index.pieces + replaced,
        )
        async with asyncio.timeout(within):
            read, refused = await filling.run(files)
        async with self._lock:
            read = {name: one for name, one in read.items() if self._since.get(name, 0) <= number}
            refused = {name: one for name, one in refused.items() if self._since.get(name, 0) <= number}
            looked_at: dict[str, Read | Refused] = {**read, **refused}
            self._known |= {name: one.state for name, one in looked_at.items()}
            self._since |= dict.fromkeys(looked_at, number)
            self._refused = {name: one for name, one in self._refused.items() if name not in read} | refused
            try:
                await self._apply(read, begin=True)
            except BaseException:  # then they have to be read again
                self._known = {name: state for name, state in self._known.items() if name not in looked_at}
                raise

    async def _apply(self, read: Mapping[str, Read], *, away: Collection[str] = (), begin: bool = False) -> None:
        """Under the lock: put in force what the folder, the rules and those that said something want now, with the
        documents that were read, and without those of `away`. The first time only where that is the begin."""
        look, acl, index, before = self._look, self._acl, self._index, self._marks
        if look is None or acl is None or index is None:
            return
        refused = {*self._refused, *away}
        other_rules = acl is not self._index_acl

        def work() -> tuple[Index, dict[str, plan.Mark], list[str]]:
            changes = plan.changes(index, look.files, refused, read, acl, other_rules=other_rules)
            new = index.changed(put=changes.put, away=changes.away, required=changes.required) if changes else index
            if other_rules and (unused := acl.unused(new.documents)):
                _log.warning("retriever %s: access rules that no document needs: %s", self._name, unused[:SAID])
            marks = plan.marks(new.documents)
            return new, marks, plan.ended(before, marks)

        new, marks, ended = await asyncio.to_thread(work)
        self._index = new
        if self.in_force is None and not begin:
            return
        self.in_force = InForce(new, acl.named, self._kept.memory.told)
        self._index_acl, self._marks = acl, marks
        if ended:
            self._changed(ended)
        self._known = {name: state for name, state in self._known.items() if name in look.files}
        self._refused = {name: one for name, one in self._refused.items() if name in look.files}
        self._since = {name: number for name, number in self._since.items() if name in look.files}
        await self._kept.save(new, self._known, self._refused)

    def _say_skipped(self) -> None:
        """Each once."""
        reasons = {} if self._look is None else dict(self._look.skipped)
        reasons |= {name: refused.reason for name, refused in self._refused.items() if refused.reason}
        new = sorted(reasons.items() - set(self._said))
        for name, reason in new[:SAID]:
            _log.warning("retriever %s: skipped: %r %s", self._name, name, reason)
        if len(new) > SAID:
            _log.warning("retriever %s: skipped: %d more files", self._name, len(new) - SAID)
        self._said = frozenset(reasons.items())


def _not_documents(acl: Path | None, database: Path | None) -> list[Path]:
    beside = [] if database is None else [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]
    return beside if acl is None else [*beside, acl]
