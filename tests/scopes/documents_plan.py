"""What happens in a sequence about documents: a seed gives a world and a list of steps, the same ones every time."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tests.scopes.documents_world import (
    DOCUMENTS,
    FOLDER,
    NEEDS,
    TOPICS,
    Change,
    Library,
    Meanwhile,
    PurgeDocument,
    Restart,
    Search,
    Step,
    new_library,
)
from tests.scopes.questions import WORDINGS, others_like
from tests.scopes.steps import PLAIN, Ask, Burst, Control, Release, Wait
from tests.scopes.world import ADMIN

CONTROLS = (
    *(Control(no_cache=True), Control(no_store=True), Control(only_if_cached=True), Control(max_age=30)),
    *(Control(ttl=40), Control(tier="exact"), Control(tier="semantic"), Control(no_cache=True, in_body=True)),
)
WAITS = (1.0, 30.0, 65.0, 65.0, 250.0, 301.0)


def plan(seed: int, *, folder: bool, stored: bool) -> tuple[Library, list[Step]]:
    random = Random(seed)
    world = new_library(random, folder=folder)
    documents = [name for retriever in world.retrievers for name in DOCUMENTS[retriever]]
    steps: list[Step] = [_change(random, name, "text") for name in documents]
    asked: list[Ask] = []
    length = len(steps) + random.randint(12, 24)
    while len(steps) < length:
        if asked and not isinstance(steps[-1], Burst | Release) and random.random() < 0.7:
            # What has changed anything shows when the same comes again.
            again = [_again(random, world, asked) for _ in range(random.randint(1, 3))]
            step: Step = Burst(tuple(again))
        else:
            step = _step(random, world, documents, asked, stored=stored)
        steps.append(step)
        burst = step.burst if isinstance(step, Meanwhile) else step
        if isinstance(burst, Burst):
            asked.extend(burst.asks)
    return world, steps


def _step(random: Random, world: Library, documents: Sequence[str], asked: Sequence[Ask], *, stored: bool) -> Step:
    dice = random.random()
    if dice < 0.42:
        return _burst(random, world, asked)
    if dice < 0.56:
        burst = _burst(random, world, asked)
        change = _change(random, random.choice(documents))
        return Meanwhile(burst, change, held=world.named and change.how == "notice" and random.random() < 0.5)
    if dice < 0.82:
        return _change(random, random.choice(documents))
    if dice < 0.88:
        return Wait(random.choice(WAITS))
    if dice < 0.92:
        return PurgeDocument(random.choice(documents))
    if dice < 0.95 and stored:
        return Restart(tuple(_change(random, random.choice(documents)) for _ in range(random.randint(0, 2))))
    return Release()


def _burst(random: Random, world: Library, asked: Sequence[Ask]) -> Burst:
    first = _again(random, world, asked) if asked and random.random() < 0.6 else _ask(random, world)
    asks = [first]
    while random.random() < 0.5:
        asks.append(_as_somebody(random, world, first))
    hold = random.choice(("before", "middle")) if random.random() < 0.2 else "no"
    return Burst(tuple(asks), hold=hold)


def _ask(random: Random, world: Library) -> Ask:
    token = random.choice(_tokens(world))
    endpoint, prompt = random.choice(tuple(world.endpoints)), random.randrange(len(WORDINGS))
    control = random.choice(CONTROLS) if random.random() < 0.15 else PLAIN
    form = random.choice(("json", "json", "sse", "sse+usage"))
    if random.random() < 0.25:
        return Search(token, endpoint, prompt, control=control, retriever=random.choice(world.retrievers))
    return Ask(token, endpoint, prompt, form=form, control=control, spelling=random.choice((0, 0, 0, 1, 2)))


def _again(random: Random, world: Library, asked: Sequence[Ask]) -> Ask:
    """An earlier request to the letter, or somebody else's of it, or in other words."""
    ask, dice = random.choice(asked[-6:]), random.random()
    if dice < 0.45:
        return ask
    if dice < 0.7:
        return replace(ask, prompt=random.choice(others_like(ask.prompt)), control=PLAIN)
    return replace(_as_somebody(random, world, ask), control=PLAIN)


def _as_somebody(random: Random, world: Library, ask: Ask) -> Ask:
    return replace(ask, token=random.choice(_tokens(world)))


def _tokens(world: Library) -> list[str]:
    return [key.token for key in world.keys if key.token != ADMIN]


def _change(random: Random, document: str, what: str | None = None) -> Change:
    folder = document in DOCUMENTS[FOLDER]
    what = what or random.choice(
        ("text", "text", "text", "delete", "needs", "needs", "erase", *(["revert"] * (not folder)))
    )
    how = random.choice(("watch", "notice") if folder else ("notice", "notice", "purge", "silent"))
    if what == "erase":
        how = "notice"
    return Change(document, what, how, random.choice(TOPICS), random.choice(NEEDS))
