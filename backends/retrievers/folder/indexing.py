"""Keeps the index of a folder in step with it.

Rules:

- Nothing is served before the folder has been compared once: after a restart what was deleted or forbidden meanwhile
  must not come back.
- What is to be found no more goes at once: deleted, unreadable, erased and forbidden documents wait for no model. What
  is new or changed is read and embedded first, and comes into force all at once.
"""

import asyncio
import logging
import unicodedata
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from backends.retrievers.base import Changed, Embeds
from backends.retrievers.folder import plan
from backends.retrievers.folder.acl import Acl, AclError, load
from backends.retrievers.folder.chunking import MOST
from backends.retrievers.folder.database import Database
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.filling import Filling
from backends.retrievers.folder.formats_base import Unreadable
from backends.retrievers.folder.in_force import Documents, InForce, Leaving
from backends.retrievers.folder.kept import Kept
from backends.retrievers.folder.progress import FolderProgress
from backends.retrievers.folder.reader import Reader
from backends.retrievers.folder.watch import AclState, Look, Watch

MAX_PIECES = 200_000
"""In an index: about 600 MB with 384 numbers each."""
AWHILE = 10.0
"""Seconds for which somebody waits who says that a document has changed; it comes later then."""
UNREADY = 0.1  # seconds between two looks at whether the model is ready
AGAIN = 5.0  # seconds after something that nobody thought of
SAID = 50  # lines about skipped files at a time

_log = logging.getLogger(__name__)


