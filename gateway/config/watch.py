"""A changed file is applied without a restart; a broken one changes nothing.

Rules, and the facts behind them:
- Folders are watched, not the file. Editors replace a file by renaming another one over it, and Kubernetes swaps a
  symbolic link beside it: a watch on the file would go on looking at the old one.
- When the path leads through a link, the folder of the real file is watched too, and the folders are looked up again
  after every event, since the next target may lie elsewhere.
- What counts is the content, and that of the price list that the file names. An event may come for a neighbour of the
  file, and some file systems send none at all, so the content is also compared every few seconds.
- Some writers empty the file first. It is read only once it has stopped changing, and an empty one is refused: it
  would mean "all defaults", which is no wish to be granted by accident.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import structlog
from watchfiles import awatch

from gateway.config import checks
from gateway.config.document import read
from gateway.config.load import parse_config
from gateway.config.models import Config
from gateway.config.price_file import price_path
from gateway.config.problems import ConfigError, Problem

_LOOK_ANYWAY_S = 2.0
_QUIET_S = 0.2
_PINNED = ("host", "port", "workers")

log = structlog.get_logger(__name__)


async def watch_config(
    path: Path,
    running: Config,
    apply: Callable[[Config], Awaitable[None]],
    *,
    env: Mapping[str, str] = os.environ,
    server: Mapping[str, object] | None = None,
) -> None:
    """Apply every usable change of the file at `path`, until cancelled.

    `running` was loaded from it with the same `env` and `server` (see load_config); a change made since then is seen
    too. Where `apply` raises, the running configuration stays and the next change is tried.
    """
    seen = _Content("", None)
    while True:
        content = await _settled(path, seen)
        if content != seen:
            seen = content
            try:
                new = _usable(content.text, path.parent, running, env, server)
            except ConfigError as error:
                log.warning("configuration refused, the running one stays", problems=[str(p) for p in error.problems])
            else:
                running = await _applied(new, running, apply)
        await _event(path)


class _Content(NamedTuple):
    """The text of the file, and of the price list that it names; None: it cannot be read, or there is none."""

    text: str | None
    prices: str | None


async def _settled(path: Path, seen: _Content) -> _Content:
    """What the file has once it is `seen`, or the same for a moment."""
    content = await asyncio.to_thread(_content, path)
    while content != seen:
        await asyncio.sleep(_QUIET_S)
        again = await asyncio.to_thread(_content, path)
        if again == content:
            break
        content = again
    return content


def _content(path: Path) -> _Content:
    text = _text(path)
    prices = price_path(text, path.parent) if text is not None else None
    return _Content(text, None if prices is None else _text(prices))


def _text(path: Path) -> str | None:
    try:
        return read(path)
    except ConfigError:
        return None


async def _event(path: Path) -> None:
    """Return when something happened in a folder of the file, or after a few seconds."""
    try:
        folders = await asyncio.to_thread(_folders, path)
        watch = awatch(
            *folders,
            watch_filter=None,
            recursive=False,
            rust_timeout=int(_LOOK_ANYWAY_S * 1_000),
            yield_on_timeout=True,
        )
        async with aclosing(watch):
            await anext(watch)
    except OSError:  # a folder is gone, a link went while it was followed, or the system allows no more watches
        await asyncio.sleep(_LOOK_ANYWAY_S)


def _folders(path: Path) -> set[str]:
    return {os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.realpath(path))}


def _usable(
    content: str | None,
    folder: Path,
    running: Config,
    env: Mapping[str, str],
    server: Mapping[str, object] | None,
) -> Config:
    """The new configuration, with the running values of what needs a restart. Raises ConfigError."""
    if content is None or not content.strip():
        raise ConfigError([Problem("", "the file cannot be read" if content is None else "the file is empty")])
    new = parse_config(content, env, server=server, folder=folder)
    pinned = {name: getattr(running.server, name) for name in _PINNED}
    waiting = [f"server.{name}" for name in _PINNED if getattr(new.server, name) != pinned[name]]
    if new.store != running.store:
        waiting.append("store")
    if waiting:
        log.warning("settings need a restart, their running values stay", settings=waiting)
    kept = new.model_copy(update={"server": new.server.model_copy(update=pinned), "store": running.store})
    # The file agrees with itself, but perhaps not with what stays: no key needed, and still a public address.
    if found := checks.disagreements(kept):
        raise ConfigError(Problem(".".join(map(str, steps)), message) for steps, message in found)
    return kept


async def _applied(new: Config, running: Config, apply: Callable[[Config], Awaitable[None]]) -> Config:
    """What runs now."""
    if new == running:
        return running
    try:
        await apply(new)
    except Exception:
        log.exception("configuration could not be applied, the running one stays")
        return running
    log.info("configuration applied")
    return new
