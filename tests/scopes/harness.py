"""One sequence, step by step: the real gateway from its outermost callable on, its clock and backend in our hand."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, assert_never
from unittest.mock import patch

from gateway.app import Gateway, create_app
from gateway.config import Config
from tests.scopes.backend import ScriptedBackend
from tests.scopes.client import App, Client, Lifespan, call
from tests.scopes.log import Asked, Log, Purged, Reported, who
from tests.scopes.loop import Clock
from tests.scopes.model import LIKE, Leak, judge
from tests.scopes.questions import place_of
from tests.scopes.steps import Ask, Burst, Feedback, Look, Purge, Release, Reload, Revoke, Step, Tamper, Wait
from tests.scopes.world import ADMIN, Key, World
from tests.support.embedders import Placed

MOMENT = 0.05
"""Seconds in which a client that has left is noticed."""
TURNS = 5_000
"""How often we look whether everything that can happen has happened, some milliseconds apart."""
ROOM = {"memory": "1MiB", "max_entry": "1KiB"}
"""Room for all that a sequence leaves."""
SMALL = {"memory": "2KiB", "max_entry": "1KiB"}
"""Room for one answer at most, without aliases: all others come from the store. No question is known for long."""

STATUSES = {0: "left", 401: "refused", 403: "not_allowed", 504: "not_cached"}


class Course:
    """A sequence in progress. `file`: a store behind the memory; None: memory only. `small`: that memory holds next to
    nothing."""

    def __init__(self, world: World, counts: Counter[str], file: Path | None, *, small: bool) -> None:
        self._world = world
        self._counts = counts
        self._file = file
        url = "memory://" if file is None else f"sqlite:///{file}"
        self._store = {"url": url, **(SMALL if small else ROOM)}
        self._clock = Clock()
        self._log = Log()
        self._backend = ScriptedBackend(self._log, self._clock)
        self._open: list[Client] = []
        self._answered: list[Client] = []
        self._revoked: set[str] = set()
        self._gateway: Gateway
        self._app: App

    async def run(self, steps: Sequence[Step]) -> None:
        """Raises Leak, with the number of the step in `at`."""
        with patch("gateway.fleet.build", lambda name, settings: self._backend):
            self._app = create_app(
                self._config(), clock=self._clock, embedders=lambda _: Placed(place_of), announce=self._announced
            )
            async with Lifespan(self._app):
                await asyncio.sleep(0)
                try:
                    for number, step in enumerate([*steps, Release()]):
                        await self._take(number, step)
                finally:
                    self._counts["opportunities"] += self._log.opportunities
                    self._counts["likes"] += self._log.likes
                    self._counts["expiries"] += self._log.expiries
                    self._backend.release()
                    await asyncio.gather(*(client.task for client in self._open), return_exceptions=True)

    async def _take(self, number: int, step: Step) -> None:
        try:
            await self._do(step)
        except Leak as leak:
            leak.at = number
            raise

    async def _do(self, step: Step) -> None:
        match step:
            case Burst():
                await self._burst(step)
            case Release():
                self._backend.release()
                await self._settle()
            case Wait(seconds):
                self._clock.time += seconds
            case Purge():
                await self._purge(step)
            case Feedback():
                await self._feedback(step)
            case Revoke(token):
                await self._revoke(token)
            case Look(token):
                await self._look(token)
            case Reload(world):
                self._world = world
                await self._gateway.apply(self._config())
                self._counts["reloads"] += 1
            case Tamper():
                await self._tamper()
            case _:
                assert_never(step)

    async def _burst(self, step: Burst) -> None:
        self._backend.script(step.fates, step.hold)
        clients = [Client(self._app, self._log, self._clock, self._asked(ask)) for ask in step.asks]
        self._open += clients
        await self._settle()
        leaving = [client for client in clients if client.asked.ask.leaves and not client.task.done()]
        if leaving:
            for client in leaving:
                client.leave()
            await asyncio.sleep(MOMENT)
            await self._settle()
        self._backend.script(("good",), "no")

    def _asked(self, ask: Ask) -> Asked:
        person = who(self._key(ask.token), ask.behalf)
        # An endpoint may have gone with a reload, but none of these worlds loses one.
        asked = Asked(ask, person, self._world.endpoints[ask.endpoint], self._log.tick(), self._clock())
        self._log.asked.append(asked)
        return asked

    async def _settle(self) -> None:
        """Wait until all is done that can be done without a Release, and judge what has come of it."""
        for _ in range(TURNS):
            await asyncio.sleep(0.002)
            self._judge()
            flights = self._gateway.flights
            if (flights.count, flights.listening) == (self._backend.held, len(self._open)):
                return
        raise Leak("stuck", f"{len(self._open)} clients, {self._backend.held} calls held, {flights.count} flights")

    def _judge(self) -> None:
        done = [client for client in self._open if client.task.done()]
        self._open = [client for client in self._open if not client.task.done()]
        for client in done:
            client.task.result()
            self._check(client)

    def _check(self, client: Client) -> None:
        asked = client.asked
        judge(self._log, asked)
        self._counts["requests"] += 1
        self._counts["checked"] += len(asked.serials)
        self._counts["byte_identical"] += client.short_way
        self._counts["remembered"] += client.remembered
        self._counts[asked.outcome if asked.status == 200 else STATUSES.get(asked.status, "failed")] += 1
        if asked.status == 200 and asked.serials:
            self._answered.append(client)

    async def _purge(self, step: Purge) -> None:
        body: dict[str, Any] = dict(step.criteria)
        place = None
        if step.of is not None:
            if len(self._answered) < step.of:
                return
            client = self._answered[-step.of]
            body["key"], place = await self._key_of(client), client.asked.place
        body |= {name: True for name in ("soft", "dry_run") if getattr(step, name)}
        key = self._key(step.token)
        own = None if key is None or key.role == "admin" else key.person.tenant
        others = await self._entries_of_others(own) if own is not None else set()
        purged = Purged(step, own, place, self._log.tick(), self._clock())
        status, _ = await call(self._app, "POST", "/admin/purge", step.token, body)
        purged.ended = self._log.tick()
        expected = 200 if key is not None and body.get("tenant") in (None, own or body.get("tenant")) else 403
        if expected == 200 and "like" in body and not self._world.reuses_like:
            expected = 409
        self._expect("purge", status, key, expected)
        if own is not None and not others <= await self._entries_of_others(own):
            raise Leak("purge", f"{own} has purged what is another's")
        self._counts["purges"] += status == 200 and not step.dry_run
        if status == 200 and not step.dry_run:
            self._log.purged.append(purged)

    async def _feedback(self, step: Feedback) -> None:
        given = [client for client in self._answered if client.asked.outcome == LIKE] or self._answered
        if len(given) < step.of:
            return
        client = given[-step.of]
        asked, key = client.asked, self._key(step.token)
        body = {"request_id": client.headers[b"x-request-id"].decode(), "correct": step.correct}
        status, _ = await call(self._app, "POST", "/admin/feedback", step.token, body)
        expected = 200 if asked.outcome == LIKE else 409
        assert asked.person is not None
        if key is not None and key.role == "tenant_admin" and asked.person.tenant != key.person.tenant:
            expected = 404
        self._expect("feedback", status, key, expected)
        if status == 200 and not step.correct:
            [serial] = asked.serials
            self._log.reported.add(Reported(asked.place, self._log.made[serial].asked.place, self._log.tick()))
            self._counts["reports"] += 1

    async def _key_of(self, client: Client) -> str:
        """The cache's key of a request, from its decision."""
        query = b"id=" + client.headers[b"x-request-id"]
        _, decision = await call(self._app, "GET", "/admin/decisions", ADMIN, query=query)
        return str(decision["key"])

    async def _entries_of_others(self, tenant: str) -> set[tuple[str, float]]:
        _, found = await call(self._app, "GET", "/admin/entries", ADMIN, query=b"limit=1000")
        return {(entry["key"], entry["expires"]) for entry in found["entries"] if entry["tenant"] != tenant}

    async def _revoke(self, token: str) -> None:
        id = sha256(token.encode()).hexdigest()[:12]
        status, _ = await call(self._app, "POST", "/admin/keys/revoke", ADMIN, {"id": id})
        if status != (200 if self._world.key(token) is not None else 404):
            raise Leak("status", f"{status} for revoking {token}")
        if status == 200:
            self._revoked.add(token)
            self._counts["revoked"] += 1

    async def _look(self, token: str) -> None:
        key = self._key(token)
        for name in ("entries", "decisions"):
            status, found = await call(self._app, "GET", f"/admin/{name}", token)
            self._expect(name, status, key, 200)
            if key is not None and {one["tenant"] for one in found[name]} - {key.person.tenant}:
                raise Leak(name, f"{key.person.tenant} is shown what is another's")

    async def _tamper(self) -> None:
        """Exchange what the store holds under two keys, as somebody could who can write to the file."""
        await self._gateway.cache.flush()
        assert self._file is not None
        with closing(sqlite3.connect(self._file)) as connection, connection:
            rows = connection.execute("SELECT key, value FROM entries ORDER BY created DESC, key LIMIT 2").fetchall()
            for (key, _), (_, value) in zip(rows, reversed(rows), strict=True):
                connection.execute("UPDATE entries SET value = ? WHERE key = ?", (value, key))

    def _key(self, token: str) -> Key | None:
        return None if token in self._revoked else self._world.key(token)

    def _expect(self, what: str, status: int, key: Key | None, expected: int) -> None:
        if key is None:
            expected = 401
        elif key.role == "member":
            expected = 403
        if status != expected:
            raise Leak("status", f"{status} for {what} by {key}")

    async def _announced(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def _config(self) -> Config:
        return Config.model_validate(self._world.settings(self._store))
