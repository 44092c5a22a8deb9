"""Have every case happen, and write down what was seen."""

import asyncio
import itertools
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from tests.faults.matrix.cases import Case, Form, Got, Mode, Row, cases
from tests.faults.matrix.client import Client
from tests.faults.matrix.faults import FAULTS, script
from tests.faults.matrix.world import NotThere, World, world
from tests.support.traffic import Json

WORLDS = 2
"""Worlds for each mode, in which cases happen at the same time."""
TRIES = 4
CASES = [case for mode, faults in FAULTS.items() for case in cases(mode, list(faults))]

_number = itertools.count(1)


@dataclass
class Observed:
    rows: dict[Case, Row | Exception] = field(default_factory=dict)
    books: list[Json] = field(default_factory=list)
    """The tokens that each world's gateway has booked."""

    def row(self, case: Case) -> Row:
        found = self.rows[case]
        if isinstance(found, Exception):
            raise found
        return found


def observe_all() -> Observed:
    return asyncio.run(_observe_all())


async def _observe_all() -> Observed:
    observed = Observed()
    waiting = {mode: [case for case in CASES if case.mode == mode] for mode in FAULTS}

    async def work(world: World, mode: Mode) -> None:
        while waiting[mode]:
            case = waiting[mode].pop(0)
            try:
                observed.rows[case] = await play(world, case)
            except Exception as error:
                observed.rows[case] = error
        observed.books.append(await world.tokens())

    async with AsyncExitStack() as stack:
        worlds = [(await stack.enter_async_context(world(mode)), mode) for mode in FAULTS for _ in range(WORLDS)]
        async with asyncio.TaskGroup() as group:
            for each, mode in worlds:
                group.create_task(work(each, mode))
    return observed


async def play(world: World, case: Case) -> Row:
    """A silence ends when the gateway says so. On a busy machine that may be before all are there: then once more."""
    for _ in range(TRIES - 1 if FAULTS[case.mode][case.fault].backend == "hasty" else 0):
        try:
            return await Scene(world, case).play()
        except NotThere:
            await world.nothing_left()
    return await Scene(world, case).play()


class Scene:
    """One case, happening."""

    def __init__(self, world: World, case: Case) -> None:
        self.world = world
        self.case = case
        self.fault = FAULTS[case.mode][case.fault]
        self.prompt = f"Question {next(_number)}?"
        self.gate = threading.Event()
        self.clients: list[Client] = []

    async def play(self) -> Row:
        before = self.world.calls
        try:
            self._prepare()
            await self._gather()
            self._let_it_happen()
            leader = None if self.case.leaves else await self.clients[0].got()
            first, second = [await client.got() for client in self.clients[1:]]
            await self.world.nothing_left()
            calls = self.world.calls - before
        finally:
            self._let_it_happen()
            for client in self.clients:
                await client.leave()
        return Row(leader, first, second, calls, await self._kept(first))

    def _prepare(self) -> None:
        world, fault, before = self.world, self.fault, self.world.up.calls
        if fault.backend == "door":
            world.door.reset_next(fault.times, self.gate)
            before -= fault.times  # these the upstream never sees
        if fault.backend == "shut":
            world.shut.hold()
        world.up.script = script(fault, self.gate, before)

    async def _gather(self) -> None:
        """All who are to be there when it happens."""
        before = self.world.calls
        leader = self._ask(self.case.forms[0])
        if self.fault.backend == "shut":
            await self.world.listening(1)
        else:
            await self.world.called(before + 1)
        if self.fault.begun and self.case.forms[0] == "stream":
            await leader.until_begun()
        for listening, form in enumerate(self.case.forms[1:], 2):
            self._ask(form)
            await self.world.listening(listening)
        if self.case.leaves:
            await leader.leave()
            await self.world.listening(2)

    def _let_it_happen(self) -> None:
        self.gate.set()
        self.world.shut.let_go()

    async def _kept(self, first: Got) -> bool:
        """Does the same request find the answer, if there was one?"""
        before = self.world.calls
        again = await self._ask(self.case.forms[1]).got()
        if again.outcome == "exact":
            assert self.world.calls == before
            assert again == replace(first, outcome="exact")
            return True
        assert again.outcome == "miss"
        assert self.world.calls - before == (self.fault.backend != "shut")
        return False

    def _ask(self, form: Form) -> Client:
        client = Client(self.world.http, self.fault.backend, self.prompt, form)
        self.clients.append(client)
        return client
