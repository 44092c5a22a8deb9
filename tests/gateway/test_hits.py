"""The short record of a hit says what a whole decision would."""

from itertools import pairwise

from cache.entry import Cost, Entry, Usage
from gateway.decisions import new_number
from gateway.hits import Facts, Hit
from gateway.ledger.ledger import HITS_AT_ONCE, Ledger
from gateway.ledger.sums import NUMBERS
from gateway.principal import Principal

ENTRY = Entry(
    key=b"k" * 32,
    scope=b"s" * 32,
    tenant="acme",
    user="alice",
    endpoint="chat",
    api="chat",
    model="m",
    backend="up",
    body=b"{}",
    created=1_000.0,
    expires=2_000.0,
    keep_until=2_000.0,
    usage=Usage(300, 100),
    cost=Cost(1_234.5, 0.01),
    upstream_id="up-1",
)
FACTS = Facts(ENTRY, Principal("acme", "bob"), "chat", "chat", "m", stream=True)


def hit(ms: float = 0.25) -> Hit:
    return Hit(FACTS, new_number(), 1_060.0, ms, 60, 940)


def test_it_reads_like_the_decision_that_it_stands_for() -> None:
    short = hit()
    whole = short.decision()
    for name in ("id", "at", "principal", "tenant", "endpoint", "model", "key", "outcome", "status", "error", "age"):
        assert getattr(short, name) == getattr(whole, name), name
    assert [t.as_dict() for t in short.tiers] == [t.as_dict() for t in whole.tiers]
    told = short.as_dict()
    assert told == whole.as_dict()
    assert (told["outcome"], told["status"], told["stream"], told["age"]) == ("exact", 200, True, 60)
    assert told["tiers"] == [{"tier": "exact", "result": "hit", "why": "byte_identical", "ttl": 940}]
    assert (told["tokens"]["served"], told["tokens"]["saved"], told["tokens"]["consumed"]) == (400, 400, 0)
    assert (told["usd"]["saved"], told["ms_saved"], told["upstream_id"]) == (0.01, 1_234.5, "up-1")
    assert told["phases"] == {"exact": 0.25}


def test_it_is_booked_as_that_decision_would_be() -> None:
    """Also while it waits for others."""
    short, long = Ledger(), Ledger()
    for number in range(HITS_AT_ONCE + 3):
        one = hit(ms=0.1 * number)
        short.book_hit(one.facts, one.ms)
        long.book(one.decision())
    [(key, sums)], [(other_key, other)] = list(short.totals()), list(long.totals())
    assert key == other_key
    assert sums.requests == HITS_AT_ONCE + 3
    for name in (*NUMBERS, "buckets", "first_buckets"):
        assert getattr(sums, name) == getattr(other, name), name


def test_ids_go_on_beside_those_of_others() -> None:
    numbers = [hit().number for _ in range(5)]
    assert all(b == a + 1 for a, b in pairwise(numbers))
    assert len({hit().id, hit().id}) == 2
