"""Statements 8, 9 and 40 on real SQLite files: restarts, swapped values, hostile values."""

import ast
import json
import pickle
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.support.gateway import Running, config_text, running
from tests.support.process import ROOT
from tests.support.traffic import error_of, outcome, text_of, upstream_calls
from tests.support.upstream import Upstream

Values = dict[bytes, Any]


@contextmanager
def gateway(up: Upstream, home: Path) -> Iterator[Running]:
    with running(config_text(up.url, store=f"sqlite:///{home}/cache.db")) as gw:
        yield gw


def edit(home: Path, change: Callable[[Values], Values]) -> None:
    """Change the stored values, with no gateway running, as someone who can write to the file."""
    with closing(sqlite3.connect(home / "cache.db")) as db, db:
        before = dict(db.execute("SELECT key, value FROM entries"))
        for key, value in change(before).items():
            db.execute("UPDATE entries SET value = ? WHERE key = ?", (value, key))


def keys_in(home: Path) -> set[bytes]:
    with closing(sqlite3.connect(home / "cache.db")) as db:
        return {key for (key,) in db.execute("SELECT key FROM entries")}


def key_of(gw: Running, response: httpx.Response) -> str:
    found = gw.admin("GET", "/admin/decisions", params={"id": response.headers["x-request-id"]})
    return str(found.json()["key"])


def only_cached(gw: Running, content: str, **more: Any) -> httpx.Response:
    return gw.chat(content, headers={"cache-control": "only-if-cached"}, **more)


# Statement 8


def test_statement_8_a_restart_finds_the_same_key(up: Upstream, tmp_path: Path, prompt: str) -> None:
    """Statement 8: after a restart the same request has the same key, and its answer is a hit, streamed or not."""
    with gateway(up, tmp_path) as gw:
        first = gw.chat(prompt, path="/rr/v1", seed=2**60 + 1, unknown={"é": [1, None]})
        key = key_of(gw, first)
    with gateway(up, tmp_path) as gw, upstream_calls(up, 0):
        second = gw.chat(prompt, path="/rr/v1", unknown={"é": [1, None]}, seed=2**60 + 1)
        third = gw.chat(prompt, path="/rr/v1", unknown={"é": [1, None]}, seed=2**60 + 1, stream=True)
        assert [outcome(second), outcome(third)] == ["exact", "exact"]
        assert second.content == first.content
        assert text_of(third) == text_of(first)
        assert key_of(gw, second) == key_of(gw, third) == key


# Statement 9


def test_statement_9_swapped_values_are_not_served(up: Upstream, tmp_path: Path, prompt: str) -> None:
    """Statement 9: a value written for another key is a miss; neither of two swapped answers is served."""
    with gateway(up, tmp_path) as gw:
        one, other = (outcome(gw.chat(f"{prompt} {name}")) for name in "ab")
        assert one == other == "miss"

    def swap(values: Values) -> Values:
        (k1, v1), (k2, v2) = values.items()
        return {k1: v2, k2: v1}

    edit(tmp_path, swap)
    with gateway(up, tmp_path) as gw:
        with upstream_calls(up, 0):
            for name in "ab":
                error_of(only_cached(gw, f"{prompt} {name}"), 504)
        with upstream_calls(up, 2):
            assert [outcome(gw.chat(f"{prompt} {name}")) for name in "ab"] == ["miss", "miss"]
        with upstream_calls(up, 0):
            assert [outcome(gw.chat(f"{prompt} {name}")) for name in "ab"] == ["exact", "exact"]


def test_statement_9_another_tenants_value_is_not_served(up: Upstream, tmp_path: Path, prompt: str) -> None:
    """Statement 9: a copy of one scope's answer under another scope's key is not served there."""
    with gateway(up, tmp_path) as gw:
        mine = gw.chat(prompt, path="/personal/v1")
        theirs = gw.chat(prompt, path="/personal/v1", key="rf-test-eve-key")
        key = bytes.fromhex(key_of(gw, mine))
    edit(tmp_path, lambda values: {key: next(v for k, v in values.items() if k != key)})
    with gateway(up, tmp_path) as gw, upstream_calls(up, 1):
        again = gw.chat(prompt, path="/personal/v1")
        assert outcome(again) == "miss"
        assert text_of(again) != text_of(theirs)


# Statement 40


