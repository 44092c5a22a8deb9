"""A changed file is applied while the gateway runs; a broken one changes nothing. Real files, real changes."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.config import Config, load_config, watch_config

pytestmark = pytest.mark.slow

PATIENCE = 15.0
ONE_KEY = "keys: [{key: '${KEY}', tenant: t, user: u}]"
ENV = {"KEY": "k" * 40}


def write(path: Path, text: str) -> None:
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


class Watched:
    def __init__(self) -> None:
        self.applied: asyncio.Queue[Config] = asyncio.Queue()
        self.logs: list[Any] = []

    async def next(self) -> Config:
        return await asyncio.wait_for(self.applied.get(), PATIENCE)

    async def logged(self, event: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                for entry in self.logs:
                    if entry["event"].startswith(event):
                        self.logs.remove(entry)
                        return entry
                await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(
    path: Path, apply: Callable[[Config], Awaitable[None]] | None = None, **options: Any
) -> AsyncIterator[Watched]:
    watched = Watched()
    with capture_logs() as watched.logs:
        running = load_config(path, ENV, **options)
        task = asyncio.create_task(watch_config(path, running, apply or watched.applied.put, env=ENV, **options))
        try:
            yield watched
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "refrain.yaml"
    write(path, "decisions: {ring: 1}")
    return path


async def test_a_file_that_is_written_over(path: Path) -> None:
    async with watching(path) as watched:
        write(path, "decisions: {ring: 2}")
        assert (await watched.next()).decisions.ring == 2
        write(path, "decisions: {ring: 3}")
        assert (await watched.next()).decisions.ring == 3


async def test_a_file_that_is_replaced_by_another(path: Path) -> None:
    async with watching(path) as watched:
        for ring in (2, 3):
            temporary = path.with_name(".refrain.yaml.swp")
            temporary.write_text(f"decisions: {{ring: {ring}}}")
            temporary.replace(path)
            assert (await watched.next()).decisions.ring == ring


async def test_a_file_that_is_removed_and_written_again(path: Path) -> None:
    async with watching(path) as watched:
        remove(path)
        assert (await watched.logged("configuration refused"))["problems"] == ["the file cannot be read"]
        write(path, "decisions: {ring: 2}")
        assert (await watched.next()).decisions.ring == 2


async def test_links_as_kubernetes_swaps_them(tmp_path: Path) -> None:
    def publish(version: int) -> None:
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "refrain.yaml").write_text(f"decisions: {{ring: {version}}}")
        (tmp_path / "..data_tmp").symlink_to(folder.name)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    publish(1)
    path = tmp_path / "refrain.yaml"
    path.symlink_to("..data/refrain.yaml")
    async with watching(path) as watched:
        for version in (2, 3):
            publish(version)
            assert (await watched.next()).decisions.ring == version


async def test_a_link_to_a_file_elsewhere(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "real.yaml").write_text("decisions: {ring: 1}")
    (tmp_path / "etc").mkdir()
    path = tmp_path / "etc" / "refrain.yaml"
    path.symlink_to(tmp_path / "one" / "real.yaml")
    async with watching(path) as watched:
        (tmp_path / "one" / "real.yaml").write_text("decisions: {ring: 2}")
        assert (await watched.next()).decisions.ring == 2
        remove(path)
        path.symlink_to(tmp_path / "two" / "real.yaml")
        assert (await watched.next()).decisions.ring == 1
        (tmp_path / "two" / "real.yaml").write_text("decisions: {ring: 3}")
        assert (await watched.next()).decisions.ring == 3


async def test_broken_then_fixed(path: Path) -> None:
    async with watching(path) as watched:
        write(path, "decisions: {ring: 0}\nserver: {prot: 1}")
        refused = await watched.logged("configuration refused")
        assert refused["log_level"] == "warning"
        assert refused["problems"] == [
            "server.prot: unknown setting; did you mean `port`?",
            "decisions.ring: must be at least 1",
        ]
        write(path, "decisions: [")
        assert "no valid YAML" in (await watched.logged("configuration refused"))["problems"][0]
        assert watched.applied.empty()
        write(path, "decisions: {ring: 2}")
        assert (await watched.next()).decisions.ring == 2


async def test_an_emptied_file_is_no_wish_for_the_defaults(path: Path) -> None:
    write(path, f"auth: {{{ONE_KEY}}}")
    async with watching(path) as watched:
        write(path, "\n")
        assert (await watched.logged("configuration refused"))["problems"] == ["the file is empty"]
        assert watched.applied.empty()


async def test_a_change_that_comes_to_the_same_is_not_applied(path: Path) -> None:
    async with watching(path) as watched:
        write(path, "# a comment\ndecisions: {ring: 1}")
        (path.parent / "neighbour.txt").write_text("x")
        await asyncio.sleep(1)
        write(path, "decisions: {ring: 2}")
        assert (await watched.next()).decisions.ring == 2
        assert watched.applied.empty()


async def test_a_change_between_loading_and_watching_is_seen(path: Path) -> None:
    running = load_config(path, ENV)
    write(path, "decisions: {ring: 2}")
    applied: asyncio.Queue[Config] = asyncio.Queue()
    task = asyncio.create_task(watch_config(path, running, applied.put, env=ENV))
    assert (await asyncio.wait_for(applied.get(), PATIENCE)).decisions.ring == 2
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_what_needs_a_restart_keeps_its_running_value(path: Path) -> None:
    async with watching(path) as watched:
        write(
            path,
            "server: {host: localhost, port: 9, workers: 3, max_body: 1MiB}\n"
            "store: {url: 'memory://'}\ndecisions: {ring: 2}",
        )
        new = await watched.next()
        assert (new.server.host, new.server.port, new.server.workers) == ("127.0.0.1", 8080, 1)
        assert new.store.url == "sqlite:///.refrain/cache.db"
        assert (new.server.max_body, new.decisions.ring) == (2**20, 2)
        waiting = await watched.logged("settings need a restart")
        assert waiting["settings"] == ["server.host", "server.port", "server.workers", "store"]


async def test_the_command_line_goes_on_winning(path: Path) -> None:
    async with watching(path, server={"port": 9}) as watched:
        write(path, "decisions: {ring: 2}")
        assert (await watched.next()).server.port == 9
        assert not [entry for entry in watched.logs if "restart" in entry["event"]]


async def test_a_public_address_never_loses_its_keys(path: Path) -> None:
    write(path, f"server: {{host: 0.0.0.0}}\nauth: {{{ONE_KEY}}}")
    async with watching(path) as watched:
        # By itself this file is fine: a loopback address needs no key. But the gateway still listens on 0.0.0.0.
        write(path, "server: {host: 127.0.0.1}")
        problems = (await watched.logged("configuration refused"))["problems"]
        assert problems == ["auth.required: may be false only while `server.host` is a loopback address"]
        assert watched.applied.empty()


async def test_a_change_that_cannot_be_applied_is_tried_again_with_the_next(path: Path) -> None:
    tried: list[int] = []

    async def apply(config: Config) -> None:
        tried.append(config.decisions.ring)
        if config.decisions.ring == 2:
            raise RuntimeError("no")

    async with watching(path, apply) as watched:
        write(path, "decisions: {ring: 2}")
        assert (await watched.logged("configuration could not be applied"))["log_level"] == "error"
        write(path, "decisions: {ring: 3}")
        await watched.logged("configuration applied")
        assert tried == [2, 3]


async def test_a_folder_that_is_gone_for_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "refrain.yaml"
    write(path, "decisions: {ring: 1}")
    async with watching(path) as watched:
        os.rename(folder, tmp_path / "away")
        await watched.logged("configuration refused")
        os.rename(tmp_path / "away", folder)
        write(path, "decisions: {ring: 2}")
        assert (await watched.next()).decisions.ring == 2
