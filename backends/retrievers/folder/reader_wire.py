"""What the gateway and its reading process say to each other: frames of msgpack behind their length.

A frame is four bytes, the length (big-endian) of what follows, and one message. The process says once that it is
`Ready`; after that each `Read` is answered by a `Document` or an `Unread`, in turn.
"""

from typing import Protocol

import msgspec

from backends.retrievers.folder.chunking import Piece

HEAD = 4
MAX_FRAME = 32 * 2**20
"""Bytes; more is never sent."""


class Read(msgspec.Struct, tag=True):
    id: str
    most: int


class Ready(msgspec.Struct, tag=True):
    pass


class Document(msgspec.Struct, tag=True, frozen=True):
    """`version` is the same as long as the bytes of the file are; `pieces` are in the order of the text."""

    id: str
    version: str
    pieces: list[Piece]


class Unread(msgspec.Struct, tag=True):
    """Why there is no document; `ends`: the process ends after this answer."""

    reason: str
    ends: bool = False


Reply = Ready | Document | Unread

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Read)
_replies = msgspec.msgpack.Decoder(Reply)


class Broken(Exception):
    """What came is not a frame of ours."""


class Stream(Protocol):
    async def readexactly(self, n: int) -> bytes: ...


def frame(message: Read | Reply) -> bytes:
    """Raises Broken where it would be larger than a frame may be."""
    data = _encoder.encode(message)
    if len(data) > MAX_FRAME:
        raise Broken(f"a frame of {len(data)} bytes")
    return len(data).to_bytes(HEAD) + data


def size(head: bytes) -> int:
    """Raises Broken."""
    number = int.from_bytes(head)
    if number > MAX_FRAME:
        raise Broken(f"a frame of {number} bytes")
    return number


def request(data: bytes) -> Read:
    """Raises Broken."""
    try:
        return _requests.decode(data)
    except msgspec.MsgspecError as error:
        raise Broken(str(error)) from None


async def read_reply(stream: Stream) -> Reply:
    """Raises Broken, and IncompleteReadError at the end of the stream."""
    data = await stream.readexactly(size(await stream.readexactly(HEAD)))
    try:
        return _replies.decode(data)
    except msgspec.MsgspecError as error:
        raise Broken(str(error)) from None
