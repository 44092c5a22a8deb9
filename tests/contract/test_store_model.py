"""Random sequences of calls on every store, against the simplest model of one: a dict."""

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from tests.contract.stores import Clock, Kind, key_of, make_entry, make_question

T = TypeVar("T")

NAMES = st.sampled_from(["a", "b", "c", "d"])
TENANTS = st.sampled_from(["acme", "acm%", "*", ""])
USERS = st.sampled_from(["alice", "bob"])
LABELS = st.frozensets(st.sampled_from(["x", "y", "x_", "?"]), max_size=3)

MATCHES = st.builds(
    Match,
    key=st.none() | NAMES.map(key_of),
    tags=st.none() | LABELS,
    documents=st.none() | LABELS,
    tenant=st.none() | TENANTS,
    user=st.none() | USERS,
    older_than=st.none() | st.integers(-5, 30).map(lambda seconds: Clock().time + seconds),
)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.clock = Clock()
        self.held: dict[bytes, Entry] = {}
        # What may be found beside each entry held. Of one that is dead nobody can say: it may be swept, or be there.
        self.beside: dict[bytes, set[Question | None]] = {}
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.open()

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def open(self) -> None:
        self.store = self.do(self.kind.open(Path(self.directory.name), 64 * 1024 * 1024, self.clock))

    def teardown(self) -> None:
        self.do(self.store.aclose())
        self.runner.close()
        self.directory.cleanup()

    def matching(self, match: Match) -> list[Entry]:
        alive = (entry for entry in self.held.values() if self.alive(entry.key))
        return [entry for entry in alive if match.accepts(entry)]

    def alive(self, key: bytes) -> bool:
        return key in self.held and self.held[key].keep_until > self.clock()

    @rule(
        name=NAMES,
        tenant=TENANTS,
        user=USERS,
        tags=LABELS,
        documents=LABELS,
        body=st.binary(max_size=40),
        life=st.integers(0, 10),
        grace=st.integers(0, 10),
    )
    def put(
        self,
        name: str,
        tenant: str,
        user: str,
        tags: frozenset[str],
        documents: frozenset[str],
        body: bytes,
        life: int,
        grace: int,
    ) -> None:
        now = self.clock()
        entry = make_entry(
            name,
            tenant=tenant,
            user=user,
            tags=tuple(tags),
            documents=tuple(documents),
            body=body,
            created=now,
            expires=now + life,
            keep_until=now + life + grace,
        )
        self.do(self.store.put(entry))
        if not self.alive(entry.key):
            self.beside.setdefault(entry.key, set()).add(None)
        self.held[entry.key] = entry

    @rule(name=NAMES)
    def get(self, name: str) -> None:
        entry = self.held.get(key_of(name))
        expected = entry if entry is not None and entry.keep_until > self.clock() else None
        assert self.do(self.store.get(key_of(name))) == expected

    @rule(match=MATCHES, soft=st.booleans(), dry_run=st.booleans())
    def purge(self, match: Match, soft: bool, dry_run: bool) -> None:
        now = self.clock()
        expected = [entry for entry in self.matching(match) if not soft or entry.expires > now]
        assert self.do(self.store.purge(match, soft=soft, dry_run=dry_run)) == len(expected)
        for entry in expected if not dry_run else ():
            if soft:
                grace = entry.keep_until - entry.expires
                self.held[entry.key] = replace(entry, expires=now, keep_until=now + grace)
            else:
                del self.held[entry.key]
                del self.beside[entry.key]

    @rule(name=NAMES, text=st.text(max_size=5), vector=st.sampled_from([b"", bytes(8)]))
    def note(self, name: str, text: str, vector: bytes) -> None:
        question = make_question(name, text=text, vector=vector)
        self.do(self.store.note(question))
        if self.alive(question.key):
            self.beside[question.key] = {question}
        elif question.key in self.held:
            self.beside[question.key] |= {question, None}

    @rule(after=st.sampled_from([b"", *(key_of(name) for name in "abcd")]), limit=st.integers(0, 5))
    def questions(self, after: bytes, limit: int) -> None:
        found = self.do(self.store.questions(after=after, limit=limit))
        keys = [question.key for question in found]
        assert keys == sorted(set(keys))
        assert len(keys) <= limit
        if not self.kind.keeps_questions:
            assert keys == []
            return
        end = keys[-1] if len(keys) == limit and keys else b"\xff" * 32
        by_key = {question.key: question for question in found}
        for key in self.held:
            if self.alive(key) and after < key <= end and limit:
                assert by_key.pop(key, None) in self.beside[key]
        assert not by_key

    @rule(names=st.lists(st.sampled_from("abcde"), max_size=6))
    def known(self, names: list[str]) -> None:
        keys = [key_of(name) for name in names]
        assert set(self.do(self.store.known(keys))) == {key for key in keys if self.alive(key)}

    @rule(match=MATCHES, limit=st.integers(0, 5))
    def list(self, match: Match, limit: int) -> None:
        expected = self.matching(match)
        found = self.do(self.store.entries(match, limit=limit))
        newest_first = sorted((entry.created for entry in expected), reverse=True)
        assert [entry.created for entry in found] == newest_first[:limit]
        assert all(entry in expected for entry in found)
        assert len({entry.key for entry in found}) == len(found)

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        self.clock.time += seconds

    @rule()
    def flush(self) -> None:
        self.do(self.store.flush())

    @precondition(lambda self: self.kind.durable)
    @rule()
    def restart(self) -> None:
        self.do(self.store.aclose())
        self.open()

    @invariant()
    def within_its_bound(self) -> None:
        stats = self.do(self.store.stats())
        assert 0 <= stats.bytes <= stats.max_bytes
        assert (stats.corrupt, stats.evicted, stats.dropped) == (0, 0, 0)


@pytest.mark.slow
def test_every_store_behaves_like_a_dict(kind: Kind) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(kind),
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
