"""What happens in a sequence: a seed gives a world and a list of steps, the same ones every time.

There are few distinct prompts, and a request often repeats an earlier one (as it was, by another key, in another
spelling, in other words), so that most of them could meet an answer that was made for somebody else.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tests.scopes.questions import EARLIER, WORDINGS, others_like
from tests.scopes.steps import (
    FORMS,
    PLAIN,
    SPELLINGS,
    Ask,
    Burst,
    Control,
    Feedback,
    Look,
    Purge,
    Release,
    Reload,
    Revoke,
    Step,
    Tamper,
    Wait,
)
from tests.scopes.world import ADMIN, PERMISSIONS, USERS, WRONG, World, changed, new_world

FATES = (("good",),) * 12 + (("cut",), ("error",), ("error", "good"), ("refused",), ("broken",), ("broken", "good"))


def plan(seed: int, *, stored: bool) -> tuple[World, list[Step]]:
    """`stored`: with a store behind the memory."""
    random = Random(seed)
    world = first = new_world(random)
    steps: list[Step] = []
    asked: list[Ask] = []
    length = random.randint(8, 20)
    while len(steps) < length:
        following: list[Step]
        if asked and random.random() < 0.14:
            following = _in_other_words(random, world, asked, stored=stored)
        elif asked and not isinstance(steps[-1], Burst | Release) and random.random() < 0.4:
            # What has changed anything shows when the same comes again.
            following = [Burst((replace(random.choice(asked[-4:]), leaves=False),))]
        else:
            following = [_step(random, world, asked, stored=stored)]
        for step in following:
            if isinstance(step, Burst):
                asked.extend(step.asks)
            elif isinstance(step, Reload):
                world = step.world
        steps.extend(following)
    return first, steps


def _in_other_words(random: Random, world: World, asked: Sequence[Ask], *, stored: bool) -> list[Step]:
    """An earlier question again, in other words; then something that may take its answer away, and the same again."""
    ask = random.choice(asked[-4:])
    ask = replace(ask, prompt=random.choice(others_like(ask.prompt)), control=PLAIN, leaves=False)
    again = Burst((ask,))
    if random.random() < 0.17:
        held = replace(again, hold=random.choice(("before", "middle")))
        return [held, _purge(random, world, asked, stored=stored), Release(), again]
    change: Step = Release()
    dice = random.random()
    if dice < 0.2:
        change = Wait(random.choice((1.0, 5.0, 10.0, 20.5)))
    elif dice < 0.4:
        change = _purge(random, world, asked, stored=stored)
    elif dice < 0.85:
        change = _feedback(random, world)
    elif dice < 0.9:
        change = Reload(*changed(random, world, ask.token, ask.endpoint))
    return [again, change, again if random.random() < 0.7 else Burst((_as_somebody(random, world, ask),))]


def _step(random: Random, world: World, asked: Sequence[Ask], *, stored: bool) -> Step:
    dice = random.random()
    if dice < 0.62 or not asked:
        return _burst(random, world, asked)
    if dice < 0.71:
        return Wait(random.choice((1.0, 5.0, 9.5, 10.0, 19.5, 20.5, 29.5, 30.0, 45.0)))
    if dice < 0.83:
        return _purge(random, world, asked, stored=stored)
    recent = random.choice(asked[-4:])
    if dice < 0.88:
        return Reload(*changed(random, world, recent.token, recent.endpoint))
    if dice < 0.89:
        return _feedback(random, world)
    if dice < 0.94:
        return Tamper() if stored else Release()
    if dice < 0.97:
        return Look("rf-scopes-tenant-admin")
    if dice < 0.98 and recent.token != ADMIN:
        return Revoke(recent.token)
    return Release()


def _burst(random: Random, world: World, asked: Sequence[Ask]) -> Burst:
    first = _ask(random, world, asked)
    asks = [first]
    for _ in range(random.choice((0, 0, 0, 0, 1, 2, 3))):
        asks.append(_another(random, world, first) if random.random() < 0.8 else _ask(random, world, asked))
    hold = random.choice(("no", "no", "no", "no", "before", "middle"))
    if hold != "no":
        asks = [replace(ask, leaves=random.random() < 0.15) for ask in asks]
    return Burst(tuple(asks), random.choice(FATES), hold)


def _ask(random: Random, world: World, asked: Sequence[Ask]) -> Ask:
    """A new request, or one like an earlier one."""
    dice = random.random()
    if asked and dice < 0.35:
        return replace(random.choice(asked[-6:]), leaves=False)
    if asked and dice < 0.8:
        return _another(random, world, random.choice(asked[-6:]))
    ask = Ask(
        token="",
        endpoint=random.choice(list(world.endpoints)),
        prompt=random.choice((0,) * 6 + (1, 4)),
        model=random.choice(("small", "small", "small", "large")),
        temperature=random.choice((None,) * 6 + (0, 1)),
        form=random.choice(list(FORMS)),
        control=_control(random),
        earlier=random.choice((0,) * 9 + (1, 3)),
    )
    return _as_somebody(random, world, ask)


def _another(random: Random, world: World, ask: Ask) -> Ask:
    """The same request by somebody else, and perhaps spelled in another way, or to another endpoint."""
    ask = replace(_as_somebody(random, world, ask), leaves=False)
    dice = random.random()
    if dice < 0.2:
        return replace(ask, endpoint=random.choice(list(world.endpoints)))
    if dice < 0.4:
        return replace(ask, spelling=random.randrange(SPELLINGS), form=random.choice(list(FORMS)))
    if dice < 0.55:
        return replace(ask, control=_control(random))
    if dice < 0.62:
        return replace(ask, prompt=random.choice(others_like(ask.prompt)))
    if dice < 0.67:
        return replace(ask, earlier=random.randrange(len(EARLIER)))
    if dice < 0.72:
        return replace(ask, temperature=random.choice((None, 0, 1)))
    if dice < 0.75:
        return replace(ask, model=random.choice(("small", "large")))
    return ask


def _as_somebody(random: Random, world: World, ask: Ask) -> Ask:
    key = random.choice((*world.keys, *(key for key in world.keys if key.delegate)))
    if ask.behalf is not None and random.random() < 0.5:
        key = world.key(ask.token) or key  # the same key speaks for another one
    token = WRONG if random.random() < 0.03 else key.token
    behalf = None
    if random.random() < (0.8 if key.delegate else 0.05):
        names = [k.person.user for k in world.keys if k.person.tenant == key.person.tenant]
        # A semicolon ends the name in the header.
        behalf = (random.choice([n for n in (*names, *USERS) if ";" not in n]), random.choice(PERMISSIONS))
    return replace(ask, token=token, behalf=behalf, api_key=random.random() < 0.1)


def _control(random: Random) -> Control:
    if random.random() < 0.65:
        return PLAIN

    def sometimes(chance: float) -> bool:
        return random.random() < chance

    return Control(
        no_cache=sometimes(0.12),
        no_store=sometimes(0.12),
        only_if_cached=sometimes(0.2),
        max_age=random.choice((0, 5, 20)) if sometimes(0.15) else None,
        max_stale=random.choice((0, 5, 50)) if sometimes(0.2) else None,
        ttl=random.choice((0, 5, 20, 1000)) if sometimes(0.2) else None,
        tags=frozenset(random.sample(("red", "green"), random.randint(0, 2))) if sometimes(0.4) else frozenset(),
        tier=random.choice(("exact", "semantic")) if sometimes(0.05) else None,
        in_body=sometimes(0.25),
    )


def _purge(random: Random, world: World, asked: Sequence[Ask], *, stored: bool) -> Purge:
    ask = random.choice(asked[-4:])
    key = world.key(ask.token) or random.choice(world.keys)
    criteria = {
        "tags": random.choice(("red", "green")),
        "documents": "handbook/leave.md",
        "endpoint": ask.endpoint,
        "model": ask.model,
        "tenant": key.person.tenant,
        "user": key.person.user,
        "older_than": random.choice(("0s", "5s", "20s")),
    }
    if not stored:  # what is like a text is looked for among what the tier knows, and after a start it has to read that
        criteria["like"] = WORDINGS[ask.prompt].text
    names = random.sample(list(criteria), random.choice((1, 1, 1, 2)))
    of = random.randint(1, 3) if random.random() < 0.25 else None
    return Purge(
        token=random.choice((ADMIN, ADMIN, ADMIN, "rf-scopes-tenant-admin", random.choice(world.keys).token, WRONG)),
        criteria=() if of is not None and random.random() < 0.7 else tuple((n, criteria[n]) for n in names),
        of=of,
        soft=random.random() < 0.25,
        dry_run=random.random() < 0.15,
    )


def _feedback(random: Random, world: World) -> Feedback:
    tokens = (*(ADMIN,) * 6, "rf-scopes-tenant-admin", random.choice(world.keys).token, WRONG)
    return Feedback(random.choice(tokens), of=random.choice((1, 1, 1, 1, 1, 2)), correct=random.random() < 0.1)
