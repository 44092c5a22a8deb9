"""What has been streamed of one answer so far: growing strings of SSE events, one for each form that somebody reads.

Readers keep an offset of their own and take what lies beyond it, so however many they are, the bytes are here once.
The form of the first client is kept from the beginning. Another form is kept from when its first reader comes; what
had arrived by then each of its readers translates for itself, piece by piece, so that nobody waits for it.
"""

from collections.abc import Iterable, Sequence

from gateway.ask import Form
from gateway.upstream import Event, Json
from gateway.wire.render import client_event, with_usage, without_usage

END = b"\n\n"
"""The end of an event as we write it; JSON holds none."""


class Log:
    """Events, as bytes, from a beginning that may have been let go of."""

    __slots__ = ("_bytes", "_start")

    def __init__(self) -> None:
        self._bytes = bytearray()
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


class Reader:
    """One client's place in a feed."""

    __slots__ = ("_log", "_past", "_usage", "_withheld", "offset", "past_offset", "until")

    def __init__(self, log: Log, past: Log, until: int, withheld: bytes, *, usage: bool) -> None:
        self._log = log
        self._past = past  # what had arrived, in another form, to be read up to `until`
        self.until = until
        self._withheld = withheld  # what follows, and the other form does not show whole
        self._usage = usage
        self.offset = 0
        self.past_offset = 0

    @property
    def behind(self) -> int:
        """Bytes that it has not taken yet."""
        return self.until - self.past_offset + self._log.end - self.offset

    def take(self, limit: int) -> bytes:
        """The next whole events, of about `limit` bytes at most; empty when there are none yet."""
        while self.past_offset < self.until:
            data = self._past.read(self.past_offset, min(limit, self.until - self.past_offset))
            self.past_offset += len(data)
            if data := with_usage(data) if self._usage else without_usage(data):
                return data
        if self._withheld:
            data, self._withheld = self._withheld, b""
            return data
        data = self._log.read(self.offset, limit)
        self.offset += len(data)
        return data


class Feed:
    """`first` is the form that is kept from the beginning."""

    def __init__(self, first: Form) -> None:
        self._first = first
        self._logs: dict[Form, Log] = {first: Log()}
        self._past: dict[Form, tuple[int, bytes]] = {first: (0, b"")}  # what readers of a form translate: see Reader
        self._unshown = bytearray()  # events that the form without usage leaves out
        self._stripped: tuple[int, bytes] | None = None  # the last event, if usage was taken out of it: place and whole

    @property
    def end(self) -> int:
        """Bytes so far, in the first form."""
        return self._logs[self._first].end

    def add(self, events: Sequence[Event]) -> None:
        for form, log in self._logs.items():
            usage = form == "sse+usage"
            for data, chunk in events:
                if chunk is None:
                    continue
                piece = client_event(data, chunk, usage=usage)
                if form == self._first == "sse":
                    self._note(data, chunk, shown=piece is not None)
                if piece:
                    log.add(piece)

    def _note(self, data: bytes, chunk: Json, *, shown: bool) -> None:
        """Usage that a later reader may want to see, and that the first form does not show."""
        told = chunk.get("usage") is not None
        if not shown:
            self._unshown += client_event(data, chunk, usage=True) or b""
        else:
            self._stripped = (self.end, client_event(data, chunk, usage=True) or b"") if told else None

    def reader(self, form: Form) -> Reader:
        """From the beginning, in this form. Only while nothing has been let go of."""
        if form not in self._logs:
            self._logs[form] = Log()
            until, last = self._stripped or (self.end, b"")
            self._past[form] = (until, last + bytes(self._unshown))
        until, withheld = self._past[form]
        usage = form == "sse+usage"
        return Reader(self._logs[form], self._logs[self._first], until, withheld, usage=usage)

    def let_go(self, readers: Iterable[tuple[Form, Reader]]) -> None:
        """Nobody new will come: keep only what these have not taken."""
        least = {form: log.end for form, log in self._logs.items()}
        for form, reader in readers:
            least[form] = min(least[form], reader.offset)
            if reader.past_offset < reader.until:
                least[self._first] = min(least[self._first], reader.past_offset)
        for form, log in self._logs.items():
            log.let_go(least[form])
