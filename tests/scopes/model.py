"""The rules: which answer a request may have been given. In the words of DESIGN 4 to 6, and importing nothing from what
is judged.

Every answer names the upstream call that it came from, so a rule can ask for whom that call was made, and when.
"""

from tests.scopes.log import Asked, Log, Made, may_use

STALL = 5
"""Seconds by which an answer may be said to be older than our clock has it: the gateway has a second clock, a real one,
by which time passes while this machine is busy."""


LIKE = "semantic"
"""The outcome of a request that was given another question's answer."""


class Leak(Exception):
    """A rule is broken: `rule` in a word or two, `at` at which step."""

    at = 0

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


def judge(log: Log, asked: Asked) -> None:
    """Raises Leak for a request that was answered as it must not be."""
    _expect_status(log, asked)
    if asked.status != 200:
        if asked.serials:
            raise Leak("answer in a refusal", f"status {asked.status}, {_serials(asked)}")
        return
    if len(asked.serials) != 1:
        # Nothing of an answer came before it was left, or broke off.
        if asked.serials or not (asked.ask.leaves or log.failed(asked)):
            raise Leak("not one answer", _serials(asked))
        return
    made = log.made[next(iter(asked.serials))]
    _may_share(asked, made)
    if made.asked is not asked:
        _may_reuse(log, asked, made)
    _count(log, asked, made)


def _expect_status(log: Log, asked: Asked) -> None:
    if asked.person is None:
        expected = asked.status == 401
    elif not may_use(asked.policy, asked.person):
        expected = asked.status == 403
    elif asked.status == 504 and asked.ask.control.only_if_cached:
        expected = True
    elif asked.status == 0:
        expected = asked.ask.leaves
    else:
        expected = asked.status == 200 or (asked.status in (400, 500, 502) and log.failed(asked))
    if not expected:
        raise Leak("status", f"{asked.status} for {asked.person}")


def _may_share(asked: Asked, made: Made) -> None:
    """Who and what."""
    mine, others = asked.ask, made.asked.ask
    same = mine.sense == others.sense if asked.outcome == LIKE else mine.meaning == others.meaning
    if not same:
        raise Leak("another request", f"{others.meaning} for {mine.meaning}")
    if made.asked.ask.endpoint != asked.ask.endpoint:
        raise Leak("another endpoint", f"{made.asked.ask.endpoint} for {asked.ask.endpoint}")
    if made.asked.scope != asked.scope:
        raise Leak("another scope", f"made for {made.asked.scope}, given to {asked.scope}")
    if asked.ask.control.only_if_cached and (made.asked is asked or asked.outcome == "joined"):
        raise Leak("only-if-cached", "but the backend was called")
    if asked.outcome == LIKE and made.asked is asked:
        raise Leak("outcome", "says that another question's answer was its own")


def _may_reuse(log: Log, asked: Asked, made: Made) -> None:
    """When, and whether at all: the call was another request's."""
    control = asked.ask.control
    if control.no_cache or asked.bypasses or not _wanted(asked):
        raise Leak("reuse not wanted", f"{asked.outcome} with {control}")
    if made.asked.alone and log.refreshes(made) is None:
        raise Leak("kept though not to be", str(made.asked.ask.control))
    samples = asked.ask.temperature not in (None, 0)
    if asked.outcome == "joined" and samples:
        raise Leak("joined", "though it wants a sample of its own")
    if asked.outcome not in ("exact", "stale", "joined", LIKE):
        # Whoever takes over a call that has failed says "miss"; it is then one of those whom the call was for.
        if asked not in made.others:
            raise Leak("outcome", f"says {asked.outcome!r} of a reuse")
        return
    age = asked.head_at - made.at
    if asked.age is None or not int(age) <= asked.age <= int(age) + STALL:
        raise Leak("age", f"says {asked.age}, made {age:g} s ago")
    if control.max_age is not None and asked.at - made.at > control.max_age:
        raise Leak("max-age", f"{asked.at - made.at:g} s old")
    if asked.outcome == LIKE and any(
        (r.asked, r.served) == (asked.place, made.asked.place) and r.by < asked.began for r in log.reported
    ):
        raise Leak("reported wrong", f"{made.asked.ask.meaning} for {asked.ask.meaning}")
    end = _end(log, asked, made)
    if made.whole is None or made.whole > asked.began:
        return  # it came while the answer was being made
    if not made.good:
        raise Leak("kept though not to be", "a cut or broken answer")
    late = asked.at - end
    if late < 0:
        return
    if asked.outcome != "stale":
        raise Leak("past its life", f"by {late:g} s, and {asked.outcome}")
    policy = asked.policy
    keep = max(policy.revalidate, policy.if_error)
    accepted = policy.revalidate if control.max_stale is None else min(control.max_stale, keep)
    in_error = log.failed(asked) and asked.ended_at - end < policy.if_error
    if late >= accepted and not in_error:
        raise Leak("past its life", f"by {late:g} s, stale up to {accepted:g} s")


def _wanted(asked: Asked) -> bool:
    """Does the request let its outcome be, and the endpoint?"""
    tier = asked.ask.control.tier
    match asked.outcome:
        case "semantic":
            return tier != "exact" and asked.policy.like_ttl is not None
        case "exact" | "stale":
            return tier != "semantic"
    return True


def _end(log: Log, asked: Asked, made: Made) -> float:
    """The end of its life."""
    like = asked.outcome == LIKE
    end = log.end(made, asked.policy, like=like)
    for purged in log.purges_of(made, asked.began, like=like):
        if not purged.purge.soft:
            raise Leak("purged", f"by {purged.purge}")
        end = min(end, purged.at)
    return end


def _count(log: Log, asked: Asked, made: Made) -> None:
    """What a leak would have shown at, and what was made anew."""
    earlier = [m for m in log.made.values() if m.began < asked.began and m.asked.ask.meaning == asked.ask.meaning]
    if any(m.good and m.asked.place != asked.place for m in earlier):
        log.opportunities += 1
    if any(_like_elsewhere(asked, m) for m in log.made.values()):
        log.likes += 1
    if made.asked is asked and not asked.bypasses and not asked.ask.control.no_cache:
        older = [m for m in earlier if m.asked.place == asked.place and m.good and not m.asked.alone]
        if older and asked.at >= log.end(older[-1], asked.policy):
            log.expiries += 1


def _like_elsewhere(asked: Asked, made: Made) -> bool:
    """Had the same been asked before in other words and other circumstances, and was it kept?"""
    mine, others = asked.ask, made.asked.ask
    alike = others.prompt != mine.prompt and others.wording.asks == mine.wording.asks
    return alike and made.good and made.began < asked.began and made.asked.context != asked.context


def _serials(asked: Asked) -> str:
    return f"answers {sorted(asked.serials)}"
