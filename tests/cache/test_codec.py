"""The stored form of entries: what goes in comes out, and nothing else is taken for an entry."""

import pickle
import random
import tracemalloc
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cache.entry import Cost, Entry, Usage
from cache.stores.codec import MAX_FIELDS, CorruptEntry, decode, encode
from tests.contract.stores import key_of, make_entry

MAX_BODY = 100_000
ENTRY = make_entry("a", tags=("x",), documents=("d",))
FORMAT = b"RFN\x01"
FIELDS = (
    *("key", "scope", "tenant", "user", "endpoint", "api", "model", "backend", "created", "expires", "keep_until"),
    *("input_tokens", "output_tokens", "cost_ms", "cost_usd", "upstream_id", "tags", "documents", "compressed", "body"),
)

TIMES = st.floats(allow_nan=False, allow_infinity=False)
ENTRIES = st.builds(
    Entry,
    key=st.binary(min_size=32, max_size=32),
    scope=st.binary(min_size=32, max_size=32),
    **dict.fromkeys(["tenant", "user", "endpoint", "api", "model", "backend", "upstream_id"], st.text(max_size=20)),
    body=st.binary(max_size=200) | st.builds(lambda part: part * 100, st.binary(max_size=200)),
    **dict.fromkeys(["created", "expires", "keep_until"], TIMES),
    usage=st.builds(Usage, st.integers(0, 2**53), st.integers(0, 2**53)),
    cost=st.builds(Cost, TIMES, st.none() | TIMES),
    tags=st.lists(st.text(max_size=9), max_size=4).map(tuple),
    documents=st.lists(st.text(max_size=9), max_size=4).map(tuple),
)


def read(raw: bytes, max_body: int = MAX_BODY) -> Entry:
    return decode(raw, key=ENTRY.key, max_body=max_body)


def sealed(content: bytes) -> bytes:
    """Stored bytes as somebody makes them who knows the format: header and checksum are right."""
    return FORMAT + blake2b(content, digest_size=32).digest() + content


def fields(**changes: Any) -> list[Any]:
    """The stored array of ENTRY, with some fields changed."""
    values = dict(zip(FIELDS, msgspec.msgpack.decode(encode(ENTRY)[36:]), strict=True))
    assert changes.keys() <= values.keys()
    return list((values | changes).values())


def packed(**changes: Any) -> bytes:
    return sealed(msgspec.msgpack.encode(fields(**changes)))


@given(ENTRIES)
def test_every_entry_comes_back(entry: Entry) -> None:
    assert decode(encode(entry), key=entry.key, max_body=MAX_BODY) == entry


def test_the_tests_know_the_format() -> None:
    assert packed() == encode(ENTRY)
    assert read(packed()) == ENTRY


def test_large_bodies_are_compressed_where_that_helps() -> None:
    text = b'{"content": "' + b"the same words again " * 500 + b'"}'
    assert len(encode(replace(ENTRY, body=text))) < len(text) / 5
    noise = random.Random(1).randbytes(20_000)
    assert len(encode(replace(ENTRY, body=noise))) < len(noise) + 400
    assert read(encode(replace(ENTRY, body=noise))).body == noise


def test_a_body_may_have_max_body_bytes_and_no_more() -> None:
    for body in (b"\x00" * MAX_BODY, random.Random(1).randbytes(MAX_BODY)):
        raw = encode(replace(ENTRY, body=body))
        assert read(raw).body == body
        with pytest.raises(CorruptEntry):
            read(raw, MAX_BODY - 1)


def test_another_key_is_refused() -> None:
    with pytest.raises(CorruptEntry, match="another key"):
        decode(encode(ENTRY), key=key_of("b"), max_body=MAX_BODY)


