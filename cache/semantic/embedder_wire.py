"""What the gateway and its embedding process say to each other: frames of msgpack behind their length.

A frame is four bytes, the length (big-endian) of what follows, and one message. The process tells how loading goes
(`Loading`), then once `Ready` or `Failed`; after that each `Embed` is answered by one `Vectors`, in turn.
"""

from typing import Protocol

import msgspec

HEAD = 4
MAX_FRAME = 64 * 2**20
"""Bytes; more can only be a broken stream."""


class Embed(msgspec.Struct, tag=True):
    texts: list[str]


class Loading(msgspec.Struct, tag=True):
    detail: str


class Failed(msgspec.Struct, tag=True):
    """The model cannot be loaded; `message` says what to do about it. The process ends."""

    message: str


class Ready(msgspec.Struct, tag=True):
    identity: str
    dimensions: int


class Vectors(msgspec.Struct, tag=True):
    """`data` holds one row of float32 (of the machine's byte order) for each text, zeros for those in `problems`, which
    has the reason by the text's number."""

    data: bytes
    problems: dict[int, str] = {}


Reply = Loading | Failed | Ready | Vectors

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Embed)
_replies = msgspec.msgpack.Decoder(Reply)


class Broken(Exception):
    """What came is not a frame of ours."""


class Reader(Protocol):
    async def readexactly(self, n: int) -> bytes: ...


def frame(message: Embed | Reply) -> bytes:
    """Raises UnicodeEncodeError on a text with a lone surrogate."""
    data = _encoder.encode(message)
    return len(data).to_bytes(HEAD) + data


def size(head: bytes) -> int:
    """Raises Broken."""
    number = int.from_bytes(head)
    if number > MAX_FRAME:
        raise Broken(f"a frame of {number} bytes")
    return number


def request(data: bytes) -> Embed:
    """Raises Broken."""
    try:
        return _requests.decode(data)
    except msgspec.MsgspecError as error:
        raise Broken(str(error)) from None


async def read_reply(reader: Reader) -> Reply:
    """Raises Broken, and IncompleteReadError at the end of the stream."""
    data = await reader.readexactly(size(await reader.readexactly(HEAD)))
    try:
        return _replies.decode(data)
    except msgspec.MsgspecError as error:
        raise Broken(str(error)) from None
