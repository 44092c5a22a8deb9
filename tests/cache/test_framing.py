import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cache
from cache.framing import DIGEST_SIZE, digest

FIELDS = st.lists(st.binary(max_size=12), max_size=6)

# Statement 8: keys outlive processes, so these bytes must never change. A change is a new schema version.
PINNED = {
    ("d", ()): "78f106754aa94fee9a6361110901d883c41d982d6b191be656551b472c31f9c2",
    ("refrain.test", (b"org_1", b"2345")): "70b81d0f1cad5061e4ad8723c33b6a6bd1b507a0003502f81b45079c1e2a7fbc",
}


@given(FIELDS, FIELDS)
def test_only_equal_lists_have_equal_digests(one: list[bytes], other: list[bytes]) -> None:
    assert (digest("d", one) == digest("d", other)) == (one == other)


@given(st.text(max_size=8), st.text(max_size=8), FIELDS)
def test_domains_are_apart(one: str, other: str, fields: list[bytes]) -> None:
    assert (digest(one, fields) == digest(other, fields)) == (one == other)


def test_what_concatenates_alike_differs() -> None:
    lists = [
        [b"org_1", b"2345"],
        [b"org_12", b"345"],
        [b"org_12345", b""],
        [b"", b"org_12345"],
        [b"org_12345"],
        [b"org_12345", b"", b""],
        [b"org_1", b"", b"2345"],
    ]
    for one, other in combinations(lists, 2):
        assert digest("d", one) != digest("d", other)


def test_a_field_that_imitates_the_framing_is_a_field() -> None:
    """The bytes that stand for two fields, given as one."""
    two = (1).to_bytes(8, "big") + b"a" + (1).to_bytes(8, "big") + b"b"
    assert digest("d", [two]) != digest("d", [b"a", b"b"])
    assert digest("d", [two[8:]]) != digest("d", [b"a", b"b"])


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_process_makes_the_same_digests(seed: str) -> None:
    script = "from cache.framing import digest; print(digest('refrain.test', [b'org_1', b'2345']).hex())"
    answer = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(cache.__file__).parent.parent,
        env={"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == PINNED["refrain.test", (b"org_1", b"2345")]


@pytest.mark.parametrize("vector", PINNED)
def test_pinned_vectors(vector: tuple[str, tuple[bytes, ...]]) -> None:
    assert digest(*vector).hex() == PINNED[vector]
    assert len(digest(*vector)) == DIGEST_SIZE