class Indexing:
    def __init__(
        self, name: str, root: Path, acl: Path | None, embeds: Embeds, database: Path | None, changed: Changed
    ) -> None:
        self.folder_trouble = ""  # why the folder cannot be read
        self.rules_trouble = ""  # why the access rules cannot be used
        self.progress: FolderProgress | None = None
        self._name = name
        self._acl_path = acl
        self._embeds = embeds
        self._reader = Reader(root)
        self._database = Database(database)
        self._kept = Kept(name, self._database)
        self._documents = Documents(name, self._kept, changed)
        self._documents.acl = Acl.everyone() if acl is None else None
        self._watch = Watch(root, acl, _not_documents(acl, database))
        self._more = asyncio.Event()  # there may be something to read
        self._looked = asyncio.Event()
        self._acl_state: AclState = None
        self._wanted: set[str] = set()  # documents that somebody waits for to be read again
        self._renewing = asyncio.Lock()
        self._said: Collection[tuple[str, str]] = ()

    @property
    def in_force(self) -> InForce | None:
        """None until the folder has been compared once."""
        return self._documents.in_force

    @property
    def rules_missing(self) -> bool:
        """Whether there are no rules, and so nothing may be found."""
        return self._documents.acl is None and bool(self.rules_trouble)

    @property
    def skipped(self) -> int:
        """Files that are no documents, for a reason that is in the log."""
        return len(self._skipped())

    async def run(self) -> None:
        """Until cancelled."""
        await self._documents.open()
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
        """It is found no more while its file has the version that it has now, or the one in the index: it may have
        changed a moment ago. Raises DatabaseError where that could not be written down; it is gone all the same."""
        await self._first_look()
        document = self._spelt(document)
        version, state = None, self._state(document)
        if state is not None:
            with suppress(Unreadable, OSError):  # then it does not become a document, and is not the same later
                version = (await self._reader.read(document, most=MOST)).version
        erased = [] if version is None else [version]
        await self._documents.take_out(Leaving(document, erased, None if version is None else state))
        self._more.set()

    async def renew(self, document: str) -> None:
        """Read it again, and make its vectors anew."""
        await self._first_look()
        document = self._spelt(document)
        await self._documents.take_out(Leaving(document))
        self._wanted.add(document)
        async with self._renewing:
            if document in self._wanted and self.in_force is not None and self._embeds.ready:
                wanted, self._wanted = self._wanted, set()
                files = {name: state for name in sorted(wanted) if (state := self._state(name)) is not None}
                progress = FolderProgress(len(files), sum(state.size for state in files.values()))
                with suppress(TimeoutError):
                    await self._read(files, progress, within=AWHILE)
        self._watch.wake()
        self._more.set()  # where it was not read

    def _spelt(self, document: str) -> str:
        """Its name as the file system has it, which may write the same one in another way."""
        look = self._documents.look
        if look is None or document in look.files or document.isascii():
            return document
        same = unicodedata.normalize("NFC", document)
        return next((name for name in look.files if unicodedata.normalize("NFC", name) == same), document)

    def _state(self, document: str) -> FileState | None:
        """Its file's, as it was seen last."""
        look = self._documents.look
        return None if look is None else look.files.get(document)

    async def _first_look(self) -> None:
        """Before that it is not known what there is; where there can be none, nothing is found anyway."""
        with suppress(TimeoutError):
            async with asyncio.timeout(AWHILE):
                await self._looked.wait()

    # What the folder says.

    async def _seen(self, look: Look) -> None:
        if self._acl_path is not None and (look.acl != self._acl_state or not self._looked.is_set()):
            await self._read_rules(self._acl_path, look.acl)
        await self._documents.seen(look)
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
            self._documents.acl, self.rules_trouble = await asyncio.to_thread(load, path), ""
            self._documents.sound = True
        except AclError as error:
            self.rules_trouble, self._documents.sound = str(error), False
            none = self._documents.acl is None
            until = "nothing is found until they can" if none else "the former ones stay in force, new documents wait"
            _log.warning("retriever %s: the access rules cannot be used: %s; %s", self._name, error, until)

    async def _fill(self) -> None:
        """Read what has to be read, again and again."""
        documents = self._documents
        while True:
            await self._more.wait()
            self._more.clear()
            if documents.look is None or documents.acl is None:
                continue
            if documents.index is None:
                await self._restore()
            files = await asyncio.to_thread(plan.unread, documents.look.files, dict(documents.known))
            files = {name: state for name, state in files.items() if documents.may_come(name)}
            if files or self.in_force is None:
                self.progress = FolderProgress(len(files), sum(state.size for state in files.values()))
                try:
                    await self._read(files, self.progress)
                finally:
                    self.progress = None
                self._say_skipped()
                if documents.try_again():
                    self._more.set()
            await documents.clean(self._embeds.identity)

    async def _restore(self) -> None:
        while not self._embeds.ready:  # noqa: ASYNC110 (it tells nobody)
            await asyncio.sleep(UNREADY)
        await self._documents.restore(self._embeds.identity, self._embeds.dimensions)

    async def _read(
        self, files: Mapping[str, FileState], progress: FolderProgress, *, within: float | None = None
    ) -> None:
        """Read these files, and put in force what they have become. Raises TimeoutError where the reading takes more
        than `within` seconds."""
        number = self._documents.begin_run()
        filling = Filling(
            self._reader,
            self._embeds,
            self._database,
            progress,
            erased=self._kept.is_erased,
            room=MAX_PIECES - self._documents.pieces_without(files),
        )
        async with asyncio.timeout(within):
            read, refused = await filling.run(files)
        await self._documents.put(number, read, refused)

    def _skipped(self) -> dict[str, str]:
        """Why, by name."""
        look, refused = self._documents.look, self._documents.refused
        reasons = {} if look is None else dict(look.skipped)
        return reasons | {name: one.reason for name, one in refused.items() if one.reason}

    def _say_skipped(self) -> None:
        """Each once."""
        reasons = self._skipped()
        new = sorted(reasons.items() - set(self._said))
        for name, reason in new[:SAID]:
            _log.warning("retriever %s: skipped: %r %s", self._name, name, reason)
        if len(new) > SAID:
            _log.warning("retriever %s: skipped: %d more files", self._name, len(new) - SAID)
        self._said = frozenset(reasons.items())


def _not_documents(acl: Path | None, database: Path | None) -> list[Path]:
    beside = [] if database is None else [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]
    return beside if acl is None else [*beside, acl]
