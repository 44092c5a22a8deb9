"""No answer crosses a scope, whatever happens in whatever order; and every leak that is planted is found."""

import json
from typing import Any
from unittest.mock import patch

import pytest

from cache.exact import ExactCache
from cache.stores.memory import MemoryStore
from tests.scopes.__main__ import main
from tests.scopes.leaks import LEAKS
from tests.scopes.report import explain
from tests.scopes.run import run
from tests.scopes.sound import sound


def test_no_answer_crosses_a_scope() -> None:
    counts = sound(run(100)).counts
    assert counts["sequences"] == 100
    assert counts["opportunities"] > counts["sequences"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_found(name: str) -> None:
    found = run(300, seed=7_000, leak=name).found
    assert found is not None
    assert found.leak.rule in LEAKS[name].rules, explain(found)


def test_a_leak_that_was_planted_is_gone_afterwards() -> None:
    """With the seed that found it, and no leak any more."""
    found = run(300, leak="scope-without-tenant").found
    assert found is not None
    assert run(1, seed=found.seed).found is None


@pytest.mark.slow
def test_a_gateway_that_reuses_nothing_is_noticed() -> None:
    async def nothing(*_: Any) -> None:
        return None

    nowhere = patch.multiple(MemoryStore, peek=lambda *_: None, by_alias=lambda *_: None)
    with patch.object(ExactCache, "get", nothing), nowhere:
        assert {"exact", "byte_identical", "stale", "semantic", "remembered"} <= set(run(60).unseen)


@pytest.mark.slow
def test_the_command_prints_what_it_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sequences", "40", "--seed", "5", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == "40 of 40 sequences"
    figures = json.loads(shown.out)
    assert (figures["sequences"], figures["violations"]) == (40, 0)
    assert main(["--sequences", "40", "--seed", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # What is counted depends on nothing but the seed.
    assert any(line.split() == ["requests", f"{figures['requests']:,}"] for line in lines)
    assert any(line.split() == ["violations", "0"] for line in lines)


def test_the_command_shows_the_way_to_a_leak(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sequences", "40", "--leak", "alias-without-credentials"]) == 1
    out = capsys.readouterr().out
    assert "another scope" in out
    seed = out.partition("--seed ")[2].split()[0]
    assert main(["--sequences", "1", "--seed", seed, "--leak", "alias-without-credentials"]) == 1
    steps = out.partition("steps\n")[2].splitlines()
    assert 1 <= len(steps) <= 4
    assert all("Burst" in step for step in steps[-1:])