@given(st.integers(0, len(encode(ENTRY)) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(position: int, change: int) -> None:
    raw = bytearray(encode(ENTRY))
    raw[position] ^= change
    with pytest.raises(CorruptEntry):
        read(bytes(raw))


@given(st.integers(0, len(encode(ENTRY)) - 1))
def test_any_cut_is_noticed(length: int) -> None:
    with pytest.raises(CorruptEntry):
        read(encode(ENTRY)[:length])


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail_otherwise(content: bytes) -> None:
    for raw in (content, FORMAT + content, sealed(content)):
        with pytest.raises(CorruptEntry):
            read(raw)


class Hostile:
    """Unpickling it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickle_bytes_are_refused_and_not_run(tmp_path: Path) -> None:
    trap = pickle.dumps(Hostile(tmp_path / "ran"))
    for raw in (trap, FORMAT + trap, sealed(trap), packed(body=trap, compressed=True)):
        with pytest.raises(CorruptEntry):
            read(raw)
    assert read(packed(body=trap)).body == trap
    assert not (tmp_path / "ran").exists()
    pickle.loads(trap)
    assert (tmp_path / "ran").exists(), "the trap does not work"


NESTED = b"\x91" * 100_000 + b"\xc0"
ZSTD = zstandard.ZstdCompressor()


@pytest.mark.parametrize(
    "raw",
    [
        b"RFN\x02" + encode(ENTRY)[4:],
        b"RFN\x00" + encode(ENTRY)[4:],
        b'{"key": "x"}',
        sealed(NESTED),
        sealed(msgspec.msgpack.encode(fields())[:-1]),
        sealed(msgspec.msgpack.encode(fields()) + b"\x00"),
        sealed(msgspec.msgpack.encode([*fields(), 1])),
        sealed(msgspec.msgpack.encode(fields()[:-1])),
        sealed(msgspec.msgpack.encode({"key": ENTRY.key})),
        sealed(b"\xdd\xff\xff\xff\xff"),
        sealed(b"\xdc\x00\x14" + b"\xc6\xff\xff\xff\xff"),
        packed(tenant=1),
        packed(tenant=None),
        packed(tenant=b"acme"),
        packed(key=ENTRY.key.hex()),
        packed(tags="x"),
        packed(tags=[["x"]]),
        packed(tags=[1]),
        packed(documents={"d": 1}),
        packed(created="1"),
        packed(created=True),
        packed(created=float("nan")),
        packed(keep_until=float("inf")),
        packed(expires=float("-inf")),
        packed(cost_ms=float("nan")),
        packed(cost_usd=float("inf")),
        packed(input_tokens=2**64 - 1),
        packed(output_tokens=-1),
        packed(input_tokens=1.5),
        packed(compressed=1),
        packed(compressed=True),
        packed(compressed=True, body=b""),
        packed(compressed=True, body=ZSTD.compress(b"x" * 50)[:-1]),
        packed(compressed=True, body=ZSTD.compress(b"x" * 50) + b"more"),
        packed(compressed=True, body=zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 50)),
        packed(body="text"),
        packed(upstream_id=msgspec.Raw(b"\xa2\xff\xff")),
        packed(upstream_id=msgspec.msgpack.Ext(1, b"x")),
    ],
)
def test_hostile_values_are_refused(raw: bytes) -> None:
    with pytest.raises(CorruptEntry):
        read(raw)


def test_bombs_take_no_memory() -> None:
    """100 MB of zeros in 10 kB; truly so, or in a frame that claims to be small."""
    bomb = ZSTD.compress(b"\x00" * 100_000_000)
    liar = bytearray(bomb)
    size_at = liar.index((100_000_000).to_bytes(4, "little"))
    liar[size_at : size_at + 4] = (100).to_bytes(4, "little")
    raws = [packed(compressed=True, body=bomb), packed(compressed=True, body=bytes(liar)), bytes(MAX_BODY + MAX_FIELDS)]
    tracemalloc.start()
    for raw in raws:
        with pytest.raises(CorruptEntry):
            read(raw)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_longer_than_any_entry_is_not_even_looked_at() -> None:
    assert read(encode(replace(ENTRY, tags=("x" * (MAX_FIELDS - 1000),))), 100).tags[0]
    raw = encode(replace(ENTRY, tags=("x" * MAX_FIELDS,)))
    with pytest.raises(CorruptEntry, match=r"^too long"):
        read(raw, 100)


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "\ud800"},
        {"tags": ("\udfff",)},
        {"created": float("nan")},
        {"keep_until": float("inf")},
        {"usage": Usage(10**30, 0)},
        {"usage": Usage(0, -1)},
        {"cost": Cost(float("inf"))},
    ],
)
def test_what_could_not_be_read_back_is_not_encoded(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(replace(ENTRY, **changes))
