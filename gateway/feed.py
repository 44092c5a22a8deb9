"""What has been streamed of one answer so far: one growing string of SSE bytes for each form that somebody reads.

Readers keep an offset of their own and take what lies beyond it, so however many they are, the bytes are here once.
A form that nobody reads is not kept; when its first reader comes it is made from the one that is.
"""

from collections.abc import Mapping, Sequence

from gateway.ask import Form
from gateway.upstream import Event
from gateway.wire.render import client_event, with_usage, without_usage

END = b"\n\n"
"""The end of an event as we write it; JSON holds none."""


class Log:
    """Events, as bytes, from a beginning that may have been let go of."""

    __slots__ = ("_bytes", "_start")

    def __init__(self, data: bytes = b"") -> None:
        self._bytes = bytearray(data)
        self._start = 0

    @property
    def end(self) -> int:
        return self._start + len(self._bytes)

    def add(self, data: bytes) -> None:
        self._bytes += data

    def read(self, offset: int, limit: int) -> bytes:
        """Whole events from `offset` on: those within `limit` bytes, or one that is larger. What was let go of cannot
        be read."""
        start = offset - self._start
        end = start + limit
        if end < len(self._bytes):
            # Never a part of one: an error event may have to follow.
            end = self._bytes.rfind(END, start, end) + len(END)
            if end < len(END):
                end = self._bytes.index(END, start) + len(END)
        return bytes(self._bytes[start:end])

    def let_go(self, offset: int) -> None:
        """Nobody will read what lies before `offset`."""
        if offset > self._start:
            del self._bytes[: offset - self._start]
            self._start = offset


class Feed:
    """`first` is the form that is kept from the beginning. A client that wants JSON reads none; for such a one keep
    `sse+usage`, which is what backends send."""

    def __init__(self, first: Form) -> None:
        self._logs: dict[Form, Log] = {first: Log()}

    def add(self, events: Sequence[Event]) -> None:
        for form, log in self._logs.items():
            usage = form == "sse+usage"
            for data, chunk in events:
                if chunk is not None and (piece := client_event(data, chunk, usage=usage)):
                    log.add(piece)

    def log(self, form: Form) -> Log:
        """The bytes in this form, from the beginning. Only while nothing has been let go of."""
        found = self._logs.get(form)
        if found is None:
            other = next(iter(self._logs.values()))
            whole = other.read(0, other.end)
            found = self._logs[form] = Log(with_usage(whole) if form == "sse+usage" else without_usage(whole))
        return found

    @property
    def end(self) -> int:
        """Bytes so far, in the form that was kept first."""
        return next(iter(self._logs.values())).end

    def let_go(self, read: Mapping[Form, int]) -> None:
        """Nobody new will come: keep only what lies beyond these offsets, by form; of a form that is not named,
        nothing."""
        for form, log in self._logs.items():
            log.let_go(read.get(form, log.end))
