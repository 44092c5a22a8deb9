"""Sees what happens in a folder, and to the file of its access rules.

Rules, and the facts behind them:
- What counts is what two looks at the folder agree on, a moment apart: a file that is being written is read when that
  has stopped, and one that an editor puts in another's place is not missing in between.
- Events only say that it is time to look. Some file systems send none (network, some containers), some get lost, and
  the system may allow no more watches; so a look is taken every few seconds as well, in large folders less often.
- While the rules' file is being written nothing new counts: it could need permissions that are only being written down.
- A folder that cannot be listed says nothing about its documents. It is not an empty one.
- The folders of the rules' file are watched, not the file: see gateway/config/watch.py for why.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from watchfiles import Change, awatch

from backends.retrievers.folder.files import FileState, scan

QUIET = 0.2
"""Seconds for which nothing must have changed."""
LOOK_ANYWAY = 3.0
"""Seconds after which a look is taken without an event."""
SHARE, SHARE_OF_EVENTS = 20.0, 2.0
"""A look without, and with an event, is taken so many times later than the last one took, at the earliest: in a huge
folder a look takes seconds."""

AclState = tuple[int, int, int, int, int] | None
"""Of the rules' file; None: there is none, or it cannot be reached."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is in the folder, and why other files are no documents."""

    files: Mapping[str, FileState] = field(default_factory=dict, repr=False)
    skipped: Mapping[str, str] = field(default_factory=dict, repr=False)
    acl: AclState = None


def settle(seen: Look | None, first: Look, second: Look) -> tuple[Look | None, bool]:
    """What two looks agree on, and elsewhere what was seen before; and whether they agree on everything."""
    if first == second:
        return second, True
    if first.acl != second.acl:
        if seen is None:
            return None, False
        there = {name: state for name, state in seen.files.items() if name in first.files or name in second.files}
        return Look(there, seen.skipped, seen.acl), False
    if seen is None:
        seen = Look(acl=second.acl)
    files = {}
    for name in {**seen.files, **second.files}:
        same = first.files.get(name) == second.files.get(name)
        if (state := (second if same else seen).files.get(name)) is not None:
            files[name] = state
    return Look(files, second.skipped, second.acl), False


class Watch:
    """Watches `root`, whose files at the paths in `exclude` are no documents, and `acl`."""

    def __init__(self, root: Path, acl: Path | None, exclude: Collection[Path]) -> None:
        self._root = root
        self._acl = acl
        self._exclude = exclude
        self._wake = asyncio.Event()
        self._took = 0.0  # seconds

    def wake(self) -> None:
        """Take a look now."""
        self._wake.set()

    async def run(self, seen: Callable[[Look], Awaitable[None]], lost: Callable[[str], None]) -> None:
        """Tell what is there, at once and whenever it has become different, and when the folder cannot be listed and
        why; when it can again, what is there is told again. Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events(self._folders, recursive=True))
            if self._acl is not None:
                tasks.create_task(self._events(self._acl_folders, recursive=False))
            await self._looks(seen, lost)

    async def _looks(self, seen: Callable[[Look], Awaitable[None]], lost: Callable[[str], None]) -> None:
        last: Look | None = None
        told = False
        while True:
            self._wake.clear()
            whole = True
            try:
                now, whole = await self._settled(last)
            except OSError as error:
                told = False
                lost(f"the folder cannot be read: {error.strerror or error}")
            else:
                if now is not None and (now is not last or not told):
                    last, told = now, True
                    await seen(now)
            await asyncio.sleep(SHARE_OF_EVENTS * self._took)
            pause = max(LOOK_ANYWAY, SHARE * self._took) if whole else QUIET
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _settled(self, last: Look | None) -> tuple[Look | None, bool]:
        """`last` itself where nothing has changed. Raises OSError."""
        first, same = await asyncio.to_thread(self._compared, last)
        if same:
            return last, True
        await asyncio.sleep(QUIET)
        return await asyncio.to_thread(lambda: settle(last, first, self._look()))

    def _compared(self, last: Look | None) -> tuple[Look, bool]:
        look = self._look()
        return look, look == last

    def _look(self) -> Look:
        began = time.monotonic()
        listing = scan(self._root, exclude=self._exclude)
        self._took = time.monotonic() - began
        return Look(listing.files, listing.skipped, None if self._acl is None else _state(self._acl))

    async def _events(self, folders: Callable[[], Mapping[str, int]], *, recursive: bool) -> None:
        """Wake on events in the folders, which are looked up again now and then: one that was replaced has none."""
        while True:
            try:
                watched = await asyncio.to_thread(folders)
                changes = awatch(
                    *watched,
                    # Of the rules' folders hidden names count as well: Kubernetes swaps a link with such a name.
                    watch_filter=partial(_may_matter, tuple(watched)) if recursive else None,
                    recursive=recursive,
                    debounce=200,
                    rust_timeout=int(LOOK_ANYWAY * 1000),
                    yield_on_timeout=True,
                )
                async with aclosing(changes):
                    async for change in changes:
                        if change:
                            self._wake.set()
                        if await asyncio.to_thread(folders) != watched:
                            break
            except OSError:  # a folder is gone, or the system allows no more watches
                await asyncio.sleep(LOOK_ANYWAY)

    def _folders(self) -> dict[str, int]:
        return _inodes(os.path.realpath(self._root))

    def _acl_folders(self) -> dict[str, int]:
        assert self._acl is not None
        return _inodes(os.path.dirname(os.path.abspath(self._acl)), os.path.dirname(os.path.realpath(self._acl)))


def _inodes(*folders: str) -> dict[str, int]:
    """Raises OSError where one is not there."""
    return {folder: os.stat(folder).st_ino for folder in folders}


def _may_matter(folders: Collection[str], _: Change, path: str) -> bool:
    """Where something in the path below the folder begins with a dot, no document is there."""
    below = next((path.removeprefix(folder) for folder in folders if path.startswith(folder)), path)
    return not any(part.startswith(".") for part in below.split(os.sep))


def _state(path: Path) -> AclState:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
