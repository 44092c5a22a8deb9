import pytest

from cache.match import Match
from tests.contract.stores import START, key_of, make_entry

ENTRY = make_entry(
    "a", tenant="acme", user="alice", endpoint="e", model="m", tags=("x", "y"), documents=("d@1",), created=START
)


@pytest.mark.parametrize(
    "match",
    [
        Match(),
        Match(key=key_of("a")),
        Match(tags=frozenset(["x", "other"])),
        Match(documents=frozenset(["d@1"])),
        Match(endpoint="e", model="m", tenant="acme", user="alice"),
        Match(older_than=START + 0.001),
    ],
)
def test_accepts(match: Match) -> None:
    assert match.accepts(ENTRY)


@pytest.mark.parametrize(
    "match",
    [
        Match(key=key_of("b")),
        Match(tags=frozenset()),
        Match(tags=frozenset(["d@1"])),
        Match(documents=frozenset(["x"])),
        Match(endpoint="E"),
        Match(model=""),
        Match(tenant="*"),
        Match(user="alice%"),
        Match(older_than=START),
        Match(endpoint="e", model="m", tenant="acme", user="bob"),
        Match(tags=frozenset(["x"]), documents=frozenset(["d@2"])),
    ],
)
def test_refuses(match: Match) -> None:
    assert not match.accepts(ENTRY)
