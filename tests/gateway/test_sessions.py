"""The table of sessions, with clocks in the test's hand."""

import pytest

from gateway.auth import Key
from gateway.principal import Principal
from gateway.sessions import LIFE, MAX_PER_KEY, MAX_SESSIONS, Sessions


class Clocks:
    wall = 1_000_000.0
    mono = 50.0


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def sessions(clocks: Clocks) -> Sessions:
    return Sessions(lambda: clocks.wall, mono=lambda: clocks.mono)


def key_of(name: str) -> Key:
    return Key(name.encode().ljust(32), Principal("acme", name, role="admin"))


ANN = key_of("ann")
KEYS = {ANN.digest: ANN}


def test_a_session_leads_to_its_key_as_it_stands_now(sessions: Sessions) -> None:
    value = sessions.open(ANN)
    assert sessions.find(value, KEYS) is ANN
    promoted = Key(ANN.digest, Principal("other", "ann", role="tenant_admin"))
    assert sessions.find(value, {ANN.digest: promoted}) is promoted


def test_values_are_long_and_all_different(sessions: Sessions) -> None:
    values = {sessions.open(ANN) for _ in range(50)}
    assert len(values) == 50
    assert min(map(len, values)) >= 43  # 256 bits


@pytest.mark.parametrize("value", ["", "x", "x" * 5000, "\xff", "ann"])
def test_what_was_never_given_out_is_no_session(sessions: Sessions, value: str) -> None:
    sessions.open(ANN)
    assert sessions.find(value, KEYS) is None
    sessions.close(value)
    assert len(sessions) == 1


@pytest.mark.parametrize("clock", ["wall", "mono"])
def test_it_ends_by_the_clock_that_comes_first(sessions: Sessions, clocks: Clocks, clock: str) -> None:
    value, begun = sessions.open(ANN), getattr(clocks, clock)
    setattr(clocks, clock, begun + LIFE - 1)
    assert sessions.find(value, KEYS) is ANN
    setattr(clocks, clock, begun + LIFE)
    assert sessions.find(value, KEYS) is None
    setattr(clocks, clock, begun)  # set back: it does not come to life again
    assert sessions.find(value, KEYS) is None
    assert len(sessions) == 0


def test_it_ends_with_its_key(sessions: Sessions) -> None:
    revoked, removed = sessions.open(ANN), sessions.open(ANN)
    taken_back = Key(ANN.digest, ANN.principal)
    taken_back.revoked = True
    assert sessions.find(revoked, {ANN.digest: taken_back}) is None
    assert sessions.find(removed, {}) is None
    for value in (revoked, removed):
        assert sessions.find(value, KEYS) is None


def test_signing_out_ends_this_one_only(sessions: Sessions) -> None:
    here, there = sessions.open(ANN), sessions.open(ANN)
    sessions.close(here)
    assert sessions.find(here, KEYS) is None
    assert sessions.find(there, KEYS) is ANN


def test_one_key_cannot_push_out_the_sessions_of_others(sessions: Sessions) -> None:
    other = key_of("other")
    mine = sessions.open(ANN)
    theirs = [sessions.open(other) for _ in range(2 * MAX_SESSIONS)]
    assert sessions.find(mine, KEYS) is ANN
    assert len(sessions) == MAX_PER_KEY + 1
    keys = {other.digest: other}
    assert [sessions.find(v, keys) is other for v in theirs[-MAX_PER_KEY - 1 :]] == [False, *[True] * MAX_PER_KEY]


def test_of_too_many_the_oldest_go(sessions: Sessions) -> None:
    keys = [key_of(f"k{n}") for n in range(MAX_SESSIONS + 5)]
    values = [sessions.open(key) for key in keys]
    assert len(sessions) == MAX_SESSIONS
    table = {key.digest: key for key in keys}
    assert [sessions.find(v, table) is not None for v in values[:6]] == [False] * 5 + [True]


def test_no_value_is_kept_as_it_is(sessions: Sessions) -> None:
    value = sessions.open(ANN)
    assert value.encode() not in b"".join(sessions._open)