class Trap:
    """Unpickling it would leave a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._path,))


def deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"  # msgpack: a list of a list of a list ...


HOSTILE: dict[str, Callable[[bytes, Path], Any]] = {
    "pickle": lambda v, trap: pickle.dumps(Trap(trap)),
    "pickle, old": lambda v, trap: pickle.dumps(Trap(trap), protocol=0),
    "pickle behind our head": lambda v, trap: v[:4] + pickle.dumps(Trap(trap)),
    "empty": lambda v, trap: b"",
    "text": lambda v, trap: "text",
    "a number": lambda v, trap: 2**62,
    "cut": lambda v, trap: v[: len(v) // 2],
    "one bit": lambda v, trap: v[:-20] + bytes([v[-20] ^ 1]) + v[-19:],
    "more": lambda v, trap: v + b"x",
    "another schema version": lambda v, trap: v[:3] + bytes([v[3] + 1]) + v[4:],
    "deep msgpack": lambda v, trap: v[:4] + deep(100_000),
    "deep JSON": lambda v, trap: b"[" * 100_000 + b"]" * 100_000,
    "huge integer": lambda v, trap: msgspec.json.encode({"expires": 10**400}),
    "plain JSON": lambda v, trap: json.dumps({"choices": [{"message": {"content": "owned"}}]}).encode(),
    "five megabytes": lambda v, trap: v + bytes(5_000_000),
    "nothing known": lambda v, trap: b"\x00\xff" * 500,
}


@pytest.fixture(scope="module")
def file_of_answers(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A database in which each hostile value lies under the key of a request; and where the traps would show."""
    home = tmp_path_factory.mktemp("store")
    with gateway(up, home) as gw:
        keys = {name: bytes.fromhex(key_of(gw, gw.chat(f"hostile {name}"))) for name in HOSTILE}
    trap = home / "trap"
    edit(home, lambda values: {keys[name]: make(values[keys[name]], trap) for name, make in HOSTILE.items()})
    return home, trap


@pytest.mark.slow
def test_statement_40_hostile_values_are_misses_and_removed(up: Upstream, file_of_answers: tuple[Path, Path]) -> None:
    """Statement 40: pickles, wrong versions, huge and deep values are misses; they are removed and never executed."""
    home, trap = file_of_answers
    assert len(keys_in(home)) == len(HOSTILE)
    with gateway(up, home) as gw, upstream_calls(up, 0):
        for name in HOSTILE:
            begun = time.monotonic()
            error_of(only_cached(gw, f"hostile {name}"), 504)
            assert time.monotonic() - begun < 1, name
        assert gw.client.get("/readyz").json() == {"status": "ready"}
        kept = gw.admin("GET", "/admin/stats").json()["tiers"]["exact"]["store"]
        assert kept["corrupt"] == len(HOSTILE)
    assert keys_in(home) == set()
    assert not trap.exists()
    with gateway(up, home) as gw:
        with upstream_calls(up, len(HOSTILE)):
            assert {outcome(gw.chat(f"hostile {name}")) for name in HOSTILE} == {"miss"}
        with upstream_calls(up, 0):
            assert {outcome(gw.chat(f"hostile {name}")) for name in HOSTILE} == {"exact"}


@pytest.mark.parametrize(
    "content", [b"this is no database" * 100, b"", b"SQLite format 3\x00" + bytes(5_000)], ids=["text", "empty", "torn"]
)
def test_statement_40_a_file_that_is_no_database_costs_misses_only(
    up: Upstream, tmp_path: Path, prompt: str, content: bytes
) -> None:
    """Statement 40: with a file that is none of ours the gateway starts, serves, and stores again."""
    (tmp_path / "cache.db").write_bytes(content)
    with gateway(up, tmp_path) as gw, upstream_calls(up, 1):
        assert [outcome(gw.chat(prompt)) for _ in range(2)] == ["miss", "exact"]
    with gateway(up, tmp_path) as gw, upstream_calls(up, 0):
        assert outcome(gw.chat(prompt)) == "exact"


def test_statement_40_a_listing_and_a_purge_survive_hostile_values(up: Upstream, tmp_path: Path) -> None:
    """Statement 40: the admin API neither fails on such values nor shows them."""
    with gateway(up, tmp_path) as gw:
        for name in "abc":
            outcome(gw.chat(name))
    edit(tmp_path, lambda values: dict.fromkeys(list(values)[:2], b"\x80\x05."))
    with gateway(up, tmp_path) as gw:
        listed = gw.admin("GET", "/admin/entries")
        assert listed.status_code == 200
        assert len(listed.json()["entries"]) == 1
        assert gw.admin("POST", "/admin/purge", json={"tenant": "acme"}).status_code == 200
    assert keys_in(tmp_path) == set()


FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {
    ("yaml", "load"),
    ("yaml", "load_all"),
    ("yaml", "full_load"),
    ("yaml", "unsafe_load"),
    ("torch", "load"),
    ("numpy", "load"),
    ("np", "load"),
    ("os", "system"),
}


def used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in FORBIDDEN_MODULES:
                yield str(node.module)
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
                yield called.id
            if (
                isinstance(called, ast.Attribute)
                and isinstance(called.value, ast.Name)
                and (called.value.id, called.attr) in FORBIDDEN_METHODS
            ):
                yield f"{called.value.id}.{called.attr}"


@pytest.mark.slow
def test_statement_40_nothing_in_the_tree_can_execute_data() -> None:
    """Statement 40: no pickle, no eval, no yaml.load in what is shipped."""
    files = [file for package in ("gateway", "cache", "backends") for file in (ROOT / package).rglob("*.py")]
    assert len(files) > 50
    found = {str(f.relative_to(ROOT)): names for f in files if (names := list(used(ast.parse(f.read_text()))))}
    assert found == {}
