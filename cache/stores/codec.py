"""Entries as bytes, for stores outside this process.

    4 bytes   format: "RFN" and the schema version
    32 bytes  BLAKE2b-256 of everything else
    the rest  a msgpack array: `_Record`; the body in a zstd frame where that is smaller

What comes back may be damaged, of another version, put under another key, or made by somebody hostile who can
write to the store (and compute a checksum). So reading checks each of these, builds nothing but strings, bytes and
numbers, and takes no more memory than `max_body` and the stored bytes themselves.
"""

from hashlib import blake2b
from math import isfinite

import msgspec
import zstandard

from cache.entry import Cost, Entry, Usage

MAX_FIELDS = 64 * 1024
"""Bytes that all fields but the body may take together: longer values are not decoded."""

_FORMAT = b"RFN\x01"
_DIGEST_SIZE = 32
_HEADER_SIZE = len(_FORMAT) + _DIGEST_SIZE
_COMPRESS_FROM = 2048  # bytes; below it a frame costs 30 us to save less than a page of the store
_MAX_TOKENS = 2**53


class CorruptEntry(Exception):
    """Stored bytes that are no entry of the key asked for. The reader treats them as a miss and removes them."""


class _Record(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The stored fields in their order; a change of any of them is a new schema version."""

    key: bytes
    scope: bytes
    tenant: str
    user: str
    endpoint: str
    api: str
    model: str
    backend: str
    created: float
    expires: float
    keep_until: float
    input_tokens: int
    output_tokens: int
    cost_ms: float
    cost_usd: float | None
    upstream_id: str
    tags: tuple[str, ...]
    documents: tuple[str, ...]
    compressed: bool
    body: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Record)


def encode(entry: Entry) -> bytes:
    """The stored form of `entry`. ValueError where it has none: lone surrogates, times that are no numbers."""
    body = entry.body
    if len(body) > _COMPRESS_FROM:
        # A compressor of its own for each call: they must not be shared between threads.
        body = zstandard.ZstdCompressor().compress(body)
    compressed = len(body) < len(entry.body)
    record = _Record(
        key=entry.key,
        scope=entry.scope,
        tenant=entry.tenant,
        user=entry.user,
        endpoint=entry.endpoint,
        api=entry.api,
        model=entry.model,
        backend=entry.backend,
        created=entry.created,
        expires=entry.expires,
        keep_until=entry.keep_until,
        input_tokens=entry.usage.input,
        output_tokens=entry.usage.output,
        cost_ms=entry.cost.ms,
        cost_usd=entry.cost.usd,
        upstream_id=entry.upstream_id,
        tags=entry.tags,
        documents=entry.documents,
        compressed=compressed,
        body=body if compressed else entry.body,
    )
    _check(record)
    content = _encoder.encode(record)
    return _FORMAT + _checksum(content) + content


def decode(raw: bytes, *, key: bytes, max_body: int) -> Entry:
    """The entry that `encode` made `raw` from; CorruptEntry if it is not one of `key` with a body up to `max_body`."""
    if len(raw) > max_body + MAX_FIELDS:
        raise CorruptEntry("too long")
    if not raw.startswith(_FORMAT):
        raise CorruptEntry("not this format or schema version")
    content = raw[_HEADER_SIZE:]
    if raw[len(_FORMAT) : _HEADER_SIZE] != _checksum(content):
        raise CorruptEntry("checksum")
    try:
        record = _decoder.decode(content)
        _check(record)
    except ValueError as error:  # msgspec's are among them
        raise CorruptEntry(str(error)) from error
    if record.key != key:
        raise CorruptEntry("stored for another key")
    return Entry(
        key=record.key,
        scope=record.scope,
        tenant=record.tenant,
        user=record.user,
        endpoint=record.endpoint,
        api=record.api,
        model=record.model,
        backend=record.backend,
        body=_body(record, max_body),
        created=record.created,
        expires=record.expires,
        keep_until=record.keep_until,
        usage=Usage(record.input_tokens, record.output_tokens),
        cost=Cost(record.cost_ms, record.cost_usd),
        upstream_id=record.upstream_id,
        tags=record.tags,
        documents=record.documents,
    )


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_SIZE).digest()


def _check(record: _Record) -> None:
    """ValueError where a number is one that no answer has: an expiry that never comes, a count that overflows."""
    numbers = (record.created, record.expires, record.keep_until, record.cost_ms, record.cost_usd or 0.0)
    if not all(map(isfinite, numbers)):
        raise ValueError("a time or cost that is no number")
    if not (0 <= record.input_tokens <= _MAX_TOKENS and 0 <= record.output_tokens <= _MAX_TOKENS):
        raise ValueError("a token count out of range")


def _body(record: _Record, max_body: int) -> bytes:
    if not record.compressed:
        size = len(record.body)
    else:
        try:
            # The frame names its size and decompress() believes it, whatever limit it is given: so ask first.
            size = zstandard.get_frame_parameters(record.body).content_size
        except zstandard.ZstdError as error:
            raise CorruptEntry(str(error)) from error
    if size > max_body:
        raise CorruptEntry("body too long")
    if not record.compressed:
        return record.body
    try:
        return zstandard.ZstdDecompressor().decompress(record.body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptEntry(str(error)) from error
